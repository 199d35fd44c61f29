package storetest

import (
	"slices"
	"strings"
	"testing"
)

// A duty is something that a store must do besides calling Group.Decide. cases names the cases
// that fail if a store does not. Group.DecideIn and SweepRow do all duties except atomic,
// clock, keys, limits, drop, list and the abilities Overrides, Holds, Audit, TopKeys and
// Usage.
type duty struct{ name, text, cases string }

var duties = []duty{
	{"atomic", "lock all rows of a group before reading them, and keep the locks until the group is decided and stored",
		"race-take race-take-up-to race-group race-refill first-insert cas-collapse lock-wait-double-credit group-all-or-nothing group-sixteen batch-independent-groups worked-5-user-and-tenant levels levels-take-up-to levels-take-up-to-above-burst levels-take-up-to-shadow race-levels"},
	{"clock", "read the store's own clock, not the caller's, once for each group, after its rows are locked",
		"two-clocks caller-clock clock-back late-writer-wipes"},
	{"write", "store the rows for which Decide set write, with TS and Version; after a refusal or a Check store nothing",
		"take shards shards-verbs shards-promise shards-group check take-up-to charge refund group-check peek-consumes denial-starves round-up-grants lost-partial-interval early-expiry fast-rate-truncation cost-tested-twice false-local-denial negative-mints overflow-bypass " +
			"coarse-ticks golden-apply worked-1-sixty-a-second worked-2-grid worked-3-ten-then-one worked-6-no-more-than-burst window-restart window-rollover unlimited-debt zero-means-unlimited"},
	{"answers", "leave the answers in the group and its ops as Decide filled them in",
		"ambiguous-zero never-finite-retry retry-exact cost-zero shadow group-shadow group-latest-retry group-never group-same-key-adds-up bad-input"},
	{"windows", "decide by Op.RuleFor, which computes where the windows of a key begin; set Op.Phase to 0 when changing Op.Key",
		"window-spread window-remembered window-calendar window-first-call window-first-call-changed sliding-window sliding-retries sliding-verbs golden-origin golden-calendar"},
	{"versions", "store State.Version with the row, decide under the newest definition of the limit, and have the ability Now, so that versions begin at the store's time",
		"stale-after-change change-keep change-proportional change-reset change-several-versions change-many-times change-after-hundreds change-algorithm change-mode-only sliding-changes define-again shards-change golden-carry race-change"},
	{"limits", "have the ability Limits: keep the limits in a Registry, which checks owners and continues version numbers after a Drop",
		"sliding-input owners owner-files first-use call-site-definition drop-and-redefine"},
	{"reservations", "decide a group with an ID that has to wait by Group.DecideIn, and store the Pending and the records that it makes",
		"reserve group-delay leaky-bucket reserve-many reserve-too-many reserve-months worked-4-debt worked-7-perfectly-spaced wait-deadline wait-bounded wait-bounded-window wait-never wait-no-debt wait-at-once"},
	{"cancel", "cancel a reservation at most once, before it is due, with all of its parts, by Group.DecideIn; otherwise return ErrReservation",
		"cancel-until-due cancel-group sliding-cancel cancel-beside-charge levels-reserve cancel-clock-back cancel-refill double-cancel-mints cancelled-wait-leaks race-reserve-cancel group-cancel-mints cancel-of-passed-debt cancel-before-later cancel-withheld-for-good " +
			"held-before-later cancel-after-cancel cancelled-waits-in-any-order cancel-of-forty cancel-refund-charge cancel-leaves-another-list"},
	{"records", "store Lows with the row, and decide calls of a row that has Lows by Group.DecideIn, with its records",
		"cancel-due-limits-for-good cancel-due-order remade-row cancel-of-swept-row cancel-beside-clipped-charge cancel-after-refusal cancel-rests-of-another-list cancel-after-change cancel-after-proportional-change change-with-reservation"},
	{"reset", "on a Reset delete the row, its records and every reservation with a part in it; keep the records of those reservations on other keys",
		"reset cancel-after-reset cancel-beside-neighbours-reset"},
	{"drop", "on a Drop delete the limit's rows and records and every reservation with a part in them",
		"cancel-after-drop cancel-beside-neighbours-drop"},
	{"keys", "compare keys byte by byte, and keep the keys of different limits apart; the shared bucket has the key \"\"",
		"keys-apart keys-unusual keys-many group-shared-bucket null-key ready"},
	{"list", "page through the keys that have rows, in byte order (ability Keys)",
		"keys-list shards-keys shards-ready"},
	{"sweep", "delete only full rows, under the same lock under which they were found to be full (ability Sweep)",
		"sweep sweep-race"},
	{"plans", "store all 32 bits of State.Version, which name the plan too, and decide under Op.Def as the caller set it, with Op.Floor and at Op.Fraction",
		"plan plan-leased plan-retry plan-refusal-moves plan-refusals-slow-nobody plan-refusal-of-nothing plan-refund plan-alternates plan-window plan-unlimited plan-blocked plan-shadow plan-charge plan-charge-full plan-reserve plan-reserve-bounded plan-group plan-levels plan-change " +
			"floor floor-check floor-group plan-golden floor-golden price-rate price-promise price-full price-floor price-group price-plan"},
	{"overrides", "have the ability Overrides (Definition.SetOverrideIn); read the override of a key with its row, and also if it has none; keep one that has ended until the row was converted; a Drop deletes them",
		"override-clock-back override-layers override-layers-changed override-layers-version override-ends-with-version override-until override-retry-at-most-its-end override-numbers override-above-plan override-of-a-new-key override-blocked override-blocked-check override-shadow " +
			"override-unlimited override-ended override-replaced override-reset override-sweep override-swept-after-its-end override-of-an-old-version override-change " +
			"override-reservation override-charge override-hold override-list override-bad-input override-of-a-former-key override-drop override-plan-drop override-unfit override-unfit-race override-golden shards-override " +
			"block-begins block-begins-with-others block-begins-not block-waits-begin-none block-ends block-clock-back block-changes-no-row block-by-hand block-over-standing block-reset block-holds block-after-expiry block-redefined block-limits block-golden override-start override-start-layers override-start-of-each-kind override-start-sliding override-start-refused override-start-holds override-start-block"},
	{"holds", "have the ability Holds; keep every field of Hold and Record; count the parts of live holds that took nothing; give back expired holds at the first call of their key, and in the sweep; a Reset or a Drop ends the holds of the row",
		"hold hold-refused hold-list settle-less settle-as-held settle-nothing settle-more settle-beyond-max-charge settle-beyond-max-charge-levels hold-beside-ban settle-again " +
			"hold-expires hold-expires-charge hold-expires-override hold-outlives-override hold-expires-ban override-before-shadow settle-expired settle-given-back settle-expired-beyond-max-charge hold-kept hold-kept-touched hold-kept-forgotten hold-kept-changed hold-forgotten hold-forgotten-hour hold-again hold-again-free hold-again-override hold-again-ended " +
			"extend extend-ended hold-several hold-reset hold-reset-all hold-reset-expired hold-reset-expired-full hold-reset-forgotten hold-nothing hold-several-nothing settle-several-nothing hold-several-free hold-free hold-too-many hold-unlimited hold-shadow hold-plan hold-blocked " +
			"hold-floor hold-leaky hold-bad-input expired-hold-hides hold-expires-first hold-expires-never hold-expires-check hold-sweep hold-sweep-again hold-drop hold-drop-free hold-drop-expired hold-drop-settled hold-drop-expired-other hold-parent-drop hold-plan-drop " +
			"settle-late-most settle-beside-dropped settle-all-dropped hold-takes-add-up settle-takes-again hold-change hold-change-sliding hold-change-slower hold-change-proportional hold-change-clock-back hold-change-reset hold-expires-change hold-expires-override-several hold-bound-shadow-override hold-expires-override-version hold-expires-dropped-plan hold-change-low hold-outlives-row hold-clock-back hold-before-later hold-golden levels-golden together-golden"},
	{"concurrency", "keep the records of a row that has no Lows",
		"concurrency concurrency-settle concurrency-expires concurrency-expires-unused concurrency-time concurrency-extend concurrency-check concurrency-reset " +
			"concurrency-verbs concurrency-change concurrency-unlimited concurrency-override concurrency-override-expired concurrency-algorithm concurrency-beside " +
			"concurrency-clock-back concurrency-sweep concurrency-golden"},
	{"audit", "if the store has the ability Audit, list entries with all their texts, the newest first, and forget those that are too old",
		"audit audit-bad-input audit-age"},
	{"top-keys", "if the store has the ability TopKeys, list entries with their process and JSON, the newest first, and forget those older than a week, in a sweep too",
		"top-keys top-keys-age"},
	{"minutes", "if the store has the ability Minutes, list entries with their process and JSON, the newest first, apart from TopKeys, and forget those older than 65 minutes",
		"minutes"},
	{"usage", "if the store has the ability Usage, add up what services write, show none that is older than 31 days and delete it in a sweep; a Drop deletes what is the limit's",
		"usage usage-race usage-age usage-drop"},
	{"all", "this case plays random histories of all calls; fix other failures first, then look at the call in the message",
		"model giving-back hold-many-changes"},
}

// logDuty logs the duty that a case tests, if the case fails.
func logDuty(t *testing.T, testCase string) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, d := range duties {
			if slices.Contains(strings.Fields(d.cases), testCase) {
				t.Logf("duty %q: %s (storetest/duties.go)", d.name, d.text)
			}
		}
	})
}
