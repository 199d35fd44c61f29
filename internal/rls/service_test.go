package rls_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

const plain = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: user
    value: banned
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 3, name: per tenant}
  - key: path
    value: /api
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 2}
  - key: white
`

// A plain configuration is a fixed window, aligned to its unit.
func TestFixedWindow(t *testing.T) {
	w := start(t, plain)
	for i := range 5 {
		st := w.ask("d", desc("user=a")).Statuses[0]
		if st.Code != ok || st.LimitRemaining != uint32(4-i) {
			t.Errorf("call %d: %v", i, st)
		}
		if st.CurrentLimit.GetRequestsPerUnit() != 5 || st.CurrentLimit.Unit != pb.RateLimitResponse_RateLimit_MINUTE || st.CurrentLimit.UnitMultiplier != nil {
			t.Errorf("current limit %v", st.CurrentLimit)
		}
		if st.DurationUntilReset.AsDuration() != 30*time.Second {
			t.Errorf("reset %v", st.DurationUntilReset.AsDuration())
		}
	}
	w.pass(10*time.Second + 300*time.Millisecond)
	st := w.want("d", over, descs{desc("user=a")}, over).Statuses[0]
	if st.DurationUntilReset.AsDuration() != 20*time.Second || st.LimitRemaining != 0 { // 19.7 s, rounded up
		t.Errorf("refused: %v", st)
	}
	w.want("d", ok, descs{desc("user=b")}, ok)
	w.pass(19*time.Second + 699*time.Millisecond)
	w.want("d", over, descs{desc("user=a")}, over)
	w.pass(time.Millisecond)
	w.want("d", ok, descs{desc("user=a")}, ok) // 12:01:00
}

func TestUnitsAreAligned(t *testing.T) {
	for unit, length := range map[string]time.Duration{"second": time.Second, "Minute": time.Minute, "HOUR": time.Hour, "day": 24 * time.Hour,
		"week": 7 * 24 * time.Hour, "month": 30 * 24 * time.Hour, "year": 365 * 24 * time.Hour} {
		w := start(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: "+unit+", requests_per_unit: 1}}]")
		w.spend("d", 1, desc("k=v"))
		st := w.want("d", over, descs{desc("k=v")}).Statuses[0]
		left := length - time.Duration(noon*1000)%length
		if st.DurationUntilReset.AsDuration() != left {
			t.Errorf("%s: %v, not %v", unit, st.DurationUntilReset.AsDuration(), left)
		}
		w.pass(left - time.Microsecond)
		w.want("d", over, descs{desc("k=v")})
		w.pass(time.Microsecond)
		w.want("d", ok, descs{desc("k=v")})
	}
}

// Statuses are in the order of the descriptors, with or without a limit.
func TestStatusesInOrder(t *testing.T) {
	w := start(t, plain)
	w.spend("d", 3, desc("tenant=x"))
	resp := w.want("d", over, descs{desc("nothing=1"), desc("tenant=x"), desc("free=1"), desc("user=a"), desc("white=1"), desc("user=banned")},
		ok, over, ok, ok, ok, over)
	if resp.Statuses[2].LimitRemaining != math.MaxUint32 || resp.Statuses[2].CurrentLimit != nil {
		t.Errorf("unlimited: %v", resp.Statuses[2])
	}
	for _, i := range []int{0, 4} {
		if st := resp.Statuses[i]; st.CurrentLimit != nil || st.LimitRemaining != 0 || st.DurationUntilReset != nil {
			t.Errorf("nothing limits %d: %v", i, st)
		}
	}
	if resp.Statuses[1].CurrentLimit.Name != "per tenant" {
		t.Errorf("name %v", resp.Statuses[1])
	}
	if st := resp.Statuses[5]; st.CurrentLimit == nil || st.CurrentLimit.RequestsPerUnit != 0 || st.LimitRemaining != 0 || st.DurationUntilReset.AsDuration() > time.Minute {
		t.Errorf("banned: %v", st)
	}
}

// After a refusal the other limits are not charged, but with charge_all they are.
func TestAllOrNothing(t *testing.T) {
	both := descs{desc("user=a"), desc("tenant=x")}
	w := start(t, plain)
	w.spend("d", 3, both...)
	for range 4 {
		resp := w.want("d", over, both, ok, over)
		if resp.Statuses[0].LimitRemaining != 2 {
			t.Fatalf("the user was charged: %v", resp)
		}
	}
	w.want("d", ok, descs{desc("user=a")})

	for name, def := range map[string]rls.Defaults{"the switch": {ChargeAll: true}, "the file": {}} {
		yaml := plain
		if name == "the file" {
			yaml = "all_or_nothing: no" + plain
		}
		w = startWith(t, rls.Config{}, def, yaml)
		w.spend("d", 3, both...)
		for i := range 2 {
			if resp := w.want("d", over, both, ok, over); resp.Statuses[0].LimitRemaining != uint32(1-i) {
				t.Fatalf("%s: the user was not charged: %v", name, resp)
			}
		}
		w.want("d", over, both, over, over)
	}
	w = startWith(t, rls.Config{}, rls.Defaults{ChargeAll: true}, "all_or_nothing: true"+plain)
	w.spend("d", 3, both...)
	w.want("d", over, both, ok, over)
	if resp := w.want("d", over, both, ok, over); resp.Statuses[0].LimitRemaining != 2 {
		t.Errorf("the file comes before the switch: %v", resp)
	}
}

// With charge_all, hits that do not all fit take what there is.
func TestChargeAllTakesPart(t *testing.T) {
	w := startWith(t, rls.Config{}, rls.Defaults{ChargeAll: true}, plain)
	w.spend("d", 1, hits(4, desc("user=a")))
	st := w.want("d", over, descs{hits(3, desc("user=a"))}, over).Statuses[0]
	if st.LimitRemaining != 0 || st.DurationUntilReset.AsDuration() != 30*time.Second {
		t.Error(st)
	}
	w.want("d", over, descs{desc("user=a")}, over)
	w.want("d", over, descs{hits(6, desc("user=b"))}, over) // more than there ever is
	w.want("d", over, descs{desc("user=b")}, over)

	w = start(t, plain)
	w.spend("d", 1, hits(4, desc("user=a")))
	if st := w.want("d", over, descs{hits(3, desc("user=a"))}, over).Statuses[0]; st.LimitRemaining != 1 {
		t.Error(st)
	}
	w.want("d", ok, descs{desc("user=a")}, ok)
}

func TestHits(t *testing.T) {
	w := start(t, plain)
	left := func(want uint32, resp *pb.RateLimitResponse) {
		t.Helper()
		if resp.OverallCode != ok || resp.Statuses[0].LimitRemaining != want {
			t.Errorf("%d left wanted: %v", want, resp)
		}
	}
	req := func(n uint32, d *common.RateLimitDescriptor) *pb.RateLimitRequest {
		return &pb.RateLimitRequest{Domain: "d", Descriptors: descs{d}, HitsAddend: n}
	}
	left(4, w.send(req(0, desc("user=a"))))          // 0 is 1
	left(2, w.send(req(2, desc("user=a"))))          // the request's
	left(1, w.send(req(2, hits(1, desc("user=a"))))) // the descriptor's comes first
	left(1, w.send(req(2, hits(0, desc("user=a"))))) // an explicit 0 looks
	left(0, w.send(req(0, desc("user=a"))))
	left(0, w.send(req(0, hits(0, desc("user=a")))))
	w.want("d", over, descs{desc("user=a")}, over)
	left(5, w.send(req(0, hits(0, desc("user=b")))))
	left(0, w.send(req(0, hits(0, desc("user=banned")))))

	refund := hits(2, desc("user=a"))
	refund.IsNegativeHits = true
	left(2, w.ask("d", refund))
	refund.HitsAddend.Value = 100 // never above full
	left(5, w.ask("d", refund))
	refund = desc("user=banned")
	refund.IsNegativeHits = true
	left(0, w.ask("d", refund))
	w.want("d", over, descs{desc("user=banned")}, over)

	resp := w.send(req(math.MaxUint32, desc("user=a")))
	if resp.OverallCode != over || resp.Statuses[0].LimitRemaining != 5 {
		t.Error(resp)
	}
	w.bad(&pb.RateLimitRequest{Domain: "d", Descriptors: descs{desc("user=a"), hits(1<<53, desc("user=a"))}}, "descriptors[1].hits_addend: ")
	left(4, w.ask("d", desc("user=a"))) // and nothing was charged
}

// A refund beside a take is made only if the take is granted.
func TestRefundBesideATake(t *testing.T) {
	w := start(t, plain)
	w.spend("d", 4, desc("user=a"))
	refund := func() *common.RateLimitDescriptor {
		r := desc("user=a")
		r.IsNegativeHits = true
		return r
	}
	for range 3 {
		resp := w.want("d", ok, descs{refund(), desc("tenant=x")}, ok, ok)
		t.Log(resp)
	}
	before := w.ask("d", hits(0, desc("user=a"))).Statuses[0].LimitRemaining
	w.want("d", over, descs{refund(), desc("tenant=x")}, ok, over)
	if after := w.ask("d", hits(0, desc("user=a"))).Statuses[0].LimitRemaining; before != 4 || after != 4 {
		t.Errorf("%d before, %d after", before, after)
	}
}

func TestTheSameDescriptorTwice(t *testing.T) {
	w := start(t, plain)
	resp := w.want("d", ok, descs{desc("user=a"), hits(2, desc("user=a"))}, ok, ok)
	if resp.Statuses[1].LimitRemaining != 2 {
		t.Error(resp)
	}
	w.want("d", over, descs{desc("user=a"), hits(2, desc("user=a"))}, over, over)
	w.want("d", ok, descs{hits(2, desc("user=a"))}, ok)
}

func TestMalformedRequests(t *testing.T) {
	w := start(t, plain)
	w.bad(&pb.RateLimitRequest{Descriptors: descs{desc("user=a")}}, "domain: is empty")
	w.bad(&pb.RateLimitRequest{Domain: "d"}, "descriptors: has 0 entries")
	many := make(descs, 101)
	for i := range many {
		many[i] = desc("nothing=1")
	}
	w.bad(&pb.RateLimitRequest{Domain: "d", Descriptors: many}, "descriptors: has 101 entries")
	w.want("d", ok, many[:100])
	var limited descs
	for i := range 17 {
		limited = append(limited, desc(fmt.Sprintf("user=%d", i)))
	}
	w.bad(&pb.RateLimitRequest{Domain: "d", Descriptors: limited}, "descriptors: 17 of them have a limit")
	w.want("d", ok, limited[:16])
	w.use(rls.Defaults{ChargeAll: true}, plain)
	w.want("d", ok, limited)
}

func TestUnknownIsOK(t *testing.T) {
	w := start(t, plain)
	for _, d := range []*common.RateLimitDescriptor{desc("nothing=1"), desc("user=a", "more=1"), desc("path=/api"), desc("path=/other", "user=a"), desc("white=1"),
		desc("=1"), desc("="), desc(), desc("User=a")} {
		for range 9 {
			if st := w.want("d", ok, descs{d}, ok).Statuses[0]; st.CurrentLimit != nil {
				t.Errorf("%v is limited: %v", d, st)
			}
		}
	}
	w.want("another", ok, descs{desc("user=a")}, ok)
	w.spend("d", 2, desc("path=/api", "user=a"))
	w.want("d", over, descs{desc("path=/api", "user=a")})
}

// Different descriptors have different keys for all values.
func TestKeysDiffer(t *testing.T) {
	w := start(t, `
domain: d
descriptors:
  - key: a
    rate_limit: {unit: hour, requests_per_unit: 1}
    descriptors:
      - key: b
        rate_limit: {unit: hour, requests_per_unit: 1}
`)
	long := strings.Repeat("ж", 500_000/2/10) // 50 kB
	for _, d := range []*common.RateLimitDescriptor{desc("a=1"), desc("a="), desc("a=1,b=2"), desc("a=1", "b=2"), desc("a=1,b=2", "b="), desc("a=1", "b=,b=2"),
		desc("a=\x00"), desc(`a=\0`), desc(`a=\`), desc(`a=\\`), desc("a=" + long), desc("a=" + long + "x"), desc("a=x"+long, "b="), desc("a="+long, "b=x")} {
		w.spend("d", 1, d)
		w.want("d", over, descs{d})
	}
}

func TestReplaces(t *testing.T) {
	w := start(t, `
domain: d
descriptors:
  - key: read
    rate_limit: {unit: hour, requests_per_unit: 1, name: reads}
  - key: page
    rate_limit: {unit: hour, requests_per_unit: 3, replaces: [{name: reads}, {name: others}]}
  - key: open
    rate_limit: {unlimited: true, replaces: [{name: reads}]}
`)
	both := descs{desc("read=1"), desc("page=1")}
	for range 3 {
		if resp := w.want("d", ok, both, ok, ok); resp.Statuses[0].CurrentLimit != nil {
			t.Errorf("not replaced: %v", resp)
		}
	}
	w.want("d", over, both, ok, over)
	w.spend("d", 3, desc("read=1"), desc("open=1"))
	w.spend("d", 1, desc("read=1")) // nothing was charged so far
	w.want("d", over, descs{desc("read=1")})
}

func TestShadow(t *testing.T) {
	for _, mode := range []string{"shadow_mode", "quota_mode"} {
		w := start(t, `
domain: d
descriptors:
  - key: k
    `+mode+`: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: real
    rate_limit: {unit: minute, requests_per_unit: 3}
`)
		w.spend("d", 3, desc("k=1"), desc("real=1"))
		w.want("d", over, descs{desc("k=1"), desc("real=1")}, ok, over)
		st := w.want("d", ok, descs{desc("k=1")}, ok).Statuses[0]
		if st.LimitRemaining != 0 || st.DurationUntilReset.AsDuration() != 30*time.Second {
			t.Error(st)
		}
	}
}

func TestWildcards(t *testing.T) {
	w := start(t, `
domain: d
descriptors:
  - key: file
    value: pub/*
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: file
    value: pub/known
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: file
    value: all/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: dir
    value: s/*
    share_threshold: true
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 2}
  - key: head*
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: file
    rate_limit: {unit: hour, requests_per_unit: 3}
`)
	for d, n := range map[*common.RateLimitDescriptor]int{desc("file=pub/a"): 1, desc("file=pub/b"): 1, desc("file=pub/known"): 2, desc("file=x"): 3, desc("head-1=x"): 1, desc("head-2=x"): 1, desc("head-2=y"): 1} {
		w.spend("d", n, d)
		w.want("d", over, descs{d})
	}
	w.spend("d", 1, desc("file=all/a"))
	w.spend("d", 1, desc("file=all/b"))
	w.want("d", over, descs{desc("file=all/c")})
	w.spend("d", 1, desc("dir=s/1", "user=a"))
	w.spend("d", 1, desc("dir=s/2", "user=a"))
	w.want("d", over, descs{desc("dir=s/3", "user=a")})
	w.want("d", ok, descs{desc("dir=s/3", "user=b")})
}

// dipwell's additional settings: a bucket answers with its retry time.
func TestBuckets(t *testing.T) {
	w := start(t, `
domain: d
descriptors:
  - key: api
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 2}
  - key: ten
    rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 5}
  - key: roll
    rate_limit: {unit: minute, requests_per_unit: 2, burst: 4}
  - key: rome
    rate_limit: {unit: day, requests_per_unit: 1, start: '06:00 Europe/Rome'}
  - key: slots
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: interval, burst: 2}
`)
	w.spend("d", 2, desc("api=1"))
	st := w.want("d", over, descs{desc("api=1")}).Statuses[0]
	if st.DurationUntilReset.AsDuration() != 100*time.Millisecond {
		t.Errorf("retry %v", st.DurationUntilReset.AsDuration())
	}
	w.pass(100*time.Millisecond - time.Microsecond)
	w.want("d", over, descs{desc("api=1")})
	w.pass(time.Microsecond)
	st = w.want("d", ok, descs{desc("api=1")}).Statuses[0]
	if st.DurationUntilReset.AsDuration() != 200*time.Millisecond { // full again
		t.Errorf("reset %v", st.DurationUntilReset.AsDuration())
	}
	if st := w.want("d", over, descs{hits(3, desc("api=1"))}).Statuses[0]; st.DurationUntilReset != nil {
		t.Errorf("no wait helps: %v", st)
	}
	w.now.Store(noon)
	w.spend("d", 5, desc("ten=1"))
	st = w.want("d", over, descs{desc("ten=1")}).Statuses[0]
	if st.CurrentLimit.UnitMultiplier.GetValue() != 10 || st.DurationUntilReset.AsDuration() != 10*time.Second {
		t.Error(st)
	}
	w.spend("d", 4, desc("roll=1"))
	if st = w.want("d", over, descs{hits(4, desc("roll=1"))}).Statuses[0]; st.DurationUntilReset.AsDuration() != 30*time.Second { // the window's end, though it takes two
		t.Error(st)
	}
	w.spend("d", 2, desc("slots=1"))
	if st = w.want("d", over, descs{desc("slots=1")}).Statuses[0]; st.DurationUntilReset.AsDuration() != 30*time.Second {
		t.Error(st)
	}
	w.spend("d", 1, desc("rome=1"))
	w.want("d", over, descs{desc("rome=1")})
}

// With charge_all, a bucket that had only some of the hits answers when all will fit.
func TestChargeAllOfABucket(t *testing.T) {
	w := startWith(t, rls.Config{}, rls.Defaults{ChargeAll: true}, `
domain: d
descriptors:
  - key: api
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 4}
`)
	w.spend("d", 3, desc("api=1"))
	st := w.want("d", over, descs{hits(2, desc("api=1"))}).Statuses[0]
	if st.LimitRemaining != 0 || st.DurationUntilReset.AsDuration() != 200*time.Millisecond {
		t.Error(st)
	}
	if st = w.want("d", over, descs{hits(5, desc("api=2"))}).Statuses[0]; st.DurationUntilReset != nil {
		t.Error(st)
	}
}

func withLimit(d *common.RateLimitDescriptor, n uint32, unit typev3.RateLimitUnit, multiplier ...uint32) *common.RateLimitDescriptor {
	d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
	if multiplier != nil {
		d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier[0])
	}
	return d
}

// A limit in the request is used only if the configuration allows it.
func TestOverride(t *testing.T) {
	const minute = typev3.RateLimitUnit_MINUTE
	w := start(t, plain+`
  - key: mine
    allow_override: true
    rate_limit: {unit: minute, requests_per_unit: 1}
    descriptors:
      - key: below
        rate_limit: {unit: minute, requests_per_unit: 1}
`)
	w.spend("d", 5, withLimit(desc("user=a"), 100, minute))
	w.want("d", over, descs{withLimit(desc("user=a"), 100, minute)})
	w.want("d", ok, descs{withLimit(desc("nothing=a"), 0, minute)})

	for _, d := range []*common.RateLimitDescriptor{desc("mine=1"), desc("mine=1", "below=1"), desc("mine=1", "unknown=1")} {
		st := w.ask("d", withLimit(d, 3, minute)).Statuses[0]
		if st.CurrentLimit.GetRequestsPerUnit() != 3 || st.CurrentLimit.Unit != pb.RateLimitResponse_RateLimit_MINUTE || st.LimitRemaining != 2 {
			t.Errorf("%v: %v", d, st)
		}
		w.spend("d", 2, d)
		w.want("d", over, descs{d})
	}
	w.spend("d", 1, desc("mine=1")) // the configured one is untouched
	st := w.ask("d", withLimit(desc("mine=1"), 3, typev3.RateLimitUnit_SECOND, 30)).Statuses[0]
	if st.CurrentLimit.UnitMultiplier.GetValue() != 30 || st.DurationUntilReset.AsDuration() != 30*time.Second {
		t.Error(st)
	}
	w.want("d", over, descs{withLimit(desc("mine=1"), 0, minute)})
	w.bad(&pb.RateLimitRequest{Domain: "d", Descriptors: descs{withLimit(desc("mine=1"), 1, 0)}}, "descriptors[0].limit.unit: ")
	w.bad(&pb.RateLimitRequest{Domain: "d", Descriptors: descs{withLimit(desc("mine=1"), 1, minute, 0)}}, "descriptors[0].limit.unit_multiplier: ")
	w.bad(&pb.RateLimitRequest{Domain: "d", Descriptors: descs{withLimit(desc("mine=1"), 1, typev3.RateLimitUnit_YEAR, 4e9)}}, "descriptors[0].limit.unit_multiplier: ")

	w.use(rls.Defaults{AllowOverride: true}, plain)
	w.spend("d", 6, withLimit(desc("user=a"), 100, minute))
	w.want("another", ok, descs{withLimit(desc("user=a"), 0, minute)}) // a domain must be known

	w.use(rls.Defaults{}, "allow_override: true"+plain)
	var err error
	for n := uint32(1000); n < 2100 && err == nil; n++ {
		_, err = w.client.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: descs{withLimit(desc("user=a"), n, minute)}})
	}
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "1000 different limits") {
		t.Errorf("the limits that requests bring have no bound: %v", err)
	}
}

// defining is a store whose Define waits, for limits of a name, until the channel is closed.
type defining struct {
	store.Store
	store.Definer
	name  string
	waits chan struct{}
	calls atomic.Int64
}

func (d *defining) Abilities() store.Abilities {
	ab := store.AbilitiesOf(d.Store)
	d.Definer, ab.Limits = ab.Limits, d
	return ab
}

func (d *defining) Define(ctx context.Context, l store.Limit, by string) (*store.Definition, error) {
	if strings.Contains(l.Name, d.name) {
		d.calls.Add(1)
		select {
		case <-d.waits:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", store.ErrStore, ctx.Err())
		}
	}
	return d.Definer.Define(ctx, l, by)
}

// While the store does not answer, requests that bring new limits do not wait for each
// other; those that bring the same one define it once.
func TestOverridesAreDefinedTogether(t *testing.T) {
	const minute = typev3.RateLimitUnit_MINUTE
	mem, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	st := &defining{Store: mem, name: "override 7/", waits: make(chan struct{})}
	w := &world{t: t}
	w.over(st, rls.Config{})
	w.use(rls.Defaults{AllowOverride: true}, plain)
	ask := func(ctx context.Context, n uint32) error {
		_, err := w.client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "d", Descriptors: descs{withLimit(desc("user=a"), n, minute)}})
		return err
	}
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			if err := ask(t.Context(), 7); err != nil {
				t.Error(err)
			}
		})
	}
	for st.calls.Load() == 0 {
		runtime.Gosched()
	}
	if err := ask(t.Context(), 8); err != nil { // would wait forever
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := ask(ctx, 7); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("one that waits for another: %v", err)
	}
	close(st.waits)
	waiting.Wait()
	if n := st.calls.Load(); n != 1 {
		t.Errorf("the limit was defined %d times", n)
	}
}

// Buckets are kept under new rules, and limits that these do not name are dropped.
func TestUseAgain(t *testing.T) {
	w := start(t, plain)
	w.spend("d", 4, desc("user=a"))
	w.use(rls.Defaults{}, "domain: d\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 7}}]")
	w.spend("d", 3, desc("user=a"))
	w.want("d", over, descs{desc("user=a")})
	if n := len(w.limiter.Limits()); n != 1 {
		t.Errorf("%d limits are left", n)
	}
	w.want("d", ok, descs{desc("tenant=x")})
}

// Another process that shares the store may drop a limit that is still in use here.
func TestLimitDroppedByAnotherProcess(t *testing.T) {
	w := start(t, plain)
	for _, def := range w.limiter.Limits() {
		if err := w.limiter.Drop(context.Background(), def.Name, terms.OwnerRLS); err != nil {
			t.Fatal(err)
		}
	}
	w.want("d", ok, descs{desc("user=a")}, ok)
	w.want("d", ok, descs{desc("user=a"), desc("tenant=x")}, ok, ok)
}

func TestHeaders(t *testing.T) {
	of := func(resp *pb.RateLimitResponse) string {
		var lines []string
		for _, h := range resp.ResponseHeadersToAdd {
			lines = append(lines, h.Key+": "+h.Value)
		}
		return strings.Join(lines, "\n")
	}
	both := descs{desc("user=a"), desc("tenant=x")}
	w := start(t, plain)
	if got := of(w.ask("d", both...)); got != "" {
		t.Errorf("off: %s", got)
	}
	w = startWith(t, rls.Config{Headers: rls.Headers{Add: true}}, rls.Defaults{}, plain)
	if got := of(w.ask("d", both...)); got != "RateLimit-Limit: 3\nRateLimit-Remaining: 2\nRateLimit-Reset: 3570" {
		t.Error(got)
	}
	w.spend("d", 4, desc("user=a"))
	if got := of(w.ask("d", both...)); got != "RateLimit-Limit: 5\nRateLimit-Remaining: 0\nRateLimit-Reset: 30" {
		t.Error(got)
	}
	if got := of(w.ask("d", desc("free=1"))); got != "" {
		t.Error(got)
	}
	w = startWith(t, rls.Config{Headers: rls.Headers{Add: true, Limit: "X-Max", Reset: "X-Again"}}, rls.Defaults{}, plain)
	if got := of(w.ask("d", both...)); got != "X-Max: 3\nRateLimit-Remaining: 2\nX-Again: 3570" {
		t.Error(got)
	}
}

// broken is a store that returns an error.
type broken struct{}

func (broken) Apply(context.Context, *store.Batch) error {
	return fmt.Errorf("%w: dial tcp 10.1.2.3: refused", dipwell.ErrStore)
}

// A refused request succeeds after duration_until_reset, unless no wait helps: whatever the
// request, and in charge-all too.
func TestDurationUntilResetIsTrue(t *testing.T) {
	const yaml = `
domain: d
descriptors:
  - key: window
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 2, burst: 12, algorithm: token_bucket}
  - key: free
    rate_limit: {unlimited: true}
  - key: white
`
	most := map[string]uint64{"window": 5, "bucket": 12, "free": math.MaxInt64, "white": math.MaxInt64, "unknown": math.MaxInt64}
	names := slices.Sorted(maps.Keys(most))
	random := rand.New(rand.NewPCG(limittest.NewSeed(t), 0))
	for _, all := range []bool{false, true} {
		w := startWith(t, rls.Config{}, rls.Defaults{ChargeAll: all}, yaml)
		for range 300 {
			req, never := &pb.RateLimitRequest{Domain: "d"}, false
			if random.IntN(10) == 0 {
				req.Domain = "unknown"
			}
			for _, i := range random.Perm(len(names))[:1+random.IntN(len(names))] {
				n := uint64(random.IntN(14))
				never = never || n > most[names[i]]
				req.Descriptors = append(req.Descriptors, hits(n, desc(names[i]+"=x")))
			}
			resp := w.send(req)
			retry := time.Duration(0)
			for _, st := range resp.Statuses {
				if st.Code == over && !never {
					retry = max(retry, st.DurationUntilReset.AsDuration())
				}
			}
			if want := resp.OverallCode == over && !never; want != (retry > 0) {
				t.Fatalf("charge all %v: reset in %v of %v: %v", all, retry, req, resp)
			}
			w.pass(retry)
			if retry > 0 {
				again := w.send(req)
				for i, st := range resp.Statuses { // charge-all has charged those that were OK
					if st.Code == over && again.Statuses[i].Code == over || !all && again.OverallCode == over {
						t.Fatalf("charge all %v: refused again after %v: %v: %v, then %v", all, retry, req, resp, again)
					}
				}
			}
			w.pass(time.Duration(random.IntN(5_000_000)) * time.Microsecond)
		}
	}
}

// An error grants nothing. A limit that fails open grants, without a state.
func TestStoreAway(t *testing.T) {
	w := &world{t: t}
	w.over(broken{}, rls.Config{Headers: rls.Headers{Add: true}})
	w.use(rls.Defaults{}, "domain: d\ndescriptors:\n- {key: closed, rate_limit: {unit: minute, requests_per_unit: 5}}\n- {key: open, rate_limit: {unit: minute, requests_per_unit: 5, on_store_error: open}}")
	for _, ds := range []descs{{desc("closed=1")}, {desc("closed=1"), desc("open=1")}} {
		_, err := w.client.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: ds})
		if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "10.1.2.3") {
			t.Error(err)
		}
	}
	w.want("d", ok, descs{desc("open=1")}, ok)
	w.use(rls.Defaults{ChargeAll: true}, "domain: d\ndescriptors:\n- {key: open, rate_limit: {unit: minute, requests_per_unit: 5, on_store_error: open}}")
	if st := w.want("d", ok, descs{desc("open=1")}, ok).Statuses[0]; st.DurationUntilReset != nil {
		t.Error(st)
	}
}
