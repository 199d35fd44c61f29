package httpclient

import (
	"testing"
	"time"
)

// TestWaitOfManyInFlight checks that a wait is no longer than until the bucket is full,
// and no shorter, if the time for the tokens in flight cannot be counted.
func TestWaitOfManyInFlight(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := state{quota: *newQuota("tokens"), tokens: true}
	s.update(&quota{Name: "tokens", Limit: 200_000, Remaining: 199_999, Reset: time.Hour, Window: unknown, Refills: true}, now, time.Hour)
	if wait, soft := s.wait(now, 1, 5_000_000); wait != time.Hour || !soft {
		t.Errorf("%v, %v", wait, soft)
	}
}
