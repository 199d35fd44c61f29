package rls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// maxDescriptors is the largest number of descriptors in a request. At most
// store.MaxTakes of them may have a limit, unless ChargeAll decides each separately.
const maxDescriptors = 100

// Config configures a Service. The zero value is valid.
type Config struct {
	Headers Headers // header fields that the proxy adds; default none
	// Shadow allows every request. The statuses still say which limits were
	// exceeded, like SHADOW_MODE of envoyproxy/ratelimit.
	Shadow bool
	// Observe, if set, is called with every decision or its error, and its duration.
	Observe func(d *dipwell.Decision, err error, took time.Duration)
}

// A Service answers by the rules that were last given to Use. It is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitServiceServer
	Config
	limiter   *dipwell.Limiter
	rules     atomic.Pointer[Rules]
	metrics   metrics
	overrides overrides
	using     sync.Mutex
}

var _ pb.RateLimitServiceServer = (*Service)(nil)

// New returns a service without rules, which answers OK until the first Use.
func New(limiter *dipwell.Limiter, c Config) *Service {
	s := &Service{limiter: limiter, Config: c}
	if s.Observe == nil {
		s.Observe = func(*dipwell.Decision, error, time.Duration) {}
	}
	s.rules.Store(&Rules{})
	return s
}

// Use puts rules in force: it defines their limits, and then drops the limits of
// the old rules that are not among them. A limit whose name stays keeps its
// buckets. If a limit cannot be defined, the old rules stay in force.
func (s *Service) Use(ctx context.Context, rules *Rules) error {
	s.using.Lock()
	defer s.using.Unlock()
	for _, r := range rules.rules {
		if _, err := s.limiter.Define(ctx, r.limit, terms.OwnerRLS); err != nil {
			s.metrics.badLoads.Add(1)
			return err
		}
	}
	for _, d := range rules.domains {
		d.each(func(r *rule) { r.counts = s.metrics.of(d.name, r.metric) })
	}
	old := s.rules.Swap(rules)
	s.metrics.loads.Add(1)
	return s.drop(ctx, old, rules)
}

// drop drops the limits of the old rules that the new rules do not have.
func (s *Service) drop(ctx context.Context, old, rules *Rules) error {
	names := make(map[string]bool, len(rules.rules))
	for _, r := range rules.rules {
		names[r.limit.Name] = true
	}
	var errs []error
	for _, r := range old.rules {
		if names[r.limit.Name] {
			continue
		}
		err := s.limiter.Drop(ctx, r.limit.Name, terms.OwnerRLS)
		if err != nil && !errors.Is(err, dipwell.ErrUnknownLimit) && !errors.Is(err, store.ErrOwner) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Rejected counts an invalid configuration in the metrics.
func (s *Service) Rejected() { s.metrics.badLoads.Add(1) }

// An ask is a descriptor of a request, with the rule found for it and its decision.
type ask struct {
	desc   *common.RateLimitDescriptor
	rule   *rule // nil if nothing limits the descriptor
	counts *counts
	key    string
	hits   int64
	refund bool
	d      *dipwell.Decision
}

func (s *Service) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	if req.GetDomain() == "" {
		return nil, status.Error(codes.InvalidArgument, "domain: is empty; a rate limit domain must not be empty")
	}
	n := len(req.Descriptors)
	if n == 0 || n > maxDescriptors {
		return nil, status.Errorf(codes.InvalidArgument, "descriptors: has %d entries; from 1 to %d", n, maxDescriptors)
	}
	d := s.rules.Load().domains[req.Domain]
	var one [1]ask
	asks := one[:]
	if n > 1 {
		asks = make([]ask, n)
	}
	if d == nil {
		s.metrics.unknownDomain.Add(1)
		return s.answer(asks), nil
	}
	limited, err := s.match(ctx, d, req, asks)
	if err != nil {
		return nil, fail(err)
	}
	var decision dipwell.Decision
	switch {
	case limited == 0:
	case n == 1:
		asks[0].d = &decision
		err = s.decide(ctx, d, &asks[0])
	case limited == 1 || d.chargeAll:
		err = s.decideEach(ctx, d, asks)
	default:
		err = s.decideAll(ctx, d, asks)
	}
	if err != nil {
		return nil, fail(err)
	}
	for i := range asks {
		if a := &asks[i]; a.d != nil && !a.refund {
			a.counts.add(a.near(), a.d, a.hits)
		}
	}
	return s.answer(asks), nil
}

// match finds the rule, key and hits of each descriptor. match returns how many have a limit.
func (s *Service) match(ctx context.Context, d *domain, req *pb.RateLimitRequest, asks []ask) (limited int, err error) {
	replaced := false
	for i, desc := range req.Descriptors {
		a := &asks[i]
		if a.desc = desc; desc == nil {
			continue
		}
		if err = a.count(req.HitsAddend, i); err != nil {
			return 0, err
		}
		if err = s.find(ctx, d, a); err != nil {
			return 0, in(err, i)
		}
		replaced = replaced || a.rule != nil && a.rule.replaces != nil
	}
	if replaced {
		replace(asks)
	}
	for i := range asks {
		if asks[i].limited() {
			limited++
		}
	}
	return limited, nil
}

// limited reports whether a descriptor has a limit from which to take.
func (a *ask) limited() bool { return a.rule != nil && !a.rule.unlimited }

func (a *ask) count(common uint32, i int) error {
	a.hits, a.refund = int64(max(common, 1)), a.desc.IsNegativeHits
	if h := a.desc.HitsAddend; h != nil {
		if h.Value > store.MaxInt-1 {
			return &dipwell.FieldError{Field: fmt.Sprintf("descriptors[%d].hits_addend", i), Reason: fmt.Sprintf("%d is not between 0 and 2^53-2", h.Value)}
		}
		a.hits = int64(h.Value)
	}
	return nil
}

// in adds the index of the descriptor to a field error about a call.
func in(err error, i int) error {
	if f, ok := errors.AsType[*dipwell.FieldError](err); ok && f.Limit == "" {
		return &dipwell.FieldError{Field: fmt.Sprintf("descriptors[%d].%s", i, f.Field), Reason: f.Reason}
	}
	return err
}

// find sets the rule, key and counts of a descriptor.
func (s *Service) find(ctx context.Context, d *domain, a *ask) (err error) {
	var buf [256]byte
	if a.desc.Limit != nil {
		// The last node that matches says whether a request may bring a limit.
		if n, _ := d.walk(a.desc, func(*common.RateLimitDescriptor_Entry, *node, string) {}); n.override {
			a.rule, err = s.overrides.rule(ctx, s, d, a.desc.Limit)
			if err == nil {
				path := buf[:0]
				for _, e := range a.desc.GetEntries() {
					path = appendEntry(path, e.GetKey(), e.GetValue())
				}
				a.key, a.counts = keyOf(path), a.rule.counts
			}
			return err
		}
		s.metrics.overridesIgnored.Add(1)
	}
	n, key := d.match(a.desc, buf[:0])
	if n == nil || n.rule == nil {
		return nil
	}
	if a.rule = n.rule; a.rule.unlimited {
		return nil
	}
	a.key, a.counts = keyOf(key), a.rule.counts
	if a.rule.detailed || a.rule.byValue {
		a.counts = s.metrics.ofValues(d.name, d.metricOf(a.rule, a.desc), a.counts)
	}
	return nil
}

// replace removes the rules that another rule of the request replaces.
func replace(asks []ask) {
	for i := range asks {
		r := asks[i].rule
		if r == nil || r.name == "" || r.unlimited {
			continue
		}
		for j := range asks {
			if other := asks[j].rule; other != nil && slices.Contains(other.replaces, r.name) {
				asks[i].desc = nil
			}
		}
	}
	for i := range asks { // in a second loop, because a replaced limit may itself replace others
		if asks[i].desc == nil {
			asks[i].rule = nil
		}
	}
}

// nonePlan is the plan of limits that refuse every hit of a key without an override.
const nonePlan = "none"

// take returns what a descriptor takes. A limit whose requests_per_unit is 0 has one
// token. If a program that does not know nonePlan has defined that limit, take asks for
// more than it can ever grant.
func (s *Service) take(a *ask) dipwell.Take {
	t := dipwell.Take{Limit: a.rule.limit.Name, Key: a.key, Cost: a.hits}
	if a.rule.none && a.hits > 0 {
		if def := s.limiter.Limit(t.Limit); def != nil && def.WithPlan(nonePlan) != nil {
			t.Plan = nonePlan
		} else {
			t.Cost++
		}
	}
	return t
}

// decide decides one descriptor.
func (s *Service) decide(ctx context.Context, d *domain, a *ask) error {
	verb, t := store.VerbTake, s.take(a)
	switch {
	case a.refund:
		verb, t.Plan, t.Cost = store.VerbRefund, "", a.hits
	case d.chargeAll && t.Cost == a.hits:
		verb = store.VerbTakeUpTo // takes the tokens that are there, even if they are too few
	}
	start := time.Now()
	err := s.limiter.Do(ctx, a.d, verb, t)
	if err != nil && s.redefined(ctx, err, a) {
		err = s.limiter.Do(ctx, a.d, verb, t)
	}
	if err == nil && verb == store.VerbTakeUpTo && a.d.Granted < t.Cost && a.d.Source != store.SourceFallbackOpen {
		s.short(ctx, a)
	}
	s.Observe(a.d, err, time.Since(start))
	return err
}

// short refuses a decision that granted only some hits, with the retry time of all of them.
func (s *Service) short(ctx context.Context, a *ask) {
	if a.d.Allowed && !a.d.Shadow {
		a.d.Allowed = s.Shadow || a.rule.limit.Mode == dipwell.Shadow
		a.d.Shadow = a.d.Allowed
	} else if a.hits == 1 || a.d.Definition.Mode == store.Blocked {
		return
	}
	if r := &a.d.Definition.Rule; a.rule.windowed && r.Every > 0 && r.Burst <= r.Add { // all hits fit at the next window, or never will
		if a.d.Never = a.hits > r.Burst; !a.d.Never {
			a.d.RetryAfter = a.windowEnd(true)
		}
		return
	}
	var check dipwell.Decision
	if s.limiter.Do(ctx, &check, store.VerbCheck, s.take(a)) == nil {
		a.d.RetryAfter, a.d.Never = check.RetryAfter, check.Never
	}
}

// redefined defines the limits again if another process on the same store, with another
// configuration, has dropped them. redefined reports whether to try again.
func (s *Service) redefined(ctx context.Context, err error, asks ...*ask) bool {
	if !errors.Is(err, dipwell.ErrUnknownLimit) {
		return false
	}
	for _, a := range asks {
		if s.limiter.Limit(a.rule.limit.Name) != nil {
			continue
		}
		if _, err = s.limiter.Define(ctx, a.rule.limit, terms.OwnerRLS); err != nil {
			return false
		}
	}
	return true
}

// decideEach decides every descriptor that has no decision separately, in order.
func (s *Service) decideEach(ctx context.Context, d *domain, asks []ask) error {
	ds := make([]dipwell.Decision, len(asks))
	for i := range asks {
		a := &asks[i]
		if !a.limited() || a.d != nil {
			continue
		}
		a.d = &ds[i]
		if err := s.decide(ctx, d, a); err != nil {
			return in(err, i)
		}
	}
	return nil
}

// decideAll decides all descriptors at once, all or nothing. Refunds follow if all
// are granted; otherwise decideAll only checks their limits.
func (s *Service) decideAll(ctx context.Context, d *domain, asks []ask) error {
	takes := make([]dipwell.Take, 0, store.MaxTakes)
	of := make([]*ask, 0, store.MaxTakes)
	var refunds []*ask
	for i := range asks {
		switch a := &asks[i]; {
		case !a.limited():
		case a.refund:
			refunds = append(refunds, a)
		default:
			takes, of = append(takes, s.take(a)), append(of, a)
		}
	}
	if len(takes) > store.MaxTakes {
		return &dipwell.FieldError{Field: "descriptors", Reason: fmt.Sprintf("%d of them have a limit; at most %d, all or nothing", len(takes), store.MaxTakes)}
	}
	all := dipwell.Decision{Allowed: true}
	if len(takes) > 0 {
		start := time.Now()
		err := s.limiter.DoAll(ctx, &all, store.VerbTake, takes)
		if err != nil && s.redefined(ctx, err, of...) {
			err = s.limiter.DoAll(ctx, &all, store.VerbTake, takes)
		}
		s.Observe(&all, err, time.Since(start))
		if err != nil {
			return err
		}
		for i, a := range of {
			a.d = &all.Limits[i]
		}
	}
	if refunds == nil {
		return nil
	}
	for _, a := range refunds {
		if !all.Allowed {
			a.hits, a.refund = 0, false // a check
		}
	}
	return s.decideEach(ctx, d, asks)
}

// fail returns the status of an error. The text of a store's error is not sent,
// because it may have the store's address.
func fail(err error) error {
	if f, ok := errors.AsType[*dipwell.FieldError](err); ok && f.Limit == "" && !errors.Is(err, dipwell.ErrUnknownLimit) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	switch {
	case errors.Is(err, store.ErrFull):
		return status.Error(codes.Unavailable, store.ErrFull.Error())
	case errors.Is(err, dipwell.ErrStore):
		return status.Error(codes.Unavailable, dipwell.ErrStore.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, err.Error())
}
