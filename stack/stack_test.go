package stack_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// service is what dipwell serve puts around a store with its default settings.
var service = stack.Options{Breaker: true, DenyMaxAge: time.Second, Leases: true, Fallback: true}

// remote is a store in memory that has lanes as if it was a server's, and
// remembers which Apply each batch came through.
type remote struct {
	*memstore.Store
	n       int
	crossed *atomic.Pointer[[]string]
	closed  *[]string
	fail    error
}

func newRemote(t testing.TB, now func() int64) *remote {
	t.Helper()
	s, err := memstore.New(memstore.Config{Clock: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &remote{Store: s, crossed: new(atomic.Pointer[[]string]), closed: new([]string)}
}

func (r *remote) Abilities() store.Abilities {
	ab := store.AbilitiesOf(r.Store)
	ab.Store, ab.Quick, ab.InProcess, ab.Lanes = r, nil, false, r.lanes
	return ab
}

func (r *remote) lanes(_ context.Context, n int) (store.Lanes, error) {
	if r.fail != nil {
		return store.Lanes{}, r.fail
	}
	r.n = n
	return store.Lanes{Stores: slices.Repeat([]store.Store{r}, n), Close: func() error {
		*r.closed = append(*r.closed, "lanes")
		return nil
	}}, nil
}

func (r *remote) Apply(ctx context.Context, b *store.Batch) error {
	if r.crossed != nil {
		list := applies()
		r.crossed.Store(&list)
	}
	return r.Store.Apply(ctx, b)
}

// applies are the types whose Apply is on the stack, or the packages of those named Store,
// from the outside in. Coalescing sends a call from a goroutine of its own: then those on
// the stack of the caller, which waits, come first.
func applies() (list []string) {
	text := make([]byte, 1<<20)
	own, others, _ := strings.Cut(string(text[:runtime.Stack(text, true)]), "\n\n")
	if list = appliesIn(own); len(list) > 0 && !strings.Contains(own, "coalesce.(*Store).Apply") {
		for other := range strings.SplitSeq(others, "\n\n") {
			if strings.Contains(other, "coalesce.(*Store).Apply") {
				list = append(appliesIn(other), list...)
			}
		}
	}
	return list
}

// appliesIn reads the stack of one goroutine.
func appliesIn(trace string) (list []string) {
	for line := range strings.Lines(trace) {
		if name, _, ok := strings.Cut(line, ".Apply("); ok && line[0] != '\t' {
			name = name[strings.LastIndexByte(name, '/')+1:]
			list = append(list, strings.NewReplacer(".(*Store)", "", "(*", "", ")", "").Replace(name))
		}
	}
	slices.Reverse(list)
	return list
}

func build(t testing.TB, s store.Store, o stack.Options) *stack.Stack {
	t.Helper()
	st, err := stack.New(context.Background(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

var limit = dipwell.Limit{Name: "login", Rate: 1, Period: time.Hour, Burst: 5}

func take(t testing.TB, s store.Store) dipwell.Decision {
	t.Helper()
	l, err := dipwell.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Take(context.Background(), limit.Name, "user:7", 1)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestCrossings: a call passes what the options ask for, in their order, and
// nothing else.
func TestCrossings(t *testing.T) {
	outer := func(s store.Store) store.Store { return spans{s} }
	for _, tc := range []struct {
		options stack.Options
		want    string
	}{
		{stack.Options{}, "coalesce"},
		{stack.Options{Lanes: -1}, ""},
		{stack.Options{Lanes: -1, DenyMaxAge: time.Second}, "denycache"},
		{service, "away.Fallback lease denycache away.Breaker coalesce"},
		{stack.Options{Breaker: true, DenyMaxAge: time.Second, Leases: true, Fallback: true, KeySecret: make([]byte, 16), Shadow: true, Outer: outer},
			"stack_test.spans stack.shadowStore keyhash away.Fallback lease denycache away.Breaker coalesce"},
	} {
		r := newRemote(t, nil)
		st := build(t, r, tc.options)
		take(t, st.Store)
		if want := strings.Fields(tc.want + " stack_test.remote"); !slices.Equal(*r.crossed.Load(), want) {
			t.Errorf("%+v: a take crosses %v, want %v", tc.options, *r.crossed.Load(), want)
		}
	}
}

// spans is a decorator of the caller's.
type spans struct{ store.Store }

func (s spans) Apply(ctx context.Context, b *store.Batch) error { return s.Store.Apply(ctx, b) }

// TestStore: what every store must do.
func TestStore(t *testing.T) {
	for name, o := range map[string]stack.Options{"zero": {}, "breaker": {Breaker: true, Lanes: 1}} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
				r := newRemote(t, now)
				r.crossed = nil // the stacks of all goroutines at each call would be most of the work
				return build(t, r, o).Store
			}, storetest.Options{Quick: true})
		})
	}
}

// TestStoresWithoutLanes are asked directly: nothing is put around them that
// was not asked for.
func TestStoresWithoutLanes(t *testing.T) {
	s, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if st := build(t, s, stack.Options{}); st.Store != store.Store(s) || st.Lanes != 0 {
		t.Errorf("%T with %d lanes is around a store without", st.Store, st.Lanes)
	}
}

func TestLanes(t *testing.T) {
	for asked, want := range map[int]int{1: 1, 7: 7, 64: 64} {
		r := newRemote(t, nil)
		if st := build(t, r, stack.Options{Lanes: asked}); r.n != want || st.Lanes != want {
			t.Errorf("Lanes %d: %d were opened, and the stack has %d", asked, r.n, st.Lanes)
		}
	}
	r := newRemote(t, nil)
	if st := build(t, r, stack.Options{}); st.Lanes < 2 || st.Lanes > 4 {
		t.Errorf("%d lanes", st.Lanes)
	}
}

func TestBadOptions(t *testing.T) {
	for want, o := range map[string]stack.Options{
		"Lanes 65":     {Lanes: 65},
		"Timeout":      {Timeout: -1},
		"DenyMaxAge":   {DenyMaxAge: 2 * time.Hour},
		"KeySecret":    {KeySecret: []byte("short")},
		"FallbackKeys": {Fallback: true, FallbackKeys: -1},
	} {
		r := newRemote(t, nil)
		st, err := stack.New(context.Background(), r, o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, st, err)
		}
		if opened := r.n > 0; opened != slices.Equal(*r.closed, []string{"lanes"}) {
			t.Errorf("%s: lanes opened: %v, closed: %v", want, opened, *r.closed)
		}
	}
	if _, err := stack.New(context.Background(), nil, stack.Options{}); err == nil {
		t.Error("a store that is nil")
	}
	r := newRemote(t, nil)
	r.fail = errors.New("no connections")
	if _, err := stack.New(context.Background(), r, stack.Options{}); !errors.Is(err, r.fail) {
		t.Error(err)
	}
}

// TestClose: what New opened is closed, once, and the store stays open.
func TestClose(t *testing.T) {
	r := newRemote(t, nil)
	st, err := stack.New(context.Background(), r, stack.Options{Breaker: true, Fallback: true})
	if err != nil {
		t.Fatal(err)
	}
	take(t, st.Store)
	for range 2 {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(*r.closed, []string{"lanes"}) {
		t.Errorf("closed %v", *r.closed)
	}
	take(t, r.Store)
	l, err := dipwell.New(st.Store, limit)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Take(context.Background(), limit.Name, "k", 1); !errors.Is(err, dipwell.ErrStore) {
		t.Errorf("a take after Close: %v", err)
	}
}

// TestOptionsWork: each decorator does what its option says.
func TestOptionsWork(t *testing.T) {
	ctx := context.Background()
	drain := func(s store.Store) (d dipwell.Decision) {
		for range limit.Burst + 2 {
			d = take(t, s)
		}
		return d
	}
	if d := drain(build(t, newRemote(t, nil), stack.Options{DenyMaxAge: time.Minute}).Store); d.Allowed || d.Source != store.SourceDenyCache {
		t.Errorf("deny cache: %+v", d)
	}
	if d := drain(build(t, newRemote(t, nil), stack.Options{Shadow: true}).Store); !d.Allowed || !d.Shadow {
		t.Errorf("shadow: %+v", d)
	}
	r := newRemote(t, nil)
	drain(build(t, r, stack.Options{KeySecret: []byte("0123456789abcdef")}).Store)
	if d := take(t, r); d.Remaining != limit.Burst-1 {
		t.Errorf("the store has the key itself: %+v", d)
	}
	var batches []string
	st := build(t, newRemote(t, nil), stack.Options{OnBatch: func(b *store.Batch, took time.Duration, err error) {
		batches = append(batches, fmt.Sprint(len(b.Groups), took > 0, err))
	}})
	if take(t, st.Store); !slices.Equal(batches, []string{"1 true <nil>"}) {
		t.Errorf("heard of %v", batches)
	}
	away := limit
	away.Name, away.OnStoreError = "away", store.FailLocal
	r = newRemote(t, nil)
	l, err := dipwell.New(build(t, r, stack.Options{Fallback: true}).Store, away)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	if d, err := l.Take(ctx, "away", "k", 1); err != nil || d.Source != store.SourceFallbackLocal {
		t.Errorf("fallback: %+v %v", d, err)
	}
}
