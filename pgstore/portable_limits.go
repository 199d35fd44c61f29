package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

// change changes the limits in a transaction: the row of the revision
// is the lock that one change at a time holds. f gets the limits as they are,
// their ids, the present instant, and the revision that it makes.
func (s portable) change(ctx context.Context, name string, now *int64, f func(tx pgx.Tx, reg *store.Registry, ids map[string]int32, at, revision int64) error) error {
	if now != nil {
		with := *s.Store
		with.clock = func() int64 { return *now }
		s.Store = &with
	}
	return s.transact(ctx, func(tx pgx.Tx) error {
		var revision int64
		if err := tx.QueryRow(ctx, "select n from dipwell.revision where one = 1 for update").Scan(&revision); err != nil {
			return err
		}
		revision++
		read, err := readLimits(ctx, tx)
		if err != nil {
			return err
		}
		at, err := s.txClock(ctx, tx)
		if err != nil {
			return err
		}
		if read.bad[name] != nil {
			return read.bad[name]
		}
		var reg store.Registry
		reg.Install(read.defs)
		if err = f(tx, &reg, read.ids, at, revision); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "update dipwell.revision set n = $1 where one = 1", revision)
		return err
	})
}

// put is dipwell_internal.put_limit, by the registry that all stores share. An
// id is the revision that made it: none is ever used again, so that rows of a
// limit that was dropped stay void.
func (s portable) put(ctx context.Context, l store.Limit, _ *store.Rule, owner string, now *int64) error {
	return s.change(ctx, l.Name, now, func(tx pgx.Tx, reg *store.Registry, ids map[string]int32, at, revision int64) error {
		old := reg.Lookup(l.Name)
		d, err := reg.Define(at, l, owner)
		if err != nil {
			return err
		}
		if d == old {
			return errNoWrite
		}
		id, known := ids[l.Name]
		insert := "update dipwell.limits set name = $2, algorithm = $3, rate = $4, per = $5, burst = $6, max_debt = $7, max_charge = $8, start = $9, on_change = $10, mode = $11, auth = $12, retry_jitter = $13, on_store_error = $14, timeout_us = $15, list_keys = $16, owner = $17, version = $18 where id = $1"
		if !known {
			id = int32(revision)
			insert = "insert into dipwell.limits (id, name, algorithm, rate, per, burst, max_debt, max_charge, start, on_change, mode, auth, retry_jitter, on_store_error, timeout_us, list_keys, owner, version) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
		}
		if _, err = tx.Exec(ctx, insert, id, l.Name, l.Algorithm.String(), l.Rate, period.Format(l.Period),
			column(l.Burst, store.NoBurst), column(l.MaxDebt, store.NoDebt), column(l.MaxCharge, 0), text(l.Start),
			l.OnChange.String(), l.Mode.String(), l.Auth, int32(l.RetryJitter), l.OnStoreError.String(), l.Timeout.Microseconds(), l.ListKeys,
			d.Owner, int32(d.Number)); err != nil {
			return err
		}
		if old != nil && old.Number == d.Number {
			return nil
		}
		r := &d.Rule
		_, err = tx.Exec(ctx, `insert into dipwell.versions (limit_id, number, since, policy, unit, every, add, cap, origin, burst, debt, most,
    max_charge, max_used, leaky, spread, per, start) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)`,
			id, int32(d.Number), d.Since, d.Policy.String(), r.Unit, r.Every, r.Add, r.Cap, r.Origin, r.Burst, r.Debt, r.Most,
			r.MaxCharge, r.MaxUsed, r.Leaky, r.Spread, period.Format(l.Period), text(l.Start))
		return err
	})
}

func (s portable) drop(ctx context.Context, name, owner string, now *int64) error {
	return s.change(ctx, name, now, func(tx pgx.Tx, reg *store.Registry, ids map[string]int32, _, _ int64) error {
		if err := reg.Drop(name, owner); err != nil {
			return err
		}
		for _, statement := range []string{
			"delete from dipwell.reservations where limit_id = $1",
			"delete from dipwell.versions where limit_id = $1",
		} {
			if _, err := tx.Exec(ctx, statement, ids[name]); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "delete from dipwell.limits where id = $1", ids[name])
		return err
	})
}

// byID finds a limit's definition, or nil.
func (c *catalog) byID(id int32) *store.Definition {
	for _, e := range *c.entries.Load() {
		if e.id == id {
			return e.def
		}
	}
	return nil
}
