package pgstore_test

import (
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/audit"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// What is changed in SQL is in the audit, once, and the audit has the last entries.
func TestAuditOfSQL(t *testing.T) {
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	for _, sql := range []string{
		"select dipwell.define('api', rate => 5, per => interval '1 minute')",
		"select dipwell.define('api', rate => 5, per => interval '1 minute')",
		"select dipwell.define_plan('api', 'pro', rate => 600)",
		"select dipwell.override('api', 'k', plan => 'pro', note => 'ticket 81')",
		"select dipwell.end_override('api', 'k')",
		"select dipwell.end_override('api', 'k')",
		"select dipwell.drop_plan('api', 'pro')",
		"select dipwell.reset('api', 'k')",
		"select dipwell.drop('api')",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	a := store.AbilitiesOf(s).Audit
	list, err := a.Audit(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, e.Action+" "+e.Key)
		if e.Who == "" || e.Limit != "api" || e.At == 0 {
			t.Errorf("%+v", e)
		}
	}
	if want := "drop ,define ,end-override k,override k,define ,define "; strings.Join(got, ",") != want {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err = pool.Exec(t.Context(), "insert into dipwell.audit select dipwell_internal.audit_id(1, i), timestamptz 'epoch', '', 'reset', 'api', '', '', '' from generate_series(1, 10005) i"); err != nil {
		t.Fatal(err)
	}
	// recorded makes changes until old entries are deleted, and counts both.
	recorded := func() (changes, left int) {
		for before := number(t, pool, "select count(*) from dipwell.audit"); changes < 2000; {
			if err = a.Record(t.Context(), store.AuditEntry{Action: "reset", Limit: "api"}); err != nil {
				t.Fatal(err)
			}
			changes++
			if left = number(t, pool, "select count(*) from dipwell.audit"); left < before {
				break
			}
		}
		return changes, left
	}
	if changes, left := recorded(); changes != 1 || left != 7 { // the others are too old
		t.Errorf("%d entries after %d changes", left, changes)
	}
	if _, err = pool.Exec(t.Context(), "insert into dipwell.audit select dipwell_internal.audit_id(dipwell_internal.now_us(), i), now(), '', 'reset', 'api', '', '', '' from generate_series(1, 10005) i"); err != nil {
		t.Fatal(err)
	}
	if changes, left := recorded(); left != audit.Entries {
		t.Errorf("%d entries after %d changes", left, changes)
	}
}
