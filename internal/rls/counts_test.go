package rls_test

import (
	"fmt"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/stack"
)

// counted returns all counters of a service, such as "within_limit d.user".
func counted(t *testing.T, w *world) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(w.service)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		name := strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "dipwell_rls_"), "_total")
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			if v := m.GetCounter().GetValue(); v != 0 {
				out[strings.TrimSpace(name+" "+labels["rule"]+labels["result"])] = v
			}
		}
	}
	return out
}

func wantCounts(t *testing.T, w *world, want map[string]float64) {
	t.Helper()
	if got := counted(t, w); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted\n%v\nwanted\n%v", got, want)
	}
}

func TestCounts(t *testing.T) {
	const yaml = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: soft
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
`
	w := start(t, yaml)
	w.spend("d", 1, hits(6, desc("user=a")))
	w.spend("d", 1, hits(3, desc("user=a"))) // 9: one of them is above 80 %
	w.spend("d", 1, desc("user=a"))          // 10
	w.want("d", over, descs{hits(2, desc("user=a"))})
	w.spend("d", 2, desc("soft=a"))
	w.ask("unknown", desc("user=a"))
	want := map[string]float64{"config_loads ok": 1, "domain_not_found": 1,
		"hits d.user": 12, "within_limit d.user": 10, "near_limit d.user": 2, "over_limit d.user": 2,
		"hits d.soft": 2, "within_limit d.soft": 1, "near_limit d.soft": 1, "over_limit d.soft": 1, "shadow_mode d.soft": 1}
	wantCounts(t, w, want)
	w.want("d", over, descs{desc("user=a"), desc("soft=b")}) // soft is asked, and not charged
	want["hits d.user"], want["over_limit d.user"], want["hits d.soft"] = 13, 3, 3
	wantCounts(t, w, want)

	w = startWith(t, rls.Config{}, rls.Defaults{ChargeAll: true, NearLimit: 0.5}, yaml)
	w.spend("d", 1, hits(4, desc("user=a")))
	w.want("d", over, descs{hits(8, desc("user=a"))}) // 6 of them fit
	wantCounts(t, w, map[string]float64{"config_loads ok": 1, "hits d.user": 12, "within_limit d.user": 4, "near_limit d.user": 5, "over_limit d.user": 2})
}

// In global shadow mode every request is allowed, and the statuses and counters say
// which would have been refused.
func TestGlobalShadow(t *testing.T) {
	const yaml = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: soft
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: user
    value: banned
    rate_limit: {unit: minute, requests_per_unit: 0}
`
	for _, chargeAll := range []bool{false, true} {
		w := &world{t: t}
		w.now.Store(noon)
		store, err := memstore.New(memstore.Config{Clock: w.now.Load})
		if err != nil {
			t.Fatal(err)
		}
		shadow, err := stack.New(t.Context(), store, stack.Options{Shadow: true})
		if err != nil {
			t.Fatal(err)
		}
		w.over(shadow.Store, rls.Config{Shadow: true})
		w.use(rls.Defaults{ChargeAll: chargeAll}, yaml)
		w.want("d", ok, descs{hits(8, desc("user=a"))}, ok)
		w.want("d", ok, descs{hits(8, desc("user=a"))}, over) // of which charge all takes two
		w.want("d", ok, descs{desc("user=b"), hits(99, desc("user=a"))}, ok, over)
		w.want("d", ok, descs{desc("user=banned")}, over)
		w.spend("d", 1, desc("soft=a"))
		w.want("d", ok, descs{desc("soft=a")}, ok)
		got := counted(t, w)
		if got["global_shadow_mode"] != 3 || got["shadow_mode d.soft"] != 1 || got["over_limit d.user_banned"] != 1 {
			t.Errorf("%v", got)
		}
	}
}

// Metrics have values only if configured, and only up to a bound.
func TestDetailedCounts(t *testing.T) {
	w := start(t, `
domain: d
descriptors:
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: a
    value_to_metric: true
    descriptors:
      - key: b
        rate_limit: {unit: minute, requests_per_unit: 10}
      - key: c
        detailed_metric: true
        rate_limit: {unit: minute, requests_per_unit: 10}
  - key: file
    value: x/*
    share_threshold: true
    value_to_metric: true
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: wild
    value: x/*
    value_to_metric: true
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: tame
    value: x/*
    rate_limit: {unit: minute, requests_per_unit: 10}
`)
	for _, d := range []*common.RateLimitDescriptor{desc("plain=secret"), desc("a=1", "b=secret"), desc("a=2", "b=secret"), desc("a=1", "c=told"), desc("file=x/secret"), desc("wild=x/told"), desc("tame=x/secret")} {
		w.spend("d", 1, d)
	}
	want := map[string]float64{"config_loads ok": 1}
	for _, rule := range []string{"d.plain", "d.a_1.b", "d.a_2.b", "d.a_1.c_told", "d.file_x/*", "d.wild_x/told", "d.tame_x/*"} {
		want["hits "+rule], want["within_limit "+rule] = 1, 1
	}
	wantCounts(t, w, want)
	w.spend("d", 1, desc("wild=x/"+strings.Repeat("long", 15_000)))
	if got := counted(t, w); got["hits d.wild_x/*"] != 1 || len(got) > len(want)+10 {
		t.Errorf("a long value is not counted for its rule: %d counters", len(got))
	}
	for i := range 1100 {
		w.spend("d", 1, desc(fmt.Sprintf("wild=x/%d", i)))
	}
	got := counted(t, w)
	if len(got) > 2100 || got["hits d.wild_x/*"] < 90 {
		t.Errorf("%d counters, %v hits of the rule", len(got), got["hits d.wild_x/*"])
	}
}

func FuzzRequests(f *testing.F) {
	f.Add("d", "user", "a", uint32(1), uint64(0), false)
	f.Add("d", "user", "banned", uint32(0), uint64(1<<63), true)
	f.Add("d", "", "", uint32(1<<32-1), uint64(1<<53-2), false)
	f.Add("", "path", "/api", uint32(1<<32-1), uint64(0), false)
	f.Fuzz(func(t *testing.T, domain, key, value string, n uint32, one uint64, refund bool) {
		w := fuzzed(t)
		d := desc("user=a")
		d.Entries[0].Key, d.Entries[0].Value = key, value
		d.IsNegativeHits = refund
		req := &pb.RateLimitRequest{Domain: domain, HitsAddend: n, Descriptors: descs{d, hits(one, desc("tenant="+value)), hits(one, d), nil}}
		resp, err := w.ShouldRateLimit(t.Context(), req)
		if (resp == nil) == (err == nil) || resp != nil && len(resp.Statuses) != 4 {
			t.Error(resp, err)
		}
	})
}
