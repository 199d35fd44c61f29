package pgstore

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell"
)

// portableChange changes the limits in a transaction: the row of the revision
// is the lock that one change at a time holds. f gets the limits as they are,
// their ids, the present instant, and the revision that it makes.
func (c *catalog) portableChange(ctx context.Context, name string, now *int64, f func(tx pgx.Tx, reg *dipwell.Registry, ids map[string]int32, at, revision int64) error) error {
	s := Store{db: c.db, cat: c}
	if now != nil {
		s.clock = func() int64 { return *now }
	}
	return s.transact(ctx, func(tx pgx.Tx) error {
		var revision int64
		if err := tx.QueryRow(ctx, "select n from dipwell.revision where one = 1 for update").Scan(&revision); err != nil {
			return err
		}
		revision++
		defs, ids, _, bad, err := readLimits(ctx, tx)
		if err != nil {
			return err
		}
		at, err := s.txClock(ctx, tx)
		if err != nil {
			return err
		}
		if bad[name] != nil {
			return bad[name]
		}
		var reg dipwell.Registry
		reg.Install(defs)
		if err = f(tx, &reg, ids, at, revision); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "update dipwell.revision set n = $1 where one = 1", revision)
		return err
	})
}

// portableDefine is dipwell_internal.put_limit, by the registry that all stores share. An
// id is the revision that made it: none is ever used again, so that rows of a
// limit that was dropped stay void.
func (c *catalog) portableDefine(ctx context.Context, l dipwell.Limit, owner string, now *int64) error {
	return c.portableChange(ctx, l.Name, now, func(tx pgx.Tx, reg *dipwell.Registry, ids map[string]int32, at, revision int64) error {
		old := reg.Lookup(l.Name)
		d, err := reg.Define(at, l, owner)
		if err != nil {
			return err
		}
		if d == old {
			return errNothing
		}
		id, known := ids[l.Name]
		insert := "update dipwell.limits set name = $2, algorithm = $3, rate = $4, per = $5, burst = $6, max_debt = $7, max_charge = $8, start = $9, on_change = $10, mode = $11, auth = $12, retry_jitter = $13, on_store_error = $14, timeout_us = $15, list_keys = $16, owner = $17, version = $18 where id = $1"
		if !known {
			id = int32(revision)
			insert = "insert into dipwell.limits (id, name, algorithm, rate, per, burst, max_debt, max_charge, start, on_change, mode, auth, retry_jitter, on_store_error, timeout_us, list_keys, owner, version) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
		}
		if _, err = tx.Exec(ctx, insert, id, l.Name, l.Algorithm.String(), l.Rate, dipwell.FormatPeriod(l.Period),
			column(l.Burst, dipwell.NoBurst), column(l.MaxDebt, dipwell.NoDebt), column(l.MaxCharge, 0), text(l.Start),
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
			r.MaxCharge, r.MaxUsed, r.Leaky, r.Spread, dipwell.FormatPeriod(l.Period), text(l.Start))
		return err
	})
}

func (c *catalog) portableDrop(ctx context.Context, name, owner string, now *int64) error {
	return c.portableChange(ctx, name, now, func(tx pgx.Tx, reg *dipwell.Registry, ids map[string]int32, _, _ int64) error {
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
func (c *catalog) byID(id int32) *dipwell.Definition {
	for _, e := range *c.entries.Load() {
		if e.id == id {
			return e.def
		}
	}
	return nil
}

// bucketRow is a row of dipwell.buckets.
type bucketRow struct {
	LimitID int32
	Key     string
	Used    int64
	TS      int64
	Version uint32
}

// portableLag, in µs, is how long a row must have been full before it is swept.
// A statement that read the clock before that and inserts after the sweep would
// count the refill in between twice; here there is no telling which are under way.
const portableLag = 60_000_000

// portableSweep reads pages of rows, and deletes those that are full as they
// were read: one that was touched since is left alone. It looks at every row
// once at most.
func (s *Store) portableSweep(ctx context.Context, n int) (swept int, err error) {
	now, err := s.Now(ctx)
	if err != nil {
		return 0, err
	}
	if s.clock == nil {
		now -= portableLag
	}
	if err = s.portableSweepRecords(ctx, now); err != nil {
		return 0, err
	}
	oldest := map[int32]uint32{}
	at := bucketRow{LimitID: -1}
	for swept < n {
		found, err := s.db.Query(ctx, pageSQL, at.LimitID, at.Key, sweepBatch)
		if err != nil {
			return swept, storeError(err, false)
		}
		page, err := pgx.CollectRows(found, pgx.RowToStructByPos[bucketRow])
		if err != nil {
			return swept, storeError(err, false)
		}
		did, err := s.sweepPage(ctx, page, now, n-swept, oldest)
		swept += did
		if err != nil {
			return swept, err
		}
		if len(page) < sweepBatch {
			return swept, s.portableRetire(ctx, now, oldest)
		}
		at = page[len(page)-1]
	}
	return swept, nil
}

func (s *Store) sweepPage(ctx context.Context, page []bucketRow, now int64, most int, oldest map[int32]uint32) (swept int, err error) {
	defs := map[int32]*dipwell.Definition{}
	for _, e := range *s.cat.entries.Load() {
		defs[e.id] = e.def
	}
	var b pgx.Batch
	for _, row := range page {
		d := defs[row.LimitID]
		if d != nil && !full(d, row, now) || b.Len() == most {
			if v, ok := oldest[row.LimitID]; !ok || row.Version < v {
				oldest[row.LimitID] = row.Version
			}
			continue
		}
		if d == nil && !s.dropped(ctx, row.LimitID) {
			continue
		}
		b.Queue(sweepSQL, row.LimitID, row.Key, row.Used, row.TS, int32(row.Version)).Exec(func(tag pgconn.CommandTag) error {
			swept += int(tag.RowsAffected())
			return nil
		})
	}
	if b.Len() == 0 {
		return 0, nil
	}
	run := func() error { swept = 0; return s.db.SendBatch(ctx, &b).Close() }
	return swept, storeError(s.again(ctx, run(), run), false)
}

// full reports whether a row is a full bucket of its key.
func full(d *dipwell.Definition, row bucketRow, now int64) bool {
	state, ok := d.Carry(dipwell.State{Used: row.Used, TS: row.TS, Version: row.Version}, row.Key)
	if !ok {
		return false
	}
	var scratch dipwell.Rule
	return d.RuleFor(row.Key, &scratch).Apply(state, now, dipwell.VerbCheck, 0).Before == 0
}

// dropped reports whether a limit that this program does not know is gone,
// rather than new.
func (s *Store) dropped(ctx context.Context, id int32) bool {
	var there bool
	err := s.db.QueryRow(ctx, "select exists (select 1 from dipwell.limits where id = $1)", id).Scan(&there)
	return err == nil && !there
}

// keepVersion is how long a version is kept after the next one began. A program
// reads the limits at most maxUnheard before it sends a statement, and no
// statement takes the rest of this time. A row that was inserted under a version
// that is gone would count as full.
const keepVersion = 10 * time.Minute

// portableRetire forgets versions that no row of a full pass named.
func (s *Store) portableRetire(ctx context.Context, now int64, oldest map[int32]uint32) error {
	for _, e := range *s.cat.entries.Load() {
		if len(e.def.Past) == 0 {
			continue
		}
		first, ok := oldest[e.id]
		if !ok {
			first = e.def.Number
		}
		for _, v := range append(slices.Clone(e.def.Past), e.def.Version()) {
			if v.Since >= now-keepVersion.Microseconds() { // the one before it is still kept
				first = min(first, v.Number-1)
			}
		}
		if _, err := s.db.Exec(ctx, `delete from dipwell.versions where limit_id = $1 and number < $2 and number < $3
			and not exists (select 1 from dipwell.reservations x where x.limit_id = $1)`, e.id, int32(first), int32(e.def.Number)); err != nil {
			return storeError(err, false)
		}
	}
	return nil
}
