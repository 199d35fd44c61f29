package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/store"
)

// counter charges every op once. It fails some statements without charging, and
// yields to other goroutines.
type counter struct {
	busy    atomic.Bool
	charged *sync.Map // key → *atomic.Int64
	fault   func() bool
}

var errFault = errors.New("nothing was charged")

func (c *counter) Apply(_ context.Context, b *store.Batch) error {
	if !c.busy.CompareAndSwap(false, true) {
		panic("two statements on one lane")
	}
	defer c.busy.Store(false)
	yield(rand.IntN(8))
	if c.fault() {
		return errFault
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		for j := range g.Ops {
			n, _ := c.charged.LoadOrStore(g.Ops[j].Key, new(atomic.Int64))
			g.Ops[j].Answer = store.Answer{Allowed: true, Granted: 1, Remaining: n.(*atomic.Int64).Add(1)}
		}
		g.Allowed = true
	}
	return nil
}

// yield lets other goroutines run.
func yield(times int) {
	for range times {
		runtime.Gosched()
	}
}

// TestAnswersMatchCharges makes random calls, some of which fail or time out. The
// answers add up to what was charged, and no two have the same number.
func TestAnswersMatchCharges(t *testing.T) {
	var charged sync.Map
	var lanes []store.Store
	for range 3 {
		lanes = append(lanes, &counter{charged: &charged, fault: func() bool { return rand.IntN(40) == 0 }})
	}
	s := newStore(t, coalesce.Config{MaxBatch: 16}, lanes...)
	const callers, calls, keys = 32, 300, 5
	told := make([]answers, callers)
	var wg sync.WaitGroup
	for i := range callers {
		told[i].turns = map[string]bool{}
		wg.Go(func() {
			for range calls {
				told[i].call(s, rand.IntN(keys), rand.IntN(keys))
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var sum answers
	sum.turns = map[string]bool{}
	for i := range told {
		sum.granted += told[i].granted
		sum.unknown += told[i].unknown
		for turn := range told[i].turns {
			if sum.turns[turn] {
				t.Errorf("two callers were given turn %s", turn)
			}
			sum.turns[turn] = true
		}
	}
	total := int64(0)
	charged.Range(func(_, n any) bool { total += n.(*atomic.Int64).Load(); return true })
	if total < sum.granted || total > sum.granted+sum.unknown {
		t.Errorf("%d charged, %d granted, %d unknown", total, sum.granted, sum.unknown)
	}
	if sum.granted == 0 || sum.unknown == 0 {
		t.Errorf("%d granted and %d unknown: the test shows nothing", sum.granted, sum.unknown)
	}
}

// answers are the answers that one caller got.
type answers struct {
	granted, unknown int64 // ops
	turns            map[string]bool
}

func (y *answers) call(s store.Store, a, b int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rand.IntN(4) == 0 {
		go func() {
			yield(rand.IntN(64))
			cancel()
		}()
	}
	var batch store.Batch
	g, _ := batch.Single()
	g.Ops = []store.Op{{Def: def, Key: fmt.Sprint(a), Cost: 1}}
	if a != b {
		g.Ops = append(g.Ops, store.Op{Def: def, Key: fmt.Sprint(b), Cost: 1})
	}
	err := s.Apply(ctx, &batch)
	if err == nil {
		err = g.Err
	}
	switch {
	case err == nil:
		for i := range g.Ops {
			y.granted++
			y.turns[fmt.Sprint(g.Ops[i].Key, " ", g.Ops[i].Remaining)] = true
		}
	case errors.Is(err, store.ErrOutcomeUnknown):
		y.unknown += int64(len(g.Ops))
	}
}
