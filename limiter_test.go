package dipwell_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/grpclimit"
	"github.com/dipwell/dipwell/httpclient"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// hangingDefiner is a store with limits that never answers.
type hangingDefiner struct{ reg store.Registry }

func (h *hangingDefiner) Apply(ctx context.Context, _ *store.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}
func (h *hangingDefiner) Abilities() store.Abilities                  { return store.Abilities{Limits: h} }
func (h *hangingDefiner) Registry() *store.Registry                   { return &h.reg }
func (h *hangingDefiner) Drop(ctx context.Context, _, _ string) error { <-ctx.Done(); return ctx.Err() }
func (h *hangingDefiner) Define(ctx context.Context, _ store.Limit, _ string) (*store.Definition, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestNewIsBounded checks that New over a store that hangs returns after 30 seconds,
// whatever the number of limits, and Define when its context ends.
func TestNewIsBounded(t *testing.T) {
	limits := []store.Limit{{Name: "a", Rate: 1, Period: time.Second}, {Name: "b", Rate: 1, Period: time.Second}}
	for bound, build := range map[time.Duration]func() error{
		30 * time.Second: func() error { _, err := dipwell.New(new(hangingDefiner), limits...); return err },
		time.Second: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			l, err := dipwell.New(new(hangingDefiner))
			if err == nil {
				_, err = l.Define(ctx, limits[0], store.OwnerCode)
			}
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			if err := build(); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != bound {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	}
}

// TestNewWithALimitTwice checks that two limits of one name are an error, and that nothing
// is defined.
func TestNewWithALimitTwice(t *testing.T) {
	s, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	limit := dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute}
	_, err = dipwell.New(s, limit, dipwell.Limit{Name: "login", Rate: 50, Period: time.Hour})
	if err == nil || err.Error() != "limit login: name: is given twice" {
		t.Error(err)
	}
	if l, err := dipwell.New(s); err != nil || len(l.Limits()) > 0 {
		t.Errorf("%v, %v", l.Limits(), err)
	}
}

// What a program has forgotten or mistaken is an error where it is given, not a panic or
// an error of each request.
func TestForgotten(t *testing.T) {
	mem, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	l, err := dipwell.New(mem, dipwell.Limit{Name: "a", Rate: 5, Period: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	onServer := func(l *dipwell.Limiter, limit httplimit.Limit, ttl time.Duration) error {
		_, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{limit}, TTL: ttl})
		return err
	}
	onGRPC := func(l *dipwell.Limiter, limit grpclimit.Limit, ttl time.Duration) error {
		_, err := grpclimit.New(l, grpclimit.Config{Limits: []grpclimit.Limit{limit}, TTL: ttl})
		return err
	}
	onClient := func(l *dipwell.Limiter, limit httplimit.Limit) error {
		_, err := httpclient.New(httpclient.Config{Limiter: l, Limits: []httpclient.Limit{limit}})
		return err
	}
	_, noStore := dipwell.New(nil)
	_, noDatabase := pgstore.New(t.Context(), nil, pgstore.Config{})
	_, noClient := redisstore.New(t.Context(), nil, redisstore.Config{})
	_, noOuter := stack.New(t.Context(), mem, stack.Options{Outer: func(store.Store) store.Store { return nil }})
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a limiter without a store":  {noStore, "the store is nil"},
		"a store without a database": {noDatabase, "the database is nil"},
		"a store without a client":   {noClient, "the client is nil"},
		"an outer store":             {noOuter, "nil"},
		"httplimit: a limiter":       {onServer(nil, httplimit.Limit{Name: "a"}, 0), "without a limiter"},
		"httplimit: a name":          {onServer(l, httplimit.Limit{}, 0), "neither Name nor Choose"},
		"httplimit: a floor":         {onServer(l, httplimit.Limit{Name: "a", Floor: -1}, 0), "is negative"},
		"httplimit: a TTL":           {onServer(l, httplimit.Limit{Name: "a"}, time.Nanosecond), "TTL: 1ns is less than 1ms"},
		"grpclimit: a limiter":       {onGRPC(nil, grpclimit.Limit{Name: "a"}, 0), "without a limiter"},
		"grpclimit: a name":          {onGRPC(l, grpclimit.Limit{}, 0), "neither Name nor Choose"},
		"grpclimit: a floor":         {onGRPC(l, grpclimit.Limit{Name: "a", Floor: -1}, 0), "is negative"},
		"grpclimit: a TTL":           {onGRPC(l, grpclimit.Limit{Name: "a"}, -time.Second), "TTL: -1s is less than 1ms"},
		"httpclient: a limiter":      {onClient(nil, httplimit.Limit{Name: "a"}), "without a limiter"},
		"httpclient: a name":         {onClient(l, httplimit.Limit{}), "neither Name nor Choose"},
		"httpclient: a floor":        {onClient(l, httplimit.Limit{Name: "a", Floor: -1}), "is negative"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, c.err, c.want)
		}
	}
}

// TestTakeAllAddsCostsOfOneLimit checks that the costs of two takes are added if their
// limits have different fields but mean the same.
func TestTakeAllAddsCostsOfOneLimit(t *testing.T) {
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st)
	if err != nil {
		t.Fatal(err)
	}
	of := func(l store.Limit, n int64) dipwell.Take {
		return dipwell.Take{Limit: l.Name, With: &l, Key: "k", Cost: n}
	}
	old := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}
	other := old
	other.MaxDebt, other.MaxCharge = 10, 100 // the defaults
	d, err := l.TakeAll(t.Context(), of(old, 4), of(other, 3))
	if err != nil || !d.Allowed || d.Remaining != 3 {
		t.Errorf("4 and 3 of 10: %+v, %v", d.Limits, err)
	}
	if d, err = l.TakeAll(t.Context(), of(old, 2), of(other, 2)); err != nil || d.Allowed {
		t.Errorf("2 and 2 of 3 were granted: %+v, %v", d.Limits, err)
	}
}

// TestDoResetsTheDecision checks that nothing of an earlier call remains in a Decision
// that is reused.
func TestDoResetsTheDecision(t *testing.T) {
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 2, MaxDebt: 10})
	if err != nil {
		t.Fatal(err)
	}
	var d dipwell.Decision
	for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbReset} {
		if err := l.DoAll(t.Context(), &d, store.VerbReserve, []dipwell.Take{{Limit: "api", Key: "k", Cost: 3}}); err != nil || d.Reservation == (store.Reservation{}) {
			t.Fatalf("%+v, %v", d, err)
		}
		if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: "api", Key: "k", Cost: 1}); err != nil || d.Reservation != (store.Reservation{}) || d.Limits != nil {
			t.Errorf("%v: reservation %v and %d limits, %v", verb, d.Reservation, len(d.Limits), err)
		}
	}
}

// TestNoVerb checks that a number that is no verb is an error, and charges nothing. The
// rule would take it for a charge.
func TestNoVerb(t *testing.T) {
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5}, store.Limit{Name: "all", Rate: 1, Period: time.Hour, Burst: 5, Shared: true},
		store.Limit{Name: "user", Parent: "all", Rate: 1, Period: time.Hour, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"api", "user"} {
		take := dipwell.Take{Limit: limit, Key: "k", Cost: 2}
		for _, verb := range []store.Verb{store.VerbReset + 1, 255} {
			var d dipwell.Decision
			for how, err := range map[string]error{"Do": l.Do(t.Context(), &d, verb, take), "DoAll": l.DoAll(t.Context(), &d, verb, []dipwell.Take{take})} {
				if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || !strings.HasSuffix(field.Field, "verb") {
					t.Errorf("%s of %s with verb %d: %v", how, limit, verb, err)
				}
			}
		}
		if d, err := l.Check(t.Context(), limit, "k", 0); err != nil || d.Remaining != 5 {
			t.Errorf("%s: %d left, %v", limit, d.Remaining, err)
		}
	}
}

// hangingStore never answers.
type hangingStore struct{}

func (hangingStore) Apply(ctx context.Context, _ *store.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestWithNil checks that With of a nil store panics at once, with a text, rather than in
// a later call.
func TestWithNil(t *testing.T) {
	l, err := dipwell.New(hangingStore{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if got := recover(); got != "dipwell: Limiter.With: the store is nil" {
			t.Errorf("panic %v", got)
		}
	}()
	l.With(nil)
}

// TestWithKeepsTheTimeout checks that With applies timeouts to another store, although
// a store in memory needs none.
func TestWithKeepsTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		l, err := dipwell.New(st, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if d, err := l.With(hangingStore{}).Take(ctx, "api", "k", 1); !errors.Is(err, store.ErrStore) || d.Allowed || time.Since(start) != time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(start), d, err)
		}
	})
}

// TestWaitsLongerThanADuration checks that a wait beyond the range of Duration is not
// negative. It takes a clock that steps back by decades and a limit with a long debt.
func TestWaitsLongerThanADuration(t *testing.T) {
	now := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, store.Limit{Name: "slow", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 1, MaxCharge: 280})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Charge(t.Context(), "slow", "k", 280); err != nil || d.ResetAfter < 279*365*24*time.Hour {
		t.Fatal(d, err)
	}
	now = 0
	for _, verb := range []store.Verb{store.VerbTake, store.VerbReserve} {
		var d dipwell.Decision
		if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: "slow", Key: "k", Cost: 1}); err != nil || d.Allowed || d.RetryAfter <= 0 || d.ResetAfter <= 0 {
			t.Errorf("%v: retry after %v, reset after %v, %v", verb, d.RetryAfter, d.ResetAfter, err)
		}
	}
}

// TestShortestTimeoutOfSeveral checks that a call of several limits has the shortest
// of their timeouts.
func TestShortestTimeoutOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := dipwell.New(hangingStore{},
			store.Limit{Name: "long", Rate: 1, Period: time.Hour, Timeout: 3 * time.Second},
			store.Limit{Name: "short", Rate: 1, Period: time.Hour, Timeout: time.Second},
			store.Limit{Name: "none", Rate: 1, Period: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for _, names := range [][]string{{"long", "short", "none"}, {"none", "short", "long"}} {
			var takes []dipwell.Take
			for _, n := range names {
				takes = append(takes, dipwell.Take{Limit: n, Key: "k", Cost: 1})
			}
			start := time.Now()
			if d, err := l.TakeAll(t.Context(), takes...); !errors.Is(err, store.ErrStore) || d.Allowed || time.Since(start) != time.Second {
				t.Errorf("%v: after %v: %+v, %v", names, time.Since(start), d, err)
			}
		}
	})
}

// A limitedLog limits its lines by a limit that is written where it is used.
type limitedLog struct {
	slog.Handler
	allow func() bool
}

func (h limitedLog) Handle(ctx context.Context, r slog.Record) error {
	if !h.allow() {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// TestTakeWithInLog logs the difference of a call site to a log whose lines are limited by
// another call site.
func TestTakeWithInLog(t *testing.T) {
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, store.Limit{Name: "api", Rate: 1, Period: time.Hour}, store.Limit{Name: "log", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	takes := func(name string) bool {
		d, err := l.TakeWith(t.Context(), store.Limit{Name: name, Rate: 2, Period: time.Hour}, "k", 1)
		return err == nil && d.Allowed
	}
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(limitedLog{slog.NewTextHandler(&log, nil), func() bool { return takes("log") }}))
	if !takes("api") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("logged: %s", log.String())
	}
}

// TestTakeWithOther checks that the limit in force decides where a call writes it otherwise,
// that this is logged once, and that an invalid limit is an error.
func TestTakeWithOther(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 2})}
	l, err := dipwell.New(st, api)
	if err != nil {
		t.Fatal(err)
	}
	var granted int64
	for i := range int64(60) {
		site := store.Limit{Name: "api", Rate: 1 + i%20, Period: time.Hour, Burst: 10 + 100*(i%3)}
		d, err := l.TakeWith(t.Context(), site, "k", 1)
		if err != nil || d.Capacity != 10 || d.Plan != "" {
			t.Fatalf("with %+v: %+v, %v", site, d, err)
		}
		granted += d.Granted
	}
	if granted != 10 {
		t.Errorf("%d were granted, want the burst in force, 10", granted)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "limit api") || !strings.Contains(text, "in force") {
		t.Errorf("logged: %s", text)
	}
	var field *dipwell.FieldError
	if _, err = l.TakeWith(t.Context(), store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 1 << 53}, "k", 1); !errors.As(err, &field) || field.Field != "burst" {
		t.Errorf("an invalid limit: %v", err)
	}
	if d, err := l.TakeAll(t.Context(), dipwell.Take{With: &api, Key: "k", Plan: "pro"}); err != nil || d.Plan != "pro" {
		t.Errorf("with a plan: %+v, %v", d, err)
	}
}

// tree is a limiter with users inside tenants inside one global limit, and a clock
// that stands still.
func tree(t *testing.T, more ...dipwell.Limit) *dipwell.Limiter {
	t.Helper()
	st, err := memstore.New(memstore.Config{MaxKeys: 1000, Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	l, err := dipwell.New(st, append([]dipwell.Limit{
		{Name: "user", Rate: 5, Period: time.Minute, Parent: "tenant"},
		{Name: "tenant", Rate: 8, Period: time.Minute, Parent: "global", MaxDebt: dipwell.NoDebt},
		{Name: "global", Rate: 10, Period: time.Minute, Shared: true},
		{Name: "alone", Rate: 2, Period: time.Minute},
	}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// left returns what is free at each level of a user.
func left(t *testing.T, l *dipwell.Limiter, key string) (out [3]int64) {
	t.Helper()
	d, err := l.Check(t.Context(), "user", key, 0)
	if err != nil || len(d.Limits) != 3 {
		t.Fatal(d, err)
	}
	for i := range out {
		out[i] = d.Limits[i].Remaining
	}
	return out
}

func TestParentsTakeTogether(t *testing.T) {
	l := tree(t)
	key := dipwell.Key("acme", "u/7")
	steps := []struct {
		verb    store.Verb
		key     string
		n       int64
		allowed bool
		top     string // the limit that decides
		granted int64
		left    [3]int64 // of acme/u%2F7
	}{
		{store.VerbTake, key, 3, true, "user", 3, [3]int64{2, 5, 7}},
		{store.VerbTake, key, 3, false, "user", 0, [3]int64{2, 5, 7}},
		{store.VerbTake, "acme/b", 5, true, "user", 5, [3]int64{2, 0, 2}},
		{store.VerbTake, key, 1, false, "tenant", 0, [3]int64{2, 0, 2}},
		{store.VerbTakeUpTo, "other/c", 5, true, "global", 2, [3]int64{2, 0, 0}},
		{store.VerbTakeUpTo, "other/c", 5, false, "global", 0, [3]int64{2, 0, 0}},
		{store.VerbRefund, "acme/b", 4, true, "user", 0, [3]int64{2, 4, 4}},
		{store.VerbCheck, key, 2, true, "user", 0, [3]int64{2, 4, 4}},
		{store.VerbCharge, key, 4, true, "user", 4, [3]int64{0, 0, 0}},
		{store.VerbReset, key, 0, true, "user", 0, [3]int64{5, 0, 0}},
	}
	for i, s := range steps {
		var d dipwell.Decision
		err := l.Do(t.Context(), &d, s.verb, dipwell.Take{Limit: "user", Key: s.key, Cost: s.n})
		if err != nil || d.Allowed != s.allowed || d.Limit != s.top || d.Granted != s.granted && s.verb != store.VerbRefund {
			t.Errorf("step %d: %+v, %v", i, d, err)
		}
		if s.verb != store.VerbReset && (len(d.Limits) != 3 || d.Limits[0].Limit != "user" || d.Limits[1].Limit != "tenant" || d.Limits[2].Limit != "global" || d.Limits[2].Key != "") {
			t.Errorf("step %d: limits %+v", i, d.Limits)
		}
		if got := left(t, l, key); got != s.left {
			t.Errorf("step %d leaves %v, want %v", i, got, s.left)
		}
	}
}

// TestTakesOfOneParent checks that a parent that several takes share is asked once, for
// the sum of their costs, and that it is listed after the takes.
func TestTakesOfOneParent(t *testing.T) {
	l := tree(t)
	take := func(limit, key string, n int64) dipwell.Take {
		return dipwell.Take{Limit: limit, Key: key, Cost: n}
	}
	d, err := l.TakeAll(t.Context(), take("user", "acme/a", 4), take("alone", "x", 1), take("user", "acme/b", 5))
	if err != nil || d.Allowed || d.Limit != "tenant" || d.Never != true || d.Cost != 9 {
		t.Errorf("9 of 8: %+v, %v", d, err)
	}
	d, err = l.TakeAll(t.Context(), take("user", "acme/a", 3), take("alone", "x", 1), take("user", "acme/b", 4))
	var got []string
	for _, e := range d.Limits {
		got = append(got, e.Limit+":"+e.Key)
	}
	if err != nil || !d.Allowed || strings.Join(got, " ") != "user:acme/a alone:x user:acme/b tenant:acme global:" ||
		d.Limits[3].Cost != 7 || d.Limits[3].Remaining != 1 || d.Limits[2].Granted != 4 {
		t.Errorf("%s: %+v, %v", got, d, err)
	}
	// The parent is charged with its child, so it cannot be a take too.
	for i, takes := range [][]dipwell.Take{{take("user", "b/a", 1), take("global", dipwell.Shared, 1)}, {take("tenant", "b", 1), take("alone", "x", 1), take("user", "b/a", 1)}} {
		_, err = l.TakeAll(t.Context(), takes...)
		if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || field.Field != fmt.Sprintf("takes[%d].limit", 2*i) || !strings.Contains(field.Reason, "is above limit user") {
			t.Errorf("%v: %v", takes, err)
		}
	}
	if d, err = l.Check(t.Context(), "user", "b/a", 0); err != nil || d.Limits[0].Remaining != 5 || d.Limits[1].Remaining != 8 {
		t.Errorf("charged: %+v, %v", d, err)
	}
}

func TestPathErrors(t *testing.T) {
	l := tree(t, dipwell.Limit{Name: "region", Rate: 1, Period: time.Minute, Parts: 2}, dipwell.Limit{Name: "site", Rate: 1, Period: time.Minute, Parent: "region"})
	for _, c := range []struct{ limit, key, reason string }{
		{"user", "acme", "has 1 part; "},
		{"user", "acme/u/7", "has 3 parts"},
		{"user", "acme/", "is empty"},
		{"user", "/u7", "is empty"},
		{"user", dipwell.Shared, "is missing"},
		{"user", "", "is empty"},
		{"global", "k", "is shared"},
		{"region", "eu", "has 1 part; "},
		{"site", "eu/west", "has 2 parts"},
	} {
		for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbReset, store.VerbCharge} {
			var d dipwell.Decision
			var field *dipwell.FieldError
			if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: c.limit, Key: c.key, Cost: 1}); !errors.As(err, &field) || field.Field != "key" || !strings.Contains(field.Reason, c.reason) {
				t.Errorf("%s of %s %q: %v", verb, c.limit, c.key, err)
			}
		}
		var d dipwell.Decision
		var field *dipwell.FieldError
		if err := l.DoAll(t.Context(), &d, store.VerbTake, []dipwell.Take{{Limit: "alone", Key: "k"}, {Limit: c.limit, Key: c.key}}); !errors.As(err, &field) || field.Field != "takes[1].key" {
			t.Errorf("in a list: %v", err)
		}
	}
	if d, err := l.Take(t.Context(), "site", "eu/west/1", 1); err != nil || !d.Allowed || d.Limits[1].Key != "eu/west" {
		t.Error(d, err)
	}
	if _, err := l.TakeWith(t.Context(), *limitOf(l, "user"), "acme", 1); err == nil {
		t.Error("TakeWith takes a key that is no path")
	}
	if got := left(t, l, "acme/u7"); got != [3]int64{5, 8, 10} {
		t.Errorf("something was taken: %v", got)
	}
}

func limitOf(l *dipwell.Limiter, name string) *dipwell.Limit { return &l.Limit(name).Limit }

// TestTooManyLevels checks that takes and parents are at most 16 ops. More are the fault of
// all takes, as in SQL, and not of the one at which they become too many.
func TestTooManyLevels(t *testing.T) {
	l := tree(t)
	var takes []dipwell.Take
	for _, c := range "abcdefg" {
		takes = append(takes, dipwell.Take{Limit: "user", Key: string(c) + "/u"})
	}
	if d, err := l.TakeAll(t.Context(), takes...); err != nil || len(d.Limits) != 15 {
		t.Errorf("15 ops: %d, %v", len(d.Limits), err)
	}
	var field *dipwell.FieldError
	if _, err := l.TakeAll(t.Context(), append(takes, dipwell.Take{Limit: "user", Key: "h/u"})...); !errors.As(err, &field) || field.Field != "takes" {
		t.Errorf("17 ops: %v", err)
	}
}

// TestReserveWithParents checks that a reservation waits for the level that is due last.
func TestReserveWithParents(t *testing.T) {
	l := tree(t, dipwell.Limit{Name: "team", Rate: 60, Period: time.Minute, Burst: 1, Shared: true}, dipwell.Limit{Name: "member", Rate: 60, Period: time.Minute, Burst: 9, Parent: "team"})
	if d, err := l.Reserve(t.Context(), "member", "m", 1); err != nil || !d.Allowed || d.Delay != 0 {
		t.Fatal(d, err)
	}
	d, err := l.Reserve(t.Context(), "member", "m", 1)
	if err != nil || !d.Allowed || d.Delay != time.Second || d.Reservation == (dipwell.Reservation{}) {
		t.Errorf("%+v, %v", d, err)
	}
	if err := l.Cancel(t.Context(), d.Reservation); err != nil {
		t.Error(err)
	}
	if d, err = l.Check(t.Context(), "member", "m", 0); err != nil || d.Limits[0].Remaining != 8 || d.Limits[1].Remaining != 0 {
		t.Errorf("after Cancel: %+v, %v", d, err)
	}
}

// TestPlanAndFloorOfOneLevel checks that a plan, a floor and an override mean the limit
// that is named, and that an unlimited plan frees its own level only.
func TestPlanAndFloorOfOneLevel(t *testing.T) {
	l := tree(t, dipwell.Limit{Name: "seat", Rate: 3, Period: time.Minute, Parent: "tenant", Plans: dipwell.NewPlans(
		dipwell.Plan{Name: "free", Mode: dipwell.Unlimited}, dipwell.Plan{Name: "wide", Burst: 7})})
	do := func(verb store.Verb, n int64, plan string, floor int64, allowed bool, seat, tenant int64) {
		t.Helper()
		var d dipwell.Decision
		err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: "seat", Key: "acme/1", Cost: n, Plan: plan, Floor: floor})
		if err != nil || d.Allowed != allowed || len(d.Limits) != 3 || d.Limits[0].Remaining != seat || d.Limits[1].Remaining != tenant || d.Limits[0].Plan != plan || d.Limits[1].Plan != "" {
			t.Errorf("%s %d of plan %q with a floor of %d: %+v, %v", verb, n, plan, floor, d, err)
		}
	}
	do(store.VerbTake, 2, "", 2, false, 3, 8)
	do(store.VerbTake, 1, "", 2, true, 2, 7) // the tenant has no floor
	do(store.VerbTake, 4, "wide", 0, true, 2, 3)
	do(store.VerbTake, 1, "free", 0, true, store.MaxInt, 2)
	do(store.VerbTakeUpTo, 9, "free", 0, true, store.MaxInt, 0)
	do(store.VerbTake, 1, "free", 0, false, store.MaxInt, 0)
	if _, err := l.SetOverride(t.Context(), "seat", dipwell.Override{Key: "acme", Plan: "free"}); err == nil {
		t.Error("an override of a key that is no seat's")
	}
	if _, err := l.SetOverride(t.Context(), "seat", dipwell.Override{Key: "acme/1", Plan: "free"}); err != nil {
		t.Error(err)
	}
	if d, err := l.Take(t.Context(), "seat", "acme/1", 1); err != nil || d.Allowed || d.Limit != "tenant" || d.Limits[0].Plan != "free" {
		t.Errorf("an override of one level: %+v, %v", d, err)
	}
}

// TestReserveToldBySlowerPlan shows what the promise for several plans leaves out. A
// Reserve by a slow plan is told a time. If a call by a faster plan moves the key to that
// plan meanwhile, the debt comes back sooner, but the reservation still waits until its
// time: just then others may take a full burst beside it. The documentation says so; if
// this test fails, the promise holds without the exception, and the sentence can go.
func TestReserveToldBySlowerPlan(t *testing.T) {
	now := int64(1e15)
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, dipwell.Limit{Name: "api", Rate: 100, Period: time.Second, Burst: 10, MaxDebt: 10,
		Plans: dipwell.NewPlans(dipwell.Plan{Name: "slow", Rate: 1, Burst: 10})})
	if err != nil {
		t.Fatal(err)
	}
	reserve := func(plan string, n int64) dipwell.Decision {
		var d dipwell.Decision
		if err := l.Do(t.Context(), &d, store.VerbReserve, dipwell.Take{Limit: "api", Key: "k", Cost: n, Plan: plan}); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		return d
	}
	reserve("slow", 10)
	due := now + reserve("slow", 10).Delay.Microseconds()
	if due != now+10e6 {
		t.Fatalf("due after %d µs", due-now)
	}
	now += 1e6
	reserve("", 1) // by the limit itself: the key comes back at 100 a second from now on
	now = due - 1000
	d, err := l.Take(t.Context(), "api", "k", 10)
	if err != nil {
		t.Fatal(err)
	}
	// Within 1 ms the 10 of this call and the 10 that were reserved act; 10.1 were promised.
	if !d.Allowed {
		t.Error("the burst is withheld for the reservation: the exception is gone")
	}
}

// upstream is an adaptive limit: 50 to 500 a second.
var upstream = dipwell.Limit{Name: "upstream", Rate: 500, Period: time.Second, Burst: 50, Shared: true,
	Adaptive: dipwell.Adaptive{Floor: 50, Latency: 200 * time.Millisecond, Errors: 0.02}}

func newUpstream(t *testing.T) *dipwell.Limiter {
	t.Helper()
	mem, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close() })
	l, err := dipwell.New(mem, upstream, dipwell.Limit{Name: "fixed", Rate: 7, Period: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// second makes a call each millisecond for a second, each with that latency, and returns how
// many were allowed.
func second(t *testing.T, l *dipwell.Limiter, latency time.Duration) (allowed int) {
	t.Helper()
	for range 1000 {
		time.Sleep(time.Millisecond)
		d, err := l.Take(t.Context(), "upstream", dipwell.Shared, 1)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			if !d.RetryIsBound || d.RetryAfter <= 0 {
				t.Fatalf("%+v", d)
			}
			continue
		}
		allowed++
		if err = l.Observe("upstream", latency, true, 1); err != nil {
			t.Fatal(err)
		}
	}
	return allowed
}

// The rate falls while calls are slow, and grows while they are not and little remains. So
// many calls are then allowed. With has the same rate.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newUpstream(t)
		wants := func(low, high int64, why string) {
			t.Helper()
			rate, reason, _ := l.With(l.Store()).PresentRate("upstream")
			if rate < low || rate > high || reason != why {
				t.Errorf("%d because of %s; want %d to %d because of %s", rate, reason, low, high, why)
			}
		}
		wants(500, 500, "defined")
		if n := second(t, l, 0); n < 540 || n > 560 {
			t.Errorf("%d allowed at the full rate", n)
		}
		for range 25 {
			second(t, l, time.Second)
		}
		wants(50, 51, "latency")
		if n := second(t, l, time.Second); n < 48 || n > 53 {
			t.Errorf("%d allowed at the floor", n)
		}
		for range 10 {
			second(t, l, time.Millisecond)
		}
		wants(100, 165, "used")
		time.Sleep(10 * time.Minute)
		wants(500, 500, "unobserved")
	})
}

// Decisions have the capacity and what remains at the present price, at least 1 if the
// bucket is full.
func TestPrice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newUpstream(t)
		ask := func(verb string, n, remaining, capacity int64, allowed bool) {
			t.Helper()
			do := l.Take
			if verb == "check" {
				do = l.Check
			}
			d, err := do(t.Context(), "upstream", dipwell.Shared, n)
			if err != nil || d.Allowed != allowed || d.Remaining != remaining || d.Capacity != capacity {
				t.Fatalf("%s %d: %+v, %v; want %v, %d of %d", verb, n, d, err, allowed, remaining, capacity)
			}
		}
		ask("check", 0, 50, 50, true)
		for range 30 {
			if err := l.Observe("upstream", time.Second, true, 100); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		ask("check", 0, 5, 5, true) // 103/1024
		ask("take", 2, 3, 5, true)
		ask("take", 4, 3, 5, false)
		ask("check", 3, 3, 5, true)
		time.Sleep(time.Second)
		ask("take", 50, 0, 5, true) // one call whenever it is full
		d, err := l.Take(t.Context(), "upstream", dipwell.Shared, 51)
		if err != nil || d.Allowed || !d.Never {
			t.Fatalf("%+v, %v", d, err)
		}
		if d, err = l.Reset(t.Context(), "upstream", dipwell.Shared); err != nil || d.Remaining != 50 {
			t.Fatalf("%+v, %v", d, err)
		}
		if err = l.DoWait(t.Context(), &d, []dipwell.Take{{Limit: "upstream", Key: dipwell.Shared, Cost: 5}}, time.Second); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		began := time.Now()
		if err = l.DoWait(t.Context(), &d, []dipwell.Take{{Limit: "upstream", Key: dipwell.Shared, Cost: 5}}, time.Second); err != nil || !d.Allowed || time.Since(began) < 98*time.Millisecond {
			t.Fatalf("%+v after %v, %v", d, time.Since(began), err)
		}
	})
}

func TestObserveBadInput(t *testing.T) {
	l := newUpstream(t)
	for name, c := range map[string]struct {
		err   error
		field string
	}{
		"not adaptive": {l.Observe("fixed", 0, true, 1), "limit"},
		"negative":     {l.Observe("upstream", -1, true, 1), "latency_us"},
		"none":         {l.Observe("upstream", 1, true, 0), "count"},
		"too many":     {l.Observe("upstream", 1, true, 1<<41), "count"},
	} {
		if bad, ok := errors.AsType[*dipwell.FieldError](c.err); !ok || bad.Field != c.field {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if err := l.Observe("nobody's", 0, true, 1); !errors.Is(err, dipwell.ErrUnknownLimit) {
		t.Error(err)
	}
	if rate, reason, changed := l.PresentRate("fixed"); rate != 7 || reason != "" || !changed.IsZero() {
		t.Errorf("%d, %s, %v", rate, reason, changed)
	}
	if rate, _, _ := l.PresentRate("nobody's"); rate != 0 {
		t.Error(rate)
	}
	if _, err := l.Reserve(t.Context(), "upstream", "k", 1); err == nil {
		t.Error("a reservation of an adaptive limit")
	}
	if _, err := l.TakeUpTo(t.Context(), "upstream", "k", 1); err == nil {
		t.Error("a take_up_to of an adaptive limit")
	}
	if _, err := l.Hold(t.Context(), time.Second, "", dipwell.Take{Limit: "upstream", Key: "k", Cost: 1}); err == nil {
		t.Error("a hold of an adaptive limit")
	}
}
