package rls_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/memstore"
)

// The steps and numbers of envoyproxy/ratelimit's integration test of its local
// cache, with ChargeAll and all or nothing.
func TestLocalCacheCounts(t *testing.T) {
	const another = `
domain: another
descriptors:
  - {key: key2_local, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: key3_local, rate_limit: {unit: hour, requests_per_unit: 10}}
`
	const basic = "domain: basic\ndescriptors: [{key: key1_local, rate_limit: {unit: second, requests_per_unit: 50}}]"
	for name, chargeAll := range map[string]bool{"charge all": true, "all or nothing": false} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t}
			w.now.Store(noon)
			inner, err := memstore.New(memstore.Config{Clock: w.now.Load})
			if err != nil {
				t.Fatal(err)
			}
			cache, err := denycache.New(inner, denycache.Config{Clock: w.now.Load})
			if err != nil {
				t.Fatal(err)
			}
			w.over(cache, rls.Config{})
			w.use(rls.Defaults{ChargeAll: chargeAll}, basic, another)
			want := func(step string, i, hits, misses int, counts map[string]int) {
				t.Helper()
				of := map[string]int{}
				for _, m := range cache.Abilities().Metrics() {
					of[m.Name] = int(m.Value)
				}
				if h, m := of["dipwell_deny_cache_hits_total"], of["dipwell_deny_cache_misses_total"]; h != hits || m != misses {
					t.Errorf("%s %d: %d hits and %d misses, want %d and %d", step, i, h, m, hits, misses)
				}
				got := counted(t, w)
				for name, n := range counts {
					if int(got[name]) != n {
						t.Errorf("%s %d: %s is %v, want %d", step, i, name, got[name], n)
					}
				}
			}
			w.want("foo", ok, descs{desc("hello_local=world")})
			want("unknown", 0, 0, 0, nil)
			w.spend("basic", 1, desc("key1_local=foo"))
			want("key1", 0, 0, 1, map[string]int{"hits basic.key1_local": 1})
			for i := range 25 {
				code := ok
				if i >= 20 {
					code = over
				}
				w.want("another", code, descs{desc("key2_local=one")}, code)
				want("key2", i, max(0, i-20), min(i+2, 22), map[string]int{"hits another.key2_local": i + 1,
					"over_limit another.key2_local": max(0, i-19), "over_limit_with_local_cache another.key2_local": max(0, i-20)})
			}
			for i := range 15 {
				code, misses := ok, i*2+24
				if i >= 10 {
					code, misses = over, i+34
				}
				r := w.want("another", code, descs{desc("key2_local=two"), desc("key3_local=two")}, ok, code)
				remaining := 19 - i
				if i >= 10 && !chargeAll {
					remaining = 10
				}
				if got := r.Statuses[0].LimitRemaining; int(got) != remaining {
					t.Errorf("both %d: %d remain of key2, want %d", i, got, remaining)
				}
				hits, local := max(4, i-6), max(0, i-10)
				if !chargeAll { // the cache answers no call of several keys
					hits, misses, local = 4, 22, 0
				}
				want("both", i, hits, misses, map[string]int{"hits another.key2_local": i + 26, "over_limit another.key2_local": 5,
					"over_limit_with_local_cache another.key2_local": 4, "hits another.key3_local": i + 1,
					"over_limit another.key3_local": max(0, i-9), "over_limit_with_local_cache another.key3_local": local})
			}
		})
	}
}
