package dipwell_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// upstream is an adaptive limit: 250 a second at first, from 50 to 500.
var upstream = dipwell.Limit{Name: "upstream", Rate: 250, Period: time.Second, Burst: 50,
	Adaptive: dipwell.Adaptive{Floor: 50, Ceiling: 500, Latency: 200 * time.Millisecond, Errors: 0.02}}

// observed is a store that counts the calls of its Observe, which may fail.
type observed struct {
	store.Store
	mu   sync.Mutex
	got  []store.Observation
	fail error
	hang bool // it answers nothing
}

func (o *observed) Abilities() store.Abilities {
	ab := store.AbilitiesOf(o.Store)
	inner := ab.Observe
	ab.Observe = func(ctx context.Context, d *store.Definition, s store.Observation) error {
		o.mu.Lock()
		o.got = append(o.got, s)
		fail := o.fail
		hang := o.hang
		o.mu.Unlock()
		if hang {
			<-ctx.Done()
			return ctx.Err()
		}
		if fail != nil {
			return fail
		}
		return inner(ctx, d, s)
	}
	return ab
}

func newObserved(t *testing.T) (*observed, *dipwell.Limiter) {
	t.Helper()
	mem, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close() })
	o := &observed{Store: mem}
	l, err := dipwell.New(o, upstream, dipwell.Limit{Name: "fixed", Rate: 1, Period: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return o, l
}

// Calls are counted in the process, with the tokens that were taken, and sent four times a
// window.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, l := newObserved(t)
		observe := func(latency time.Duration, ok bool) {
			t.Helper()
			if err := l.Observe(t.Context(), "upstream", latency, ok, 1); err != nil {
				t.Fatal(err)
			}
		}
		observe(time.Second, true)
		for range 30 {
			if d, err := l.Take(t.Context(), "upstream", dipwell.Shared, 1); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			observe(200*time.Millisecond, true)
		}
		if err := l.Observe(t.Context(), "upstream", 201*time.Millisecond, false, 10); err != nil {
			t.Fatal(err)
		}
		if len(o.got) != 0 {
			t.Fatalf("sent at once: %v", o.got)
		}
		time.Sleep(250 * time.Millisecond)
		observe(0, false)
		if want := (store.Observation{Count: 42, Slow: 11, Failed: 11, Taken: 30}); len(o.got) != 1 || o.got[0] != want {
			t.Fatalf("%+v; want %+v", o.got, want)
		}
		observe(0, true)
		if len(o.got) != 1 {
			t.Fatalf("sent again: %v", o.got)
		}
	})
}

// The rate falls while calls are slow, and grows while they are not and the limit is used.
// Decisions say what it is, and why.
func TestObserveMovesTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := newObserved(t)
		second := func(latency time.Duration) {
			for range 100 {
				time.Sleep(10 * time.Millisecond)
				if _, err := l.TakeUpTo(t.Context(), "upstream", dipwell.Shared, 10); err != nil {
					t.Fatal(err)
				}
				if err := l.Observe(t.Context(), "upstream", latency, true, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		says := func() (out struct {
			Rate   int64  `json:"rate"`
			Reason string `json:"rate_reason"`
		}) {
			t.Helper()
			d, err := l.Check(t.Context(), "upstream", dipwell.Shared, 1)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := json.Marshal(d)
			if err = json.Unmarshal(b, &out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		if s := says(); s.Rate != 250 || s.Reason != "defined" {
			t.Errorf("%+v", s)
		}
		for range 10 {
			second(time.Second)
		}
		if s := says(); s.Rate > 150 || s.Rate < 50 || s.Reason != "latency" {
			t.Errorf("%+v after 10 slow seconds", s)
		}
		for range 60 {
			second(time.Millisecond)
		}
		if s := says(); s.Rate < 450 || s.Reason != "used" {
			t.Errorf("%+v after 60 good seconds", s)
		}
		time.Sleep(time.Minute)
		if s := says(); s.Rate != 250 || s.Reason != "unobserved" {
			t.Errorf("%+v after a minute without calls", s)
		}
		if d, err := l.Check(t.Context(), "fixed", "k", 1); err != nil {
			t.Error(err)
		} else if b, _ := json.Marshal(d); strings.Contains(string(b), "rate_reason") {
			t.Errorf("a limit that is not adaptive: %s", b)
		}
	})
}

func TestObserveBadInput(t *testing.T) {
	o, l := newObserved(t)
	for name, c := range map[string]struct {
		err   error
		field string
	}{
		"not adaptive": {l.Observe(t.Context(), "fixed", 0, true, 1), "limit"},
		"negative":     {l.Observe(t.Context(), "upstream", -1, true, 1), "latency_us"},
		"none":         {l.Observe(t.Context(), "upstream", 1, true, 0), "count"},
		"too many":     {l.Observe(t.Context(), "upstream", 1, true, 1<<41), "count"},
	} {
		if bad, ok := errors.AsType[*dipwell.FieldError](c.err); !ok || bad.Field != c.field {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if err := l.Observe(t.Context(), "nobody's", 0, true, 1); !errors.Is(err, dipwell.ErrUnknownLimit) {
		t.Error(err)
	}
	if len(o.got) > 0 {
		t.Error(o.got)
	}
	var bad *dipwell.FieldError
	if _, err := dipwell.New(bare{o.Store}, upstream); !errors.As(err, &bad) || bad.Field != "adaptive" {
		t.Errorf("a store that cannot observe: %v", err)
	}
}

// bare has no abilities.
type bare struct{ store.Store }

// Counts that the store did not get are lost; the next ones are sent.
func TestObserveFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, l := newObserved(t)
		o.fail = store.ErrStore
		for i := range 4 {
			err := l.Observe(t.Context(), "upstream", 0, true, 1)
			if sent := i > 0; sent != errors.Is(err, dipwell.ErrStore) {
				t.Errorf("call %d: %v", i, err)
			}
			time.Sleep(time.Second)
		}
		if len(o.got) != 3 || o.got[0].Count != 2 || o.got[2].Count != 1 {
			t.Errorf("%+v", o.got)
		}
	})
}

// A store that does not answer keeps no caller longer than the timeout of the limit, or
// else a second, as in a handler whose response ends with the observation.
func TestObserveHangs(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{0: time.Second, 50 * time.Millisecond: 50 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			o, l := newObserved(t)
			o.hang = true
			slow := upstream
			slow.Timeout = timeout
			if _, err := l.Define(t.Context(), slow, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
			_ = l.Observe(t.Context(), "upstream", 0, true, 1)
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			if err := l.Observe(ctx, "upstream", 0, true, 1); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != want {
				t.Errorf("%v after %v; want %v", err, time.Since(start), want)
			}
		})
	}
}
