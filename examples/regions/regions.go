// Package regions shows rate limits in two regions, with a PostgreSQL server in each: the
// limits of customers are decided in their own region, and one limit for the world in the
// home region, from which processes elsewhere take tokens in advance.
package regions

import (
	"context"
	"errors"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/stack"
)

// Rate and Burst are of the limit for the world, in requests a second.
const (
	Rate  = 2000
	Burst = 4000
)

// lease is the longest that fits the burst, and many times the way to the home region and
// back, which is about a tenth of a second at most.
const lease = time.Second

// A Region decides the requests of one process.
type Region struct {
	own, world *dipwell.Limiter
	close      []func() error
}

// Open opens the store of the process's own region, and that of the home region, which may
// be the same database.
func Open(ctx context.Context, own, home pgstore.DB) (*Region, error) {
	r := new(Region)
	var err error
	r.own, err = r.open(ctx, own, dipwell.Limit{Name: "customer", Rate: 100, Period: time.Second, Burst: 200})
	if err == nil {
		r.world, err = r.open(ctx, home, dipwell.Limit{Name: "world", Rate: Rate, Period: time.Second, Burst: Burst, Shared: true, Lease: lease, Timeout: lease})
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Region) open(ctx context.Context, db pgstore.DB, limit dipwell.Limit) (*dipwell.Limiter, error) {
	base, err := pgstore.New(ctx, db, pgstore.Config{})
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, base.Close)
	s, err := stack.New(ctx, base, stack.Options{Breaker: true, DenyMaxAge: time.Second, Leases: true})
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, s.Close)
	return dipwell.New(s.Store, limit)
}

// Take takes one request of a customer. Two databases have no transaction in common: what
// the customer's limit gave is given back if the world's refuses, but not if this process
// dies in between.
func (r *Region) Take(ctx context.Context, customer string) (dipwell.Decision, error) {
	d, err := r.own.Take(ctx, "customer", customer, 1)
	if err != nil || !d.Allowed {
		return d, err
	}
	d, err = r.world.Take(ctx, "world", dipwell.Shared, 1)
	if err != nil || !d.Allowed {
		_, refund := r.own.Refund(ctx, "customer", customer, 1)
		err = errors.Join(err, refund)
	}
	return d, err
}

// Close gives back the tokens that were taken in advance. The databases stay open.
func (r *Region) Close() error {
	var errs []error
	for i := len(r.close) - 1; i >= 0; i-- {
		errs = append(errs, r.close[i]())
	}
	return errors.Join(errs...)
}
