package storetest

import (
	"slices"
	"strings"
	"testing"
)

// A duty is what a store has to do besides deciding by Group.Decide, and the
// cases that fail where it does not. docs/adding-a-store.md explains each under
// its name. Group.DecideIn and SweepRow do all but atomic, clock, keys, limits
// and list.
type duty struct{ name, says, cases string }

var duties = []duty{
	{"atomic", "decide a group while all of its rows are locked, and read a row only after it is locked",
		"race-take race-take-up-to race-group race-refill first-insert cas-collapse lock-wait-double-credit group-all-or-nothing group-sixteen batch-independent-groups worked-5-user-and-tenant"},
	{"clock", "read the store's own clock once for each group, after its rows are locked; a caller's clock decides nothing",
		"two-clocks caller-clock clock-back late-writer-wipes"},
	{"write", "store the row that Decide returned where write says so, with TS and Version; after a refusal or a Check store nothing",
		"take check take-up-to charge refund group-check peek-consumes denial-starves round-up-grants lost-partial-interval early-expiry fast-rate-truncation cost-tested-twice false-local-denial negative-mints overflow-bypass " +
			"coarse-ticks golden-apply worked-1-sixty-a-second worked-2-grid worked-3-ten-then-one worked-6-no-more-than-burst window-restart window-rollover unlimited-debt zero-means-unlimited"},
	{"answers", "leave the answers in the group and its ops as Decide filled them in",
		"ambiguous-zero never-finite-retry retry-exact cost-zero shadow group-shadow group-latest-retry group-never group-same-key-adds-up bad-input"},
	{"windows", "decide by Op.RuleFor, which knows where the windows of a key begin, and set Op.Phase to 0 where Key changes",
		"window-spread window-remembered window-calendar golden-origin golden-calendar"},
	{"versions", "keep State.Version with the row, decide under the newest definition of the limit, and have Now in the Abilities, so that a version begins by the store's time",
		"stale-after-change change-keep change-proportional change-reset change-several-versions change-algorithm change-mode-only golden-carry race-change"},
	{"limits", "be a Definer: keep the limits in a Registry, which checks owners and numbers versions, also after a Drop",
		"owners owner-files first-use call-site-definition drop-and-redefine"},
	{"reservations", "keep a reservation where Group.Reserved says so: Group.ID, its due time, and a Record (Op.Record) of each key it took of",
		"reserve leaky-bucket reserve-many worked-4-debt worked-7-perfectly-spaced wait-deadline wait-bounded wait-never wait-no-debt wait-at-once"},
	{"cancel", "cancel a known reservation before it is due, once, all of its parts (Definition.GiveBack); otherwise the error is ErrReservation",
		"cancel-until-due cancel-group cancel-clock-back cancel-refill double-cancel-mints cancelled-wait-leaks race-reserve-cancel group-cancel-mints cancel-of-passed-debt cancel-before-later cancel-withheld-for-good " +
			"held-before-later cancel-after-cancel cancelled-waits-in-any-order cancel-of-forty cancel-refund-charge cancel-leaves-another-list"},
	{"records", "keep Lows with the row, and call Definition.Settle with all its records before each write to a row that has Lows",
		"cancel-due-limits-for-good remade-row cancel-of-swept-row cancel-beside-clipped-charge cancel-after-refusal cancel-rests-of-another-list cancel-after-change cancel-after-proportional-change change-with-reservation"},
	{"reset", "on a Reset delete the row and its records, and end every reservation with a part in it; its records of other keys stay",
		"reset cancel-after-reset cancel-beside-neighbours-reset"},
	{"drop", "on a Drop delete the limit's rows and records, and end every reservation with a part in them",
		"cancel-after-drop cancel-beside-neighbours-drop"},
	{"keys", "tell keys apart by every byte, and the same key of two limits too; the shared bucket is the key \"\"",
		"keys-apart keys-unusual keys-many group-shared-bucket"},
	{"list", "page through the keys that have rows in byte order (Abilities.Keys)",
		"keys-list"},
	{"sweep", "delete full rows alone, under the lock under which they were found to be full (Abilities.Sweep)",
		"sweep sweep-race"},
	{"all", "this is a random history of all calls, and the message has the one that was answered differently: look first at what fails besides",
		"model giving-back"},
}

// names adds the duty that a case is about to the message of its failure.
func names(t *testing.T, testCase string) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, d := range duties {
			if slices.Contains(strings.Fields(d.cases), testCase) {
				t.Logf("duty %q: %s (docs/adding-a-store.md)", d.name, d.says)
			}
		}
	})
}
