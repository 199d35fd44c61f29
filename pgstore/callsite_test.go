package pgstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// limiterOf returns a limiter over a store of its own, as of another program.
func limiterOf(t *testing.T, db pgstore.DB, clock *atomic.Int64, limits ...store.Limit) *dipwell.Limiter {
	t.Helper()
	l, err := dipwell.New(newStore(t, db, pgstore.Config{Poll: -1, Clock: clock.Load}), limits...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestCallSitesOfPrograms checks that programs share the definitions of their call
// sites: a row that one has left is counted by the others, and none makes a version.
func TestCallSitesOfPrograms(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	clock := new(atomic.Int64)
	clock.Store(time.Now().UnixMicro())
	api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5}
	site := api
	site.Burst = 20
	one, two := limiterOf(t, pool, clock, api), limiterOf(t, pool, clock)
	if d, err := one.TakeWith(t.Context(), site, "k", 12); err != nil || !d.Allowed || d.Remaining != 8 {
		t.Fatal(d, err)
	}
	// Another program, which has not read the limits since, meets the row.
	if d, err := two.Take(t.Context(), "api", "k", 1); err != nil || d.Allowed {
		t.Errorf("another program: %+v, %v", d, err)
	}
	if d, err := two.TakeAll(t.Context(), dipwell.Take{Limit: "api", Key: "k", Cost: 1}, dipwell.Take{Limit: "api", Key: "l", Cost: 1}); err != nil || d.Allowed {
		t.Errorf("another program, in a group: %+v, %v", d, err)
	}
	var allowed bool
	if err := pool.QueryRow(t.Context(), "select allowed from dipwell.check('api', 'k')").Scan(&allowed); err != nil || allowed {
		t.Error("SQL:", allowed, err)
	}
	same := site
	same.Rate, same.Period = 24, 24*time.Hour
	if d, err := two.TakeWith(t.Context(), same, "k", 8); err != nil || !d.Allowed || d.Remaining != 0 {
		t.Errorf("the same definition, of another program: %+v, %v", d, err)
	}
	if n := number(t, pool, "select count(*) from dipwell.call_sites"); n != 1 {
		t.Errorf("there are %d definitions", n)
	}
	// Another version of the limit has the definition too.
	must(t, pool, "update dipwell.limits set owner = 'sql'")
	must(t, pool, "select dipwell.define('api', 2, interval '1 hour', burst => 5)")
	clock.Add(3600e6)
	for _, l := range []*dipwell.Limiter{one, two} {
		if d, err := l.TakeWith(t.Context(), site, "k", 3); err != nil || d.Allowed {
			t.Errorf("after another version: %+v, %v", d, err)
		}
	}
	if n := number(t, pool, "select count(*) from dipwell.versions"); n != 2 {
		t.Errorf("there are %d versions", n)
	}
	if n := number(t, pool, "select count(*) from dipwell.plans where name = '#0'"); n != 2 {
		t.Errorf("the definition is compiled for %d versions", n)
	}
	for sql, want := range map[string]string{
		"dipwell.override('api', 'k', plan => '#0')":                         `no plan "#0"`,
		"dipwell.drop_plan('api', '#0')":                                     `no plan "#0"`,
		"dipwell.take('api', 'k', plan => '#0')":                             `no plan "#0"`,
		"dipwell.check('api', 'k', plan => '#0')":                            `no plan "#0"`,
		"dipwell.hold('api', 'k', ttl => interval '1 minute', plan => '#0')": `no plan "#0"`,
		"dipwell.take_all(array['api'], array['k'], plans => array['#0'])":   `no plan "#0"`,
	} {
		if _, err := pool.Exec(t.Context(), "select "+sql); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// TestCallSitesEnd checks that at most 256 definitions of call sites are in use, that the
// sweep ends those that no row names, and that none is used again while a program may
// name it.
func TestCallSitesEnd(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	clock := new(atomic.Int64)
	start := time.Now().UnixMicro()
	clock.Store(start)
	api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5}
	l := limiterOf(t, pool, clock, api)
	take := func(burst int64, key string) error {
		site := api
		site.Burst = burst
		d, err := l.TakeWith(t.Context(), site, key, 1)
		if err == nil && (!d.Allowed || d.Remaining != burst-1) {
			t.Errorf("a burst of %d: %+v", burst, d)
		}
		return err
	}
	for burst := int64(10); burst < 10+256; burst++ {
		if err := take(burst, fmt.Sprint("k", burst)); err != nil {
			t.Fatal(burst, err)
		}
	}
	var bad *store.FieldError
	if err := take(1000, "k"); !errors.As(err, &bad) {
		t.Errorf("one more, while rows name 256: %v", err)
	}
	must(t, pool, "delete from dipwell.buckets where key <> 'k10'")
	if err := take(1000, "k"); !errors.As(err, &bad) { // rows are not searched again within a second
		t.Errorf("one more, after a search that is not a second old: %v", err)
	}
	clock.Add(61e6)                         // the search may have taken up to six seconds
	if err := take(1000, "k"); err != nil { // those without rows have ended
		t.Error(err)
	}
	if n := number(t, pool, "select count(*) from dipwell.call_sites where ended is null"); n != 2 {
		t.Errorf("%d are in use", n)
	}
	if err := take(11, "k11"); err != nil { // it is still known here, and the row keeps it
		t.Error(err)
	}
	must(t, pool, fmt.Sprintf("select dipwell_internal.retire(%d)", start+2*60e6))
	if n := number(t, pool, "select count(*) from dipwell.call_sites"); n != 257 {
		t.Errorf("%d are left after a minute", n)
	}
	must(t, pool, fmt.Sprintf("select dipwell_internal.retire(%d)", start+20*60e6))
	if n := number(t, pool, "select count(*) from dipwell.call_sites where ended is null and i in (0, 1, 256)"); n != 3 {
		t.Errorf("%d of 3 that rows name are left", n)
	}
	if n := number(t, pool, "select count(*) from dipwell.call_sites") + number(t, pool, "select count(*) from dipwell.plans"); n != 6 {
		t.Errorf("%d definitions and their rules are left, want 6", n)
	}
	l = limiterOf(t, pool, clock)
	if err := take(12, "k12"); err != nil {
		t.Error(err)
	}
	if n := number(t, pool, "select max(i) from dipwell.call_sites"); n != 257 {
		t.Errorf("the next index is %d", n)
	}
}

// TestCallSitesAtOnce makes the same definitions by many programs at once, while the
// limit is changed: each is made once, and keys grant what they may.
func TestCallSitesAtOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	clock := new(atomic.Int64)
	clock.Store(time.Now().UnixMicro())
	api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5}
	var wg sync.WaitGroup
	var granted atomic.Int64
	limiters := make([]*dipwell.Limiter, 4)
	for i := range limiters {
		limiters[i] = limiterOf(t, pool, clock, api)
	}
	for w, l := range limiters {
		wg.Go(func() {
			for i := range 60 {
				site := api
				site.Burst = 10 + int64((i+w)%20)
				d, err := l.TakeWith(t.Context(), site, "k", 1)
				if err != nil {
					t.Error(err)
					return
				}
				granted.Add(d.Granted)
				if w == 0 && i%10 == 0 {
					must(t, pool, "update dipwell.limits set owner = 'sql'")
					must(t, pool, fmt.Sprintf("select dipwell.define('api', 1, interval '1 hour', burst => %d)", 4+i%3))
				}
			}
		})
	}
	wg.Wait()
	if n := granted.Load(); n > 29 {
		t.Errorf("%d were granted; at most 29", n)
	}
	if n := number(t, pool, "select count(*) from dipwell.call_sites"); n != 20 {
		t.Errorf("there are %d definitions, want 20", n)
	}
}

// TestPortableCallSites checks over portable tables that programs share the definitions
// of their call sites, that at most 256 are in use, that those end which no row and no
// hold names, and that rows under one that has ended are still counted by it.
func TestPortableCallSites(t *testing.T) {
	t.Parallel()
	pool := portablePool(t)
	clock := new(atomic.Int64)
	clock.Store(1e15)
	api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5}
	one, two := limiterOf(t, pool, clock, api), limiterOf(t, pool, clock)
	take := func(l *dipwell.Limiter, burst int64, key string, n, left int64) error {
		t.Helper()
		site := api
		site.Burst = burst
		d, err := l.TakeWith(t.Context(), site, key, n)
		if err == nil && (!d.Allowed || d.Remaining != left) {
			t.Errorf("%d with a burst of %d: %+v", n, burst, d)
		}
		return err
	}
	if err := take(one, 10, "k10", 7, 3); err != nil {
		t.Fatal(err)
	}
	if d, err := two.Take(t.Context(), "api", "k10", 1); err != nil || d.Allowed { // it has not read the limits since
		t.Errorf("another program: %+v, %v", d, err)
	}
	if err := take(two, 10, "k10", 1, 2); err != nil {
		t.Error(err)
	}
	held := api
	held.Burst = 11
	if h, err := two.Hold(t.Context(), time.Hour, "h", dipwell.Take{With: &held, Key: "k11", Cost: 1}); err != nil || !h.Allowed {
		t.Fatal(h, err)
	}
	if n := number(t, pool, "select count(*) from dipwell.versions"); n != 1 {
		t.Errorf("there are %d versions", n)
	}
	for burst := int64(12); burst < 10+256; burst++ {
		if err := take(one, burst, fmt.Sprint("k", burst), 1, burst-1); err != nil {
			t.Fatal(burst, err)
		}
	}
	var bad *store.FieldError
	for range 2 { // the second one does not search the rows again
		if err := take(two, 1000, "k", 1, 999); !errors.As(err, &bad) || bad.Field != "rate" {
			t.Errorf("one more, while rows name 256: %v", err)
		}
	}
	sites := func() (in, ended int) {
		t.Helper()
		var l store.Limit
		var text string
		err := pool.QueryRow(t.Context(), "select call_sites from dipwell.limits").Scan(&text)
		if err == nil {
			err = l.Set("plans", text)
		}
		for _, p := range l.Plans.All() {
			if in++; p.OverrideOnly {
				ended++
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return in, ended
	}
	must(t, pool, "delete from dipwell.buckets where key not in ('k10', 'k11', 'k12')")
	err := take(two, 1000, "k", 1, 999)
	for tries := 0; errors.As(err, &bad) && tries < 1000; tries++ { // calls that are refused without a search do not put it off
		clock.Add(400_000)
		err = take(two, 1000, "k", 1, 999)
	}
	if err != nil {
		t.Error(err)
	}
	if in, ended := sites(); in != 257 || ended != 253 {
		t.Errorf("%d definitions, of which %d have ended; want 257 and 253", in, ended)
	}
	if err := take(one, 13, "k13", 1, 12); err != nil { // one does not know yet that it has ended
		t.Error(err)
	}
	if d, err := two.Check(t.Context(), "api", "k13", 0); err != nil || d.Remaining != 4 {
		t.Errorf("a row under a definition that has ended: %+v, %v", d, err)
	}
}

// TestCallSitesAfterClockBack checks that a search for definitions that no row names does
// not wait for the time of an earlier one, if the clock has stepped back since.
func TestCallSitesAfterClockBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('api', 5, interval '1 hour')")
	fill := `select count(i) from generate_series(1::bigint, $1) n, dipwell.limits l, dipwell_internal.call_site(l.id, 'rate=' || $2 + n, $3) where l.name = 'api'`
	const now = int64(1767225600e6)
	for _, c := range []struct{ calls, rate, at int64 }{{257, 100, now + 2*86400e6}, {255, 1000, now}, {1, 2000, now}} {
		var made int64
		if err := pool.QueryRow(t.Context(), fill, c.calls, c.rate, c.at).Scan(&made); err != nil || made != c.calls {
			t.Errorf("%+v: %d were made, %v", c, made, err)
		}
	}
}
