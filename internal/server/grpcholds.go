package server

import (
	"context"
	"time"

	"github.com/dipwell/dipwell"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

// decision returns the decision that f makes, converted for gRPC.
func decision(f func(d *dipwell.Decision) error) (*dipwellv1.Decision, error) {
	var d dipwell.Decision
	if err := f(&d); err != nil {
		return nil, err
	}
	return decisionOf(&d), nil
}

func (v *verbs) Wait(ctx context.Context, c *dipwellv1.WaitRequest) (*dipwellv1.Decision, error) {
	return decision(func(d *dipwell.Decision) error {
		q, err := callOf(ctx, ofTake|hasTakes, &dipwellv1.Take{Limit: c.Limit, Key: c.Key, Cost: c.Cost, Plan: c.Plan, Floor: c.Floor}, c.Takes)
		if err != nil {
			return err
		}
		if c.TimeoutUs != 0 {
			q.seen |= hasTimeout
		}
		if q.timeout, err = microseconds("timeout_us", c.TimeoutUs); err == nil {
			err = v.await(ctx, d, &q)
		}
		return err
	})
}

func (v *verbs) Ready(ctx context.Context, c *dipwellv1.ReadyRequest) (*dipwellv1.ReadyResponse, error) {
	if err := callerOf(ctx).mayName("limit", c.Limit); err != nil {
		return nil, err
	}
	q := request{keys: c.Keys}
	var seen members
	q.take, seen = takeOf(&dipwellv1.Take{Limit: c.Limit, Cost: c.Cost, Plan: c.Plan})
	if err := finish(&q.take, seen|hasKey, ""); err != nil {
		return nil, err
	}
	keys, err := v.readyKeys(ctx, &q)
	return &dipwellv1.ReadyResponse{Keys: keys}, err
}

func (v *verbs) Hold(ctx context.Context, c *dipwellv1.HoldRequest) (*dipwellv1.Decision, error) {
	return decision(func(d *dipwell.Decision) error {
		q, err := callOf(ctx, ofTake|hasTakes, &dipwellv1.Take{Limit: c.Limit, Key: c.Key, Cost: c.Cost, Plan: c.Plan, Floor: c.Floor}, c.Takes)
		if err != nil {
			return err
		}
		q.id = c.Id
		if q.ttl, err = microseconds("ttl_us", c.TtlUs); err == nil {
			err = v.doHold(ctx, d, &q)
		}
		return err
	})
}

func (v *verbs) Settle(ctx context.Context, c *dipwellv1.SettleRequest) (*dipwellv1.Decision, error) {
	return decision(func(d *dipwell.Decision) error {
		if len(c.Costs) > store.MaxTakes {
			return bad("costs", tooManyTakes)
		}
		return v.doSettle(ctx, d, &request{hold: c.Hold, costs: c.Costs, seen: hasCosts})
	})
}

func (v *verbs) Extend(ctx context.Context, c *dipwellv1.ExtendRequest) (*dipwellv1.Decision, error) {
	return decision(func(d *dipwell.Decision) error {
		ttl, err := microseconds("ttl_us", c.TtlUs)
		if err != nil {
			return err
		}
		return v.doExtend(ctx, d, &request{hold: c.Hold, ttl: ttl})
	})
}

func microseconds(field string, us int64) (time.Duration, error) {
	if us < 0 || us > int64(365*24*time.Hour/time.Microsecond) {
		return 0, bad(field, "is not between 0 and a year")
	}
	return time.Duration(us) * time.Microsecond, nil
}
