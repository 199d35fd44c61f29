package rls

import (
	"context"
	"fmt"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/terms"
)

// maxOverrides bounds the different limits that requests may bring, because each of them
// stays defined.
const maxOverrides = 1000

// overrides are the limits that requests have brought.
type overrides struct {
	mu    sync.RWMutex // not held while a limit is defined
	rules map[override]*rule
	// pending has the limits that are being defined. A channel is closed at the end of it.
	pending map[override]chan struct{}
}

type override struct {
	domain         string
	requests, unit uint32
	multiplier     uint32 // 0 if not given
}

// rule returns the rule for a limit in a request. It defines the limit on first use.
func (o *overrides) rule(ctx context.Context, s *Service, d *domain, l *common.RateLimitDescriptor_RateLimitOverride) (*rule, error) {
	key := override{domain: d.name, requests: l.GetRequestsPerUnit(), unit: uint32(l.GetUnit())}
	multiplier := int64(1)
	if l.UnitMultiplier != nil {
		if key.multiplier = l.UnitMultiplier.Value; key.multiplier == 0 {
			return nil, &dipwell.FieldError{Field: "limit.unit_multiplier", Reason: "must be at least 1"}
		}
		multiplier = int64(key.multiplier)
	}
	unit := pb.RateLimitResponse_RateLimit_Unit(pb.RateLimitResponse_RateLimit_Unit_value[l.GetUnit().String()])
	length := unitLength(unit)
	if length == 0 {
		return nil, &dipwell.FieldError{Field: "limit.unit", Reason: "is missing or unknown"}
	}
	if multiplier > int64(maxPeriod/length) {
		return nil, &dipwell.FieldError{Field: "limit.unit_multiplier", Reason: "makes a period longer than 285 years"}
	}
	for {
		o.mu.RLock()
		r := o.rules[key]
		o.mu.RUnlock()
		if r != nil {
			return r, nil
		}
		defined, begun, err := o.begin(key)
		if err != nil {
			return nil, err
		}
		if begun {
			r, err = s.defineOverride(ctx, newOverride(d, key, unit, length*time.Duration(multiplier)), d.name)
			o.end(key, r)
			return r, err
		}
		select { // another request defines the limit
		case <-defined:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// begin reports whether the caller must define the limit of key, and then call end. If
// not, defined is closed once another request has tried to define it.
func (o *overrides) begin(key override) (defined chan struct{}, begun bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if defined = o.pending[key]; defined != nil {
		return defined, false, nil
	}
	defined = make(chan struct{})
	if o.rules[key] != nil {
		close(defined)
		return defined, false, nil
	}
	if len(o.rules)+len(o.pending) >= maxOverrides {
		return nil, false, &dipwell.FieldError{Field: "limit", Reason: fmt.Sprintf("requests have already brought %d different limits, and no more are possible", maxOverrides)}
	}
	if o.pending == nil {
		o.rules, o.pending = map[override]*rule{}, map[override]chan struct{}{}
	}
	o.pending[key] = defined
	return defined, true, nil
}

// end adds a rule, or nothing if r is nil.
func (o *overrides) end(key override, r *rule) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r != nil {
		o.rules[key] = r
	}
	close(o.pending[key])
	delete(o.pending, key)
}

// defineOverride defines the limit of r and returns r, or nil and an error.
func (s *Service) defineOverride(ctx context.Context, r *rule, domain string) (*rule, error) {
	if _, err := s.limiter.Define(ctx, r.limit, terms.OwnerRLS); err != nil {
		return nil, err
	}
	r.counts = s.metrics.of(domain, "override")
	return r, nil
}

func newOverride(d *domain, key override, unit pb.RateLimitResponse_RateLimit_Unit, per time.Duration) *rule {
	r := &rule{windowed: true, none: key.requests == 0, near: nearLimit(d.near, int64(key.requests))}
	r.limit = dipwell.Limit{
		Name:      nameOf(fmt.Sprintf("%s override %d/%s", d.name, key.requests, period.Format(per)), ""),
		Algorithm: dipwell.FixedWindow, Rate: max(1, int64(key.requests)), Period: per, Start: "0s",
	}
	if r.none {
		r.limit.Plans = planOfNone(r.limit.Mode)
	}
	r.answer = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: key.requests, Unit: unit}
	if key.multiplier > 0 {
		r.answer.UnitMultiplier = wrapperspb.UInt32(key.multiplier)
	}
	return r
}
