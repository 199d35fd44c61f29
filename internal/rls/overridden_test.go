package rls_test

import (
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/rls"
)

// A key with an override is decided by it, and the answer has its numbers.
func TestOverriddenKeys(t *testing.T) {
	for _, all := range []bool{false, true} {
		w := startWith(t, rls.Config{}, rls.Defaults{ChargeAll: all}, `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: bucket
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket}
`)
		set := func(limit string, o dipwell.Override) {
			t.Helper()
			if _, err := w.limiter.SetOverride(t.Context(), limit, o); err != nil {
				t.Fatal(err)
			}
		}
		w.spend("d", 5, desc("user=a"))
		w.want("d", over, descs{desc("user=a")}, over)
		set("rls/d.user", dipwell.Override{Key: "user=a", Rate: 600, Until: noon + time.Minute.Microseconds()})
		st := w.want("d", ok, descs{desc("user=a")}, ok).Statuses[0]
		if st.CurrentLimit.GetRequestsPerUnit() != 600 || st.CurrentLimit.Unit != pb.RateLimitResponse_RateLimit_MINUTE || st.LimitRemaining != 594 {
			t.Errorf("raised: %v", st)
		}
		w.want("d", ok, descs{desc("user=b")}, ok)
		w.pass(time.Minute)
		if st = w.want("d", ok, descs{desc("user=a")}, ok).Statuses[0]; st.CurrentLimit.GetRequestsPerUnit() != 5 {
			t.Errorf("after its end: %v", st)
		}

		set("rls/d.bucket", dipwell.Override{Key: "bucket=a", Rate: 90, Period: 90 * time.Second, Burst: 100})
		st = w.want("d", ok, descs{desc("bucket=a")}, ok).Statuses[0]
		if c := st.CurrentLimit; c.GetRequestsPerUnit() != 90 || c.Unit != pb.RateLimitResponse_RateLimit_SECOND || c.UnitMultiplier.GetValue() != 90 || st.LimitRemaining != 99 {
			t.Errorf("another period: %v", st)
		}
		if n := counted(t, w)["near_limit d.bucket"]; n != 0 {
			t.Errorf("%v hits near the limit", n)
		}
	}
}

// A limit of none refuses every hit; a key with an override takes as many as it hits.
func TestOverriddenKeysOfNone(t *testing.T) {
	for _, all := range []bool{false, true} {
		w := startWith(t, rls.Config{}, rls.Defaults{ChargeAll: all}, `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: other
    rate_limit: {unit: minute, requests_per_unit: 5}
`)
		w.want("d", over, descs{desc("user=a")}, over)
		if _, err := w.limiter.SetOverride(t.Context(), "rls/d.user", dipwell.Override{Key: "user=a", Rate: 3}); err != nil {
			t.Fatal(err)
		}
		w.want("d", over, descs{desc("user=b")}, over)
		if st := w.want("d", ok, descs{desc("user=a")}, ok).Statuses[0]; st.LimitRemaining != 2 || st.CurrentLimit.GetRequestsPerUnit() != 3 {
			t.Errorf("charge all %v: %v", all, st)
		}
		if st := w.want("d", ok, descs{desc("user=a"), desc("other=a")}, ok, ok).Statuses[0]; st.LimitRemaining != 1 {
			t.Errorf("charge all %v: %v", all, st)
		}
		w.want("d", ok, descs{hits(0, desc("user=b"))}, ok)
		w.spend("d", 1, desc("user=a"))
		w.want("d", over, descs{desc("user=a")}, over)
		if _, err := w.limiter.SetOverride(t.Context(), "rls/d.user", dipwell.Override{Key: "user=c", Plan: "none"}); err != nil {
			t.Fatal(err)
		}
		if st := w.want("d", over, descs{desc("user=c")}, over).Statuses[0]; st.LimitRemaining != 0 {
			t.Errorf("charge all %v, a blocked key: %v", all, st)
		}
	}
}

// In shadow mode a limit of none allows every hit, and a key with an override takes as
// many as it hits.
func TestOverriddenKeysOfNoneInShadow(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "token_bucket"} {
		for _, all := range []bool{false, true} {
			w := startWith(t, rls.Config{}, rls.Defaults{ChargeAll: all}, `
domain: d
descriptors:
  - key: user
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0, algorithm: `+algorithm+`}
  - key: other
    rate_limit: {unit: minute, requests_per_unit: 5}
`)
			if _, err := w.limiter.SetOverride(t.Context(), "rls/d.user", dipwell.Override{Key: "user=a", Rate: 3}); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if st := w.want("d", ok, descs{desc("user=b")}, ok).Statuses[0]; st.LimitRemaining != 0 || st.CurrentLimit.GetRequestsPerUnit() != 0 {
					t.Errorf("charge all %v: %v", all, st)
				}
			}
			for left := uint32(2); left <= 2; left-- {
				st := w.want("d", ok, descs{desc("user=a"), desc("other=a")}, ok, ok).Statuses[0]
				if st.LimitRemaining != left || st.CurrentLimit.GetRequestsPerUnit() != 3 {
					t.Errorf("%s, charge all %v, %d left: %v", algorithm, all, left, st)
				}
			}
			w.want("d", ok, descs{desc("user=a"), desc("other=a")}, ok, ok)
			if c := counted(t, w); c["shadow_mode d.user"] != 4 {
				t.Errorf("charge all %v: %v", all, c)
			}
		}
	}
}
