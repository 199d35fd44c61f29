package pgstore

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Repeatable makes all functions anew.
var Repeatable = repeatable

// StoreError is what a statement that writes makes of its error.
func StoreError(err error) error { return storeError(err, true) }

// MaxTries bounds how often a statement that has collided is tried.
const MaxTries = maxTries

// Statements are all that each distributed engine is asked, takes for limits of
// every kind included.
func Statements(t testing.TB) map[Engine][]string {
	out := map[Engine][]string{}
	for _, e := range []Engine{YugabyteDB, CockroachDB, Citus} {
		d := dialects[e]
		list := append(d.tables(0), markSQL(), "select "+d.clock, loadSQL, keysSQL,
			rowSQL, lockSQL, insertRowSQL, updateRowSQL, deleteRowSQL, deleteUnchangedSQL, insertRecordSQL, reservationPartsSQL, recordsSQL, updateRecordSQL, deleteRecordSQL, deleteRecordsSQL, dueRowsSQL, deleteDueSQL, pageSQL)
		list = append(list, portableDown...)
		for _, l := range []store.Limit{
			{Name: "bucket", Rate: 7, Period: 3 * time.Second, Burst: 9},
			{Name: "slow", Rate: 999_983, Period: 30 * 24 * time.Hour},
			{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "0s"},
			{Name: "spread", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute},
		} {
			list = append(list, d.takeSQL(1, store.MustDefinition(l), false), d.takeSQL(1, store.MustDefinition(l), true))
		}
		out[e] = list
	}
	return out
}

// MaxWired is for tests.
const MaxRawStatements = maxRawStatements

// Pairings is how many combinations of limits have a statement.
func Combinations(s *Store) int { return len(s.combos.sql) }

// MaxPairings bounds them.
const MaxCombinations = maxCombinations

// Forget makes a store behave as if it had heard nothing of its limits for an hour.
func Forget(s *Store) { s.cat.started = s.cat.started.Add(-time.Hour) }

// ExpectRoom makes a store's next statements those of one that has refused nothing for long.
func ExpectRoom(s *Store) {
	s.noRefusals.n.Store(minCleanRun)
	for _, e := range *s.cat.entries.Load() {
		if e.noRefusals != nil {
			e.noRefusals.n.Store(minCleanRun)
		}
	}
}

// CertainlyNew makes a store take every key for new, as if all lately were.
func CertainlyNew(s *Store) {
	ExpectNew(s)
	for _, e := range *s.cat.entries.Load() {
		if e.newKeys != nil {
			e.newKeys.run.Store(minNewRun)
		}
	}
}

// Keep makes a store decide every group of a batch that walks lists by kept.
func ForceOptimistic(s *Store) { s.minOptimistic = 1 }

// ExpectNew makes a store take every key for new.
func ExpectNew(s *Store) {
	s.seen.slots.Store(nil)
	for _, e := range *s.cat.entries.Load() {
		if e.newKeys != nil {
			e.newKeys.score.Store(newKeyMax)
		}
	}
}
