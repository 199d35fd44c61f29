package lockstep

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// These tests run holds in virtual time, at the load for which they exist: the
// estimates are above the true costs, and the limit is always in demand.

// A worker waits for its next try, or works under a hold.
type worker struct {
	at     int64 // µs: of its next step
	id     int
	hold   string // "" while it waits
	cost   int64  // the estimate
	actual int64
}

type workers []*worker

func (w workers) Len() int { return len(w) }
func (w workers) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(w[i].at, w[j].at), w[i].id-w[j].id) < 0
}
func (w workers) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *workers) Push(x any)   { *w = append(*w, x.(*worker)) }
func (w *workers) Pop() any {
	old := *w
	v := old[len(old)-1]
	*w = old[:len(old)-1]
	return v
}

// holder is a bucket with holds: a store's, or an ideal one.
type holder interface {
	// hold takes n tokens, or returns the time in µs after which to try again.
	hold(now int64, id string, n int64) (taken bool, retry int64)
	settle(now int64, id string, actual int64)
}

// saturate runs workers that hold, work for 5 to 30 s and settle to 0.2 to 1 of what
// they held, for a time, and returns the tokens that were really used.
func saturate(h holder, seed uint64, count int, length time.Duration) (used int64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var now int64
	var w workers
	for i := range count {
		heap.Push(&w, &worker{at: rnd.Int64N(1e6), id: i})
	}
	for n := 0; w[0].at < length.Microseconds(); n++ {
		next := w[0]
		now = next.at
		switch {
		case next.hold != "":
			h.settle(now, next.hold, next.actual)
			used += next.actual
			next.hold, next.cost = "", 0
		default:
			if next.cost == 0 {
				next.cost = 200 + rnd.Int64N(1800)
				next.actual = max(1, next.cost*(20+rnd.Int64N(81))/100)
			}
			id := fmt.Sprint("hold-", n)
			if taken, retry := h.hold(now, id, next.cost); taken {
				next.hold = id
				next.at += 5e6 + rnd.Int64N(25e6)
			} else {
				next.at += min(retry, 1e6) // another's settling may come sooner
			}
		}
		heap.Fix(&w, 0)
	}
	return used
}

// storeHolder holds from a key of a store.
type storeHolder struct {
	t   *testing.T
	s   store.Store
	d   *store.Definition
	now *int64
}

func (h storeHolder) call(now int64, ops []store.Op, c *store.HoldCall) *store.Group {
	h.t.Helper()
	*h.now = now
	b := store.Batch{Groups: []store.Group{{Ops: ops, Hold: c}}}
	if err := h.s.Apply(context.Background(), &b); err != nil {
		h.t.Fatal(err)
	}
	if err := b.Groups[0].Err; err != nil {
		h.t.Fatalf("%+v: %v", c, err)
	}
	return &b.Groups[0]
}

func (h storeHolder) hold(now int64, id string, n int64) (bool, int64) {
	g := h.call(now, []store.Op{{Def: h.d, Key: "k", Verb: store.VerbTake, Cost: n, Takes: 1}},
		&store.HoldCall{Verb: store.MakeHold, ID: id, TTL: time.Minute.Microseconds()})
	return g.Allowed, g.Ops[0].Retry
}

func (h storeHolder) settle(now int64, id string, actual int64) {
	h.call(now, nil, &store.HoldCall{Verb: store.SettleHold, ID: id, Costs: []int64{actual}})
}

// ideal is a bucket that remembers every take since it was last full, and counts
// all of them anew, as settled, at each call: as if nobody had ever held more.
type ideal struct {
	rate  int64 // tokens a second
	burst int64
	takes []idealTake // in the order of time
}

type idealTake struct {
	at, n int64
	id    string
}

// used returns millionths of tokens.
func (b *ideal) used(now int64) (used int64) {
	last := int64(0)
	for i, t := range b.takes {
		if used = max(0, used-(t.at-last)*b.rate); used == 0 && i > 0 && b.settledBefore(i) {
			b.takes = slices.Delete(b.takes, 0, i)
			return b.used(now)
		}
		used, last = used+t.n*1e6, t.at
	}
	return max(0, used-(now-last)*b.rate)
}

// settledBefore reports whether the takes before i cannot change any more.
func (b *ideal) settledBefore(i int) bool {
	return !slices.ContainsFunc(b.takes[:i], func(t idealTake) bool { return t.id != "" })
}

func (b *ideal) hold(now int64, id string, n int64) (bool, int64) {
	over := b.used(now) + n*1e6 - b.burst*1e6
	if over > 0 {
		return false, (over + b.rate - 1) / b.rate
	}
	b.takes = append(b.takes, idealTake{now, n, id})
	return true, 0
}

func (b *ideal) settle(_ int64, id string, actual int64) {
	i := slices.IndexFunc(b.takes, func(t idealTake) bool { return t.id == id })
	b.takes[i].n, b.takes[i].id = actual, ""
}

// TestSaturatedByHolds: beside holds that settle to less, the share of the rate that
// is really used is at least 0.97 of that of an ideal counter.
func TestSaturatedByHolds(t *testing.T) {
	const rate, burst = 1000, 20000 // tokens a second, tokens
	for _, count := range []int{20, 60, 200} {
		for seed := range uint64(2) {
			var now int64
			s, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
			if err != nil {
				t.Fatal(err)
			}
			d, err := store.AbilitiesOf(s).Limits.Define(context.Background(), store.Limit{Name: "tokens", Rate: rate, Period: time.Second, Burst: burst}, store.OwnerCode)
			if err != nil {
				t.Fatal(err)
			}
			const length = 5 * time.Minute
			got := saturate(storeHolder{t, s, d, &now}, seed, count, length)
			want := saturate(&ideal{rate: rate, burst: burst}, seed, count, length)
			share := float64(got) / float64(want)
			t.Logf("%d workers, seed %d: %.4f of the ideal, which used %.3f of the rate", count, seed, share, float64(want)/(rate*length.Seconds()+burst))
			if share < 0.97 {
				t.Errorf("%d workers, seed %d: %.4f of the ideal counter", count, seed, share)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
