package pgstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/sqlexpr"
	"github.com/dipwell/dipwell/store"
)

// ConnString is the part of a URL that pgx reads.
var ConnString = connString

// Lane is a store of a lane over db.
func Lane(s *Store, db DB) *Store { return s.lane(db) }

// Repeatable is the SQL that creates all functions.
var Repeatable = repeatable

// StoreError wraps the error of a statement that writes.
func StoreError(err error) error { return storeError(err, true) }

// MaxTries bounds the tries of a statement whose error is retryable.
const MaxTries = maxTries

// Statements returns the statements for each distributed engine, including
// takes for all kinds of limits.
func Statements(t testing.TB) map[string][]string {
	out := map[string][]string{}
	for _, e := range []string{yugabyteDB, cockroachDB, citus} {
		d := dialects[e]
		list := append(d.tables(0), markSQL(), "select "+readNow, loadSQL, emptySQL, keysSQL,
			rowSQL, lockSQL, insertRowSQL, updateRowSQL, deleteRowSQL, deleteUnchangedSQL, insertRecordSQL, reservationPartsSQL, recordsSQL, updateRecordSQL, deleteRecordSQL, dueRowsSQL, deleteDueSQL, endedSQL, forgetSQL,
			overrideSQL, insertOverrideSQL, deleteOverrideSQL, overridesSQL, holdSQL, lockHoldSQL, insertHoldSQL, updateHoldSQL, deleteHoldSQL, pageSQL)
		list = append(list, portableDown...)
		for _, l := range []store.Limit{
			{Name: "bucket", Rate: 7, Period: 3 * time.Second, Burst: 9},
			{Name: "slow", Rate: 999_983, Period: 30 * 24 * time.Hour},
			{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "0s"},
			{Name: "spread", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute},
		} {
			list = append(list, d.takeSQL(1, limittest.Definition(l), false), d.takeSQL(1, limittest.Definition(l), true))
		}
		out[e] = list
	}
	return out
}

// MaxRawStatements bounds the statements of a rawConn.
const MaxRawStatements = maxRawStatements

// Combinations returns the number of combinations of limits that have a
// statement.
func Combinations(s *Store) int { return len(s.combos.sql) }

// MaxCombinations bounds them.
const MaxCombinations = maxCombinations

// ForgetLimits makes a store behave as if it had last read the limits an hour
// ago.
func ForgetLimits(s *Store) { s.limits.started = s.limits.started.Add(-time.Hour) }

// ForceUnchecked makes a store use the statements for limits that refused
// nothing recently.
func ForceUnchecked(s *Store) {
	s.noRefusals.n.Store(minCleanRun)
	for _, e := range *s.limits.entries.Load() {
		if e.noRefusals != nil {
			e.noRefusals.n.Store(minCleanRun)
		}
	}
}

// ForceInsertNew makes a store treat every unseen key as new, as if all had
// been.
func ForceInsertNew(s *Store) {
	ForceUpsert(s)
	for _, e := range *s.limits.entries.Load() {
		if e.newKeys != nil {
			e.newKeys.run.Store(minNewRun)
		}
	}
}

// ForceOptimistic makes a store use decideOptimistic for any number of groups.
func ForceOptimistic(s *Store) { s.minOptimistic = 1 }

// ForceUpsert makes a store treat every unseen key as probably new.
func ForceUpsert(s *Store) {
	s.seen.slots.Store(nil)
	for _, e := range *s.limits.entries.Load() {
		if e.newKeys != nil {
			e.newKeys.score.Store(newKeyMax)
		}
	}
}

// Registry, Define and Drop are those of the store's limits, for tests.
func (s *Store) Registry() *store.Registry { return s.cat.Registry() }

func (s *Store) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	return s.cat.Define(ctx, l, owner)
}

func (s *Store) Drop(ctx context.Context, name, owner string) error {
	return s.cat.Drop(ctx, name, owner)
}

// MinCleanRun is how many statements look first.
const MinCleanRun = minCleanRun

// HoldStatements returns the statements of plain holds by name.
func HoldStatements() map[string]string {
	out := map[string]string{"holdOne": holdOneSQL, "settleOne": settleOneSQL, "keyHolds": keyHoldsSQL}
	for _, l := range []store.Limit{
		{Name: "bucket", Rate: 7, Period: 3 * time.Second, Burst: 9},
		{Name: "spread", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute},
		{Name: "slots", Algorithm: store.Concurrency, Burst: 9},
	} {
		s := newStatements(1, limittest.Definition(l), false)
		for name, sql := range map[string]string{"hold": s.hold, "holdBeside": s.holdBeside, "holdFirst": s.holdFirst, "settle": s.settle, "settleBeside": s.settleBeside} {
			if sql != "" {
				out[l.Name+" "+name] = sql
			}
		}
	}
	return out
}

// LowsHoldSQL and LowsSettleSQL are expressions of columns lows, used, number and units
// of b.
func LowsHoldSQL() string { return lowsHoldSQL(sqlexpr.Op("b.used"), sqlexpr.Op("b.units")) }

func LowsSettleSQL() string {
	return lowsSettleSQL(sqlexpr.Op("b.used"), sqlexpr.Op("b.number"), sqlexpr.Op("b.units"))
}

// DBOf returns what a store was opened over.
func DBOf(s *Store) DB { return s.db }

// Refresh reads the limits, as a store does once in each Poll.
func Refresh(ctx context.Context, s *Store) error { return s.cat.Refresh(ctx) }

// GatesWait makes calls of a store wait for a seat as long as it takes.
func GatesWait(s *Store) { s.gates.most = time.Hour }

// RowSeats is how many calls of a row may be in flight.
const RowSeats = rowSeats

// TakeTogether takes a token from each limit and key twice, in a statement for two calls.
func TakeTogether(ctx context.Context, s *Store, from ...[2]string) error {
	groups := []*store.Group{{Err: errAlone}, {Err: errAlone}}
	for _, g := range groups {
		for _, f := range from {
			g.Ops = append(g.Ops, store.Op{Def: s.limits.reg.Lookup(f[0]), Key: f[1], Verb: store.VerbTake, Cost: 1})
		}
	}
	if err := s.takeAllSums(ctx, groups); err != nil {
		return err
	}
	return errors.Join(groups[0].Err, groups[1].Err)
}
