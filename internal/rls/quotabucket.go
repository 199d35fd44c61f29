package rls

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// forgetAfter is how long a bucket without requests is still assigned tokens.
const forgetAfter = time.Minute

// mostReported bounds the requests in one report. A report with more is a mistake.
const mostReported = 1 << 40

// A quotaBucket is a bucket of one Envoy. Its goroutine makes and settles its
// assignments.
type quotaBucket struct {
	stream *quotaStream
	id     *rlqs.BucketId
	name   string
	wake   chan struct{} // signals a report

	mu       sync.Mutex
	reported usage // since the goroutine last looked

	// The goroutine uses the fields below without a lock.
	rules    *Rules
	ask      ask
	live     []assignment // not settled yet, oldest first; the last one may be in use
	used     int64        // requests that were reported and are not settled with an assignment yet
	demand   float64      // requests per second
	since    time.Time    // when demand was last computed from a report
	active   time.Time    // when a report last had requests
	left     int64        // tokens left in the limit's bucket, by the store's last answer
	floor    int64        // Floor of holds, if the key has an override
	capacity int64
	until    time.Time // when the last message that the Envoy got runs out
	seq      uint32
}

type usage struct {
	allowed, denied int64
	at              time.Time // when the last report arrived
}

// An assignment is tokens that an Envoy may use.
type assignment struct {
	hold   string
	tokens int64
	dead   time.Time // from when on none of its tokens can be used
}

// report adds the usage that an Envoy reports.
func (b *quotaBucket) report(u *rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage, now time.Time) {
	b.mu.Lock()
	b.reported.allowed += int64(min(u.NumRequestsAllowed, mostReported))
	b.reported.denied += int64(min(u.NumRequestsDenied, mostReported))
	b.reported.at = now
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// run assigns tokens until ctx ends or the bucket is abandoned. Tokens that are held then
// stay taken, because the Envoy may still use them.
func (b *quotaBucket) run(ctx context.Context) {
	defer b.stream.forget(b)
	b.active = time.Now()
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
			b.account(ctx)
		case <-again.C:
			wait, err := b.renew(ctx)
			if err != nil {
				if !errors.Is(err, errAbandoned) {
					b.stream.fail(err)
				}
				return
			}
			again.Reset(wait)
		}
	}
}

// account counts and settles what was reported since the last call.
func (b *quotaBucket) account(ctx context.Context) {
	b.mu.Lock()
	u := b.reported
	b.reported = usage{at: u.at}
	b.mu.Unlock()
	requests := u.allowed + u.denied
	if requests > 0 {
		b.active = u.at
	}
	b.follow(requests, u.at)
	if b.ask.rule == nil {
		b.used += u.allowed
		return
	}
	b.count(u)
	b.used += u.allowed
	b.settle(ctx, u.at)
	held := int64(0)
	for _, a := range b.live {
		held += a.tokens
	}
	if excess := b.used - held; excess > 0 {
		b.used = held
		b.charge(ctx, excess)
	}
}

// follow updates the demand. It rises at once, and falls by half at a time. A report says
// only in whole seconds how much time it covers, so follow measures that time with this
// machine's clock.
func (b *quotaBucket) follow(requests int64, at time.Time) {
	passed := at.Sub(b.since)
	if b.since.IsZero() || passed > time.Minute {
		passed = time.Second
	}
	if passed < 50*time.Millisecond { // too short for an estimate
		return
	}
	rate := float64(requests) / passed.Seconds()
	b.demand, b.since = max(rate, (b.demand+rate)/2), at
}

// count counts requests by their decision, in the metrics of the rule.
func (b *quotaBucket) count(u usage) {
	if c := b.ask.counts; c != nil {
		c.total.Add(uint64(u.allowed + u.denied))
		c.within.Add(uint64(u.allowed))
		c.over.Add(uint64(u.denied))
	}
}

// settle settles the assignments whose tokens nobody could use any more when the last
// report was made. It assumes that all reported requests used tokens of these, and gives
// back the rest.
func (b *quotaBucket) settle(ctx context.Context, reported time.Time) {
	for len(b.live) > 0 {
		a := b.live[0]
		if reported.Before(a.dead.Add(delivery)) {
			return
		}
		b.live = b.live[1:]
		cost := min(a.tokens, b.used)
		b.used -= cost
		b.end(ctx, a, cost)
	}
}

// end settles the hold of an assignment. If the store does not answer, the tokens stay
// taken.
func (b *quotaBucket) end(ctx context.Context, a assignment, cost int64) {
	defer b.stream.call()()
	if d, err := b.stream.service.limiter.Settle(ctx, a.hold, cost); err != nil {
		b.stream.lost.Add(uint64(a.tokens - cost))
	} else {
		b.left = d.Remaining
		b.stream.returned.Add(uint64(a.tokens - cost))
	}
}

// charge takes tokens for requests that an Envoy has allowed without any: before its
// first assignment, after the end of one, or in shadow mode.
func (b *quotaBucket) charge(ctx context.Context, n int64) {
	def := b.stream.service.limiter.Limit(b.ask.rule.limit.Name)
	if def == nil || b.ask.rule.none {
		return
	}
	verb := store.VerbCharge
	if b.shadow() {
		verb = store.VerbTake
	}
	b.stream.excess.Add(uint64(n))
	defer b.stream.call()()
	var d dipwell.Decision
	n = min(n, def.Rule.MaxCharge)
	if err := b.stream.service.limiter.Do(ctx, &d, verb, dipwell.Take{Limit: b.ask.rule.limit.Name, Key: b.ask.key, Cost: n}); err == nil {
		b.left = d.Remaining
	}
}

func (b *quotaBucket) shadow() bool {
	return b.stream.service.Shadow || b.ask.rule.limit.Mode == dipwell.Shadow
}

// errAbandoned ends the goroutine of a bucket that was abandoned.
var errAbandoned = errors.New("abandoned")

// renew makes the next assignment. again is the time after which to call it again.
func (b *quotaBucket) renew(ctx context.Context) (again time.Duration, err error) {
	if err = b.find(ctx); err != nil {
		return 0, err
	}
	r := b.ask.rule
	switch {
	case r == nil || r.quota == 0 && !r.unlimited && !r.none && !b.shadow():
		b.stream.unknown.Add(1)
		return 0, b.abandon()
	case time.Since(b.active) > forgetAfter && len(b.live) > 0:
		return b.quota() / 4, nil // later reports settle the assignments, or bring a new request
	case time.Since(b.active) > forgetAfter:
		b.stream.idle.Add(1)
		return 0, b.abandon()
	case r.unlimited || b.shadow():
		return b.tell(typev3.RateLimitStrategy_ALLOW_ALL)
	case r.none:
		return b.tell(typev3.RateLimitStrategy_DENY_ALL)
	}
	return b.assign(ctx)
}

// find looks the rule up again if the configuration has changed.
func (b *quotaBucket) find(ctx context.Context) error {
	rules := b.stream.service.rules.Load()
	if rules == b.rules {
		return nil
	}
	a, err := b.stream.rule(ctx, rules, b.id.Bucket)
	if err != nil {
		return fail(err)
	}
	if b.rules, b.ask = rules, a; a.rule != nil && a.rule.quota > 0 {
		def := b.stream.service.limiter.Limit(a.rule.limit.Name)
		if def != nil {
			b.left, b.capacity = def.Rule.Burst, def.Rule.Burst
		}
	}
	return nil
}

func (b *quotaBucket) abandon() error {
	if err := b.stream.abandon(b.id); err != nil {
		return err
	}
	return errAbandoned
}

// quota returns how long an assignment lasts.
func (b *quotaBucket) quota() time.Duration {
	if b.ask.rule.quota == 0 { // the rule has none: nothing is taken for it
		return time.Second
	}
	return b.ask.rule.quota
}

// tell makes the Envoy allow or deny all requests, for as long as an assignment lasts.
func (b *quotaBucket) tell(rule typev3.RateLimitStrategy_BlanketRule) (time.Duration, error) {
	b.replaced(time.Now())
	b.until = time.Now().Add(b.quota())
	return b.quota() / 2, b.stream.send(assign(b.id, b.quota(), blanket(rule)))
}

// replaced records that the last assignment ends now, because the Envoy gets another one.
func (b *quotaBucket) replaced(now time.Time) {
	if n := len(b.live); n > 0 {
		if a := &b.live[n-1]; now.Add(delivery).Before(a.dead) {
			a.dead = now.Add(delivery)
		}
	}
}

// wanted returns how many tokens to ask for: a quarter more than the demand, and for
// bursts at least an eighth of what is left. It is at most what comes back in the time of
// an assignment or half of what is left, whichever is more, so that others find tokens
// too.
func (b *quotaBucket) wanted() int64 {
	r := b.ask.rule
	back := comesBack(r.limit.Rate, r.limit.Period, r.quota)
	n := max(int64(b.demand*r.quota.Seconds()*5/4), b.left/8, 1)
	return min(n, max(back, b.left/2, 1), b.capacity, mostTokens)
}

// assign holds tokens and assigns them to the Envoy. If there are none, the last
// assignment stays in force until it ends, and then all requests are denied.
func (b *quotaBucket) assign(ctx context.Context) (time.Duration, error) {
	quota := b.quota()
	asked := time.Now() // before the store is asked, because the life of the tokens begins here
	d, err := b.hold(ctx, b.wanted())
	switch {
	case err != nil:
		if ctx.Err() != nil {
			return 0, err
		}
		if f, ok := errors.AsType[*dipwell.FieldError](err); ok && f.Limit == "" || errors.Is(err, store.ErrNotSupported) {
			return 0, status.Error(codes.FailedPrecondition, err.Error())
		}
		b.stream.service.redefined(ctx, err, &b.ask)
		return quota / 4, nil // the last message runs out, and then the Envoy's configuration decides
	case !d.Allowed:
		return b.refused(d)
	case d.Hold == "" || d.Definition.Mode == store.Unlimited:
		if d.Hold != "" {
			b.end(ctx, assignment{hold: d.Hold}, 0)
		}
		return b.tell(typev3.RateLimitStrategy_ALLOW_ALL)
	}
	a := assignment{hold: d.Hold, tokens: d.Granted, dead: asked.Add(life(quota))}
	b.stream.sending.Lock()
	if time.Since(asked) > delivery/2 { // too late to arrive in time
		b.stream.sending.Unlock()
		b.end(ctx, a, 0)
		return quota / 8, nil
	}
	b.seq++
	err = b.stream.Send(&rlqs.RateLimitQuotaResponse{BucketAction: []*rlqs.RateLimitQuotaResponse_BucketAction{assign(b.id, quota, tokens(a.tokens, quota, b.seq))}})
	sent := time.Now()
	b.stream.sending.Unlock()
	if err == nil && sent.Sub(asked) > delivery {
		err = status.Error(codes.ResourceExhausted, "assignments are not read")
	}
	if err != nil {
		return 0, err
	}
	b.replaced(sent)
	b.live, b.until = append(b.live, a), asked.Add(quota)
	b.stream.assigned.Add(uint64(a.tokens))
	return quota/2 + rand.N(quota/4), nil // random, so that the Envoys of one bucket do not always ask in the same order
}

// refused returns the time after which to ask again. If the last assignment ends before
// that, it denies all requests.
func (b *quotaBucket) refused(d dipwell.Decision) (time.Duration, error) {
	again := min(max(d.RetryAfter, b.quota()/16), b.quota()/4)
	if d.Never {
		again = b.quota() / 4
	}
	if time.Until(b.until) > 2*again {
		return again, nil
	}
	_, err := b.tell(typev3.RateLimitStrategy_DENY_ALL)
	return again, err
}

// hold takes n tokens, or as many as there are. They stay taken if nobody reports how
// many were used, because the limit of a rule with a quota has KeepExpired.
//
// The limit of the rule is smaller by what comes back in the life of an assignment. The
// limit of an override is not, so its holds leave as many tokens free.
func (b *quotaBucket) hold(ctx context.Context, n int64) (d dipwell.Decision, err error) {
	defer b.stream.call()()
	ttl := 2*life(b.quota()) + forgetAfter
	for range 3 {
		d, err = b.stream.service.limiter.Hold(ctx, ttl, "", dipwell.Take{Limit: b.ask.rule.limit.Name, Key: b.ask.key, Cost: n, Floor: b.floor})
		if err != nil || d.Definition == nil {
			return d, err
		}
		b.left, b.capacity = d.Remaining, d.Capacity
		floor := int64(0)
		if def := d.Definition; def.Override != nil && def.Mode == store.Enforce {
			floor = comesBack(def.Rate, def.Period, b.quota())
		}
		enough := b.floor >= floor || d.Remaining >= floor
		b.floor = floor
		switch {
		case d.Allowed && enough:
			return d, nil
		case d.Allowed:
			if _, err = b.stream.service.limiter.Settle(ctx, d.Hold, 0); err != nil {
				return d, err
			}
			n = min(n, d.Remaining+d.Granted-floor)
		case d.Definition.Mode == store.Blocked:
			return d, nil
		default:
			n = min(n, d.Remaining-floor)
		}
		if d.Allowed = false; n < 1 {
			return d, nil
		}
	}
	return d, nil
}
