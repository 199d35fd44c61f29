package coalesce_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is an inner store whose statements end when the test says so. It answers
// with Remaining = the number of the key's op, so that a test sees the order.
type gate struct {
	arrived chan *statement
	turn    map[string]int64
}

// statement is an Apply in flight. The test sends its outcome to end it.
type statement struct {
	ctx    context.Context
	keys   []string // of the groups, in order; those of one group joined by +
	finish chan outcome
}

type outcome struct {
	err   error
	panic any
	group map[string]error // by key
}

func newGate() *gate {
	return &gate{arrived: make(chan *statement), turn: map[string]int64{}}
}

func (g *gate) Apply(ctx context.Context, b *store.Batch) error {
	s := &statement{ctx: ctx, finish: make(chan outcome)}
	for i := range b.Groups {
		s.keys = append(s.keys, keysOf(&b.Groups[i]))
	}
	g.arrived <- s
	var o outcome
	select {
	case o = <-s.finish:
	case <-ctx.Done():
		o.err = ctx.Err()
	}
	if o.panic != nil {
		panic(o.panic)
	}
	for i := range b.Groups {
		g.answer(&b.Groups[i], o)
	}
	return o.err
}

func (g *gate) answer(group *store.Group, o outcome) {
	if group.Err = o.group[keysOf(group)]; group.Err != nil || o.err != nil {
		return
	}
	group.Allowed = true
	for i := range group.Ops {
		op := &group.Ops[i]
		g.turn[op.Key]++
		op.Answer = store.Answer{Allowed: true, Granted: op.Cost, Remaining: g.turn[op.Key]}
	}
}

func keysOf(g *store.Group) (s string) {
	for i := range g.Ops {
		if i > 0 {
			s += "+"
		}
		s += g.Ops[i].Key
	}
	return s
}

// child is the limit of keys that begin so; others are of def.
var (
	def   = limittest.Definition(store.Limit{Name: "test", Rate: 1, Period: 1e9})
	child = limittest.Definition(store.Limit{Name: "child", Rate: 1, Period: 1e9, Parent: "test"})
)

// call is a call in another goroutine.
type call struct {
	cancel context.CancelFunc
	batch  store.Batch
	err    error
	panic  any
	done   chan struct{}
}

// ask makes a call of one group with the keys in a new goroutine, and returns when
// all goroutines are blocked.
func ask(s store.Store, keys ...string) *call {
	return askWith(context.Background(), s, keys...)
}

func askWith(ctx context.Context, s store.Store, keys ...string) *call {
	ctx, cancel := context.WithCancel(ctx)
	c := askIn(ctx, s, keys...)
	c.cancel = cancel
	return c
}

// askIn is ask with a context of the caller.
func askIn(ctx context.Context, s store.Store, keys ...string) *call {
	c := &call{cancel: func() {}, done: make(chan struct{})}
	g, _ := c.batch.Single()
	g.Ops = nil
	for _, k := range keys {
		d := def
		if strings.HasPrefix(k, "child ") {
			d = child
		}
		g.Ops = append(g.Ops, store.Op{Def: d, Key: k, Cost: 1})
	}
	go func() {
		defer close(c.done)
		defer func() { c.panic = recover() }()
		if c.err = s.Apply(ctx, &c.batch); c.err == nil {
			c.err = c.batch.Groups[0].Err
		}
	}()
	synctest.Wait()
	return c
}

// turn waits for the answer and returns the number of the op.
func (c *call) turn(t *testing.T) int64 {
	t.Helper()
	<-c.done
	c.cancel()
	if c.err != nil {
		t.Fatalf("call failed: %v", c.err)
	}
	return c.batch.Groups[0].Ops[0].Remaining
}

// fails waits for the answer and checks that its error wraps want.
func (c *call) fails(t *testing.T, want error) {
	t.Helper()
	<-c.done
	c.cancel()
	if !errors.Is(c.err, want) {
		t.Errorf("error is %v, want %v", c.err, want)
	}
}

func newStore(t *testing.T, c coalesce.Config, lanes ...store.Store) *coalesce.Store {
	t.Helper()
	return newStoreWithLanes(t, c, store.Lanes{Stores: lanes})
}

func newStoreWithLanes(t *testing.T, c coalesce.Config, lanes store.Lanes) *coalesce.Store {
	t.Helper()
	s, err := coalesce.New(lanes, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
