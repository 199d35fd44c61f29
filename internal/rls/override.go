package rls

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/singleflight"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/terms"
)

// maxOverrides bounds the limits that requests may bring, because each stays defined.
const maxOverrides = 1000

// defineTimeout is how long the store may take to define a limit.
const defineTimeout = 10 * time.Second

// overrides are the limits that requests have brought.
type overrides struct {
	defining singleflight.Group // by the text of the override
	n        atomic.Int64       // number of limits that are defined, or are being defined
	rules    sync.Map           // by override: *rule
}

type override struct {
	domain         string
	requests, unit uint32
	multiplier     uint32 // 0 if not given
}

// rule returns the rule for a limit in a request. It defines the limit on first use.
func (o *overrides) rule(ctx context.Context, s *Service, d *domain, l *common.RateLimitDescriptor_RateLimitOverride) (*rule, error) {
	key := override{domain: d.name, requests: l.GetRequestsPerUnit(), unit: uint32(l.GetUnit())}
	if key.multiplier = l.UnitMultiplier.GetValue(); l.UnitMultiplier != nil && key.multiplier == 0 {
		return nil, &dipwell.FieldError{Field: "limit.unit_multiplier", Reason: "must be at least 1"}
	}
	unit := pb.RateLimitResponse_RateLimit_Unit(pb.RateLimitResponse_RateLimit_Unit_value[l.GetUnit().String()])
	length := unitLength(unit)
	if length == 0 {
		return nil, &dipwell.FieldError{Field: "limit.unit", Reason: "is missing or unknown"}
	}
	if int64(key.multiplier) > int64(maxPeriod/length) {
		return nil, &dipwell.FieldError{Field: "limit.unit_multiplier", Reason: "makes a period longer than 285 years"}
	}
	if r, ok := o.rules.Load(key); ok {
		return r.(*rule), nil
	}
	defined := o.defining.DoChan(fmt.Sprint(key), func() (any, error) { // requests that bring the same limit wait for one definition
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), defineTimeout)
		defer cancel()
		return o.define(ctx, s, d, key, newOverride(d, key, unit))
	})
	select {
	case r := <-defined:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*rule), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// define defines the limit of r, unless it is defined already.
func (o *overrides) define(ctx context.Context, s *Service, d *domain, key override, r *rule) (_ any, err error) {
	if r, ok := o.rules.Load(key); ok {
		return r, nil
	}
	if o.n.Add(1) > maxOverrides {
		err = &dipwell.FieldError{Field: "limit", Reason: fmt.Sprintf("requests have already brought %d different limits, and no more are possible", maxOverrides)}
	} else {
		_, err = s.limiter.Define(ctx, r.limit, terms.OwnerRLS)
	}
	if err != nil {
		o.n.Add(-1)
		return nil, err
	}
	r.counts = s.metrics.of(d.name, "override")
	o.rules.Store(key, r)
	return r, nil
}

func newOverride(d *domain, key override, unit pb.RateLimitResponse_RateLimit_Unit) *rule {
	r := &rule{windowed: true, near: nearLimit(d.near, int64(key.requests))}
	r.limit.Algorithm, r.limit.Start = dipwell.FixedWindow, "0s"
	r.setRate(key.requests, key.multiplier, unit)
	r.limit.Name = nameOf(fmt.Sprintf("%s override %d/%s", d.name, key.requests, period.Format(r.limit.Period)), "")
	return r
}
