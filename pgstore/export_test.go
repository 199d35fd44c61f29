package pgstore

import (
	"context"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// ConnString is the part of a URL that pgx reads.
var ConnString = connString

// Lane is a store of a lane over db.
func Lane(s *Store, db DB) *Store { return s.lane(db) }

// Repeatable is the SQL that creates all functions.
var Repeatable = current.repeatable

// NextSchema is the schema of a program of the next version, whose migration has the
// statements.
type NextSchema string

func (n NextSchema) schema() *schema {
	next := Migration{Version: SchemaVersion + 1, Name: "made_up", up: string(n)}
	return &schema{append(slices.Clone(current.migrations), next), current.repeatable}
}

// Migrate is Migrate of that program.
func (n NextSchema) Migrate(ctx context.Context, db DB, o MigrateOptions) ([]Migration, error) {
	return n.schema().migrate(ctx, db, o)
}

// SQL is MigrationSQL of that program.
func (n NextSchema) SQL(from int) string { return n.schema().print(MigrateOptions{From: from}) }

// Files is MigrationFiles of that program.
func (n NextSchema) Files() fs.FS { return n.schema().files(MigrateOptions{}) }

// RevisionSQL reads the revision of the limits.
const RevisionSQL = revisionSQL

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
		list := append(d.tables(0), markSQL(), "select "+readNow, clockSQL, portableLimitsSQL, setLimitSQL, keysSQL,
			rowSQL, lockSQL, insertRowSQL, updateRowSQL, deleteRowSQL, deleteUnchangedSQL, setRecordSQL, allRecordsSQL, oneRecordSQL, deleteRecordSQL, countSQL, liveSQL, deleteFreeSQL, pendingSQL, setPendingSQL, deletePendingSQL, dueRowsSQL, deleteDueSQL, deleteDueFreeSQL, endedSQL, forgetSQL, forgetDueSQL,
			overrideSQL, setOverrideRowSQL, deleteOverrideSQL, portableOverridesSQL, holdSQL, lockHoldSQL, insertHoldSQL, updateHoldSQL, deleteHoldSQL, pageSQL, olderSQL)
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

// ForgetLimits makes a store behave as if it had last read the limits an hour
// ago.
func ForgetLimits(s *Store) { s.cat.Started = s.cat.Started.Add(-time.Hour) }

// Registry, Define and Drop are those of the store's limits, for tests.
func (s *Store) Registry() *store.Registry { return s.cat.Registry() }

func (s *Store) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	return s.cat.Define(ctx, l, owner)
}

func (s *Store) Drop(ctx context.Context, name, owner string) error {
	return s.cat.Drop(ctx, name, owner)
}

// Refresh reads the limits, as a store does once in each Poll.
func Refresh(ctx context.Context, s *Store) error { return s.cat.Refresh(ctx) }

// AgeZones makes all comparisons of zones old.
func (s *Store) AgeZones() {
	s.limits.zones.Range(func(k, v any) bool {
		c := v.(comparedZone)
		c.asked = c.asked.Add(-2 * zoneFor)
		s.limits.zones.Store(k, c)
		return true
	})
}
