package server

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

// ofOneLimit calls f, if the caller may name the limit.
func ofOneLimit(ctx context.Context, limit string, f func() error) error {
	if err := callerOf(ctx).mayName("limit", limit); err != nil {
		return err
	}
	return f()
}

// decision returns the decision that f makes.
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
	out := new(dipwellv1.ReadyResponse)
	return out, ofOneLimit(ctx, c.Limit, func() (err error) {
		q := request{keys: c.Keys}
		var seen members
		q.take, seen = takeOf(&dipwellv1.Take{Limit: c.Limit, Cost: c.Cost, Plan: c.Plan})
		for i, key := range c.Keys {
			if err == nil && key == dipwell.Shared {
				err = bad(fmt.Sprintf("keys[%d]", i), "has a NUL byte")
			}
		}
		if err == nil {
			err = finish(&q.take, seen|hasKey, "")
		}
		if err == nil {
			out.Keys, err = v.readyKeys(ctx, &q)
		}
		return err
	})
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

func (v *verbs) Holds(ctx context.Context, c *dipwellv1.HoldsRequest) (*dipwellv1.HoldsResponse, error) {
	out := new(dipwellv1.HoldsResponse)
	return out, ofOneLimit(ctx, c.Limit, func() error {
		key, err := keyOf(c.Key)
		if err != nil {
			return err
		}
		holds, err := v.limiter.Holds(ctx, c.Limit, key)
		for _, h := range holds {
			out.Holds = append(out.Holds, &dipwellv1.KeyHold{Hold: h.ID, Tokens: h.Tokens, ExpiresUs: h.Expires})
		}
		return err
	})
}

func (v *verbs) SetOverride(ctx context.Context, c *dipwellv1.SetOverrideRequest) (out *dipwellv1.Override, err error) {
	err = ofOneLimit(ctx, c.GetOverride().GetLimit(), func() error {
		q, err := overrideOf(c)
		if err != nil {
			return err
		}
		limit := c.GetOverride().GetLimit()
		o, err := v.setOverride(ctx, limit, q)
		if err != nil {
			return err
		}
		v.recordCall(ctx, store.AuditEntry{Action: didOverride, Limit: limit, Key: o.Key, What: describe(&o), Note: o.Note})
		out = protoOverride(limit, &o)
		return nil
	})
	return out, err
}

func (v *verbs) EndOverride(ctx context.Context, c *dipwellv1.EndOverrideRequest) (*dipwellv1.EndOverrideResponse, error) {
	out := &dipwellv1.EndOverrideResponse{}
	return out, ofOneLimit(ctx, c.Limit, func() error {
		key, err := keyOf(c.Key)
		var kind store.OverrideKind
		if err == nil {
			kind, err = optionalKind(c.Kind)
		}
		var ended *dipwell.Override
		if err == nil {
			ended, err = v.endOverride(ctx, c.Limit, key, kind)
		}
		if err == nil {
			out.Ended = protoOverride(c.Limit, ended)
			v.recordCall(ctx, store.AuditEntry{Action: didEndOverride, Limit: c.Limit, Key: key, What: describe(ended)})
		}
		return err
	})
}

func (v *verbs) Overrides(ctx context.Context, c *dipwellv1.OverridesRequest) (*dipwellv1.OverridesResponse, error) {
	out := new(dipwellv1.OverridesResponse)
	return out, ofOneLimit(ctx, c.Limit, func() error {
		n := int(c.N)
		if n == 0 {
			n = pageKeys
		}
		if n < 1 || n > maxKeys {
			return bad("n", "must be from 1 to 1000")
		}
		after := c.GetAfter()
		if c.After != nil && after == "" {
			after = dipwell.Shared
		}
		kind, err := optionalKind(c.Kind)
		if err != nil {
			return err
		}
		list, err := v.limiter.Overrides(ctx, c.Limit, c.Prefix, after, n)
		for i := range list {
			for _, o := range allListed(&list[i], kind) {
				out.Overrides = append(out.Overrides, protoOverride(c.Limit, &o))
			}
		}
		return err
	})
}

// optionalKind is kindOf of a field that may be absent.
func optionalKind(name string) (store.OverrideKind, error) {
	if name == "" {
		return store.AnyOverride, nil
	}
	return kindOf(name)
}

// keyOf returns the key of an optional field.
func keyOf(key *string) (string, error) {
	if key == nil {
		return dipwell.Shared, nil
	}
	return *key, checkPlain(*key)
}

// microseconds converts a field in µs.
func microseconds(field string, us int64) (time.Duration, error) {
	if us < 0 || us > int64(365*24*time.Hour/time.Microsecond) {
		return 0, bad(field, "is not between 0 and a year")
	}
	return time.Duration(us) * time.Microsecond, nil
}

func overrideOf(c *dipwellv1.SetOverrideRequest) (*overrideCall, error) {
	o := c.GetOverride()
	if o == nil {
		return nil, bad("override", "is missing")
	}
	q := &overrideCall{plan: o.Plan, start: o.Start, note: o.Note, until: o.UntilUs}
	var err error
	if q.key, err = keyOf(o.Key); err != nil {
		return nil, err
	}
	if o.Rate < 0 {
		return nil, bad("rate", "is less than 0")
	}
	q.numbers.Rate = o.Rate
	if q.numbers.Period, err = microseconds("per_us", o.PerUs); err != nil {
		return nil, err
	}
	if o.Burst != nil {
		if q.numbers.Burst = *o.Burst; *o.Burst < 0 {
			return nil, bad("burst", "is less than 0")
		} else if *o.Burst == 0 {
			q.numbers.Burst = dipwell.NoBurst
		}
	}
	if q.lasts, err = microseconds("for_us", c.GetForUs()); err == nil && q.lasts > 0 && q.until != 0 {
		err = bad("for_us", "is given together with until_us; give one of them")
	}
	return q, err
}

func protoOverride(limit string, o *dipwell.Override) *dipwellv1.Override {
	if o == nil {
		return nil
	}
	out := &dipwellv1.Override{Limit: limit, Plan: o.Plan, Rate: o.Rate, PerUs: o.Period.Microseconds(), Start: o.Start, UntilUs: o.Until, Note: o.Note, Kind: o.Kind().String(),
		Under: protoOverride(limit, o.Under), Replaced: protoOverride(limit, o.Replaced)}
	if o.Key != "" {
		out.Key = &o.Key
	}
	if o.Burst != 0 {
		burst := max(o.Burst, 0) // NoBurst is -1
		out.Burst = &burst
	}
	return out
}
