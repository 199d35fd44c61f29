package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// auditCases test the audit and the lists of busiest keys of a store. A store without
// the abilities Audit and TopKeys passes these cases.
var auditCases = []testCase{
	{"audit", onAudit(auditLists)},
	{"audit-bad-input", onAudit(func(e *env, a store.Auditor) {
		for _, before := range []string{"x", "-", "0198c2f3", strings.Repeat("G", 22), "00000000000000000000000\x00"} {
			var bad *store.FieldError
			if _, err := a.Audit(e.ctx, before, 10); !errors.As(err, &bad) || bad.Field != "before" {
				e.Errorf("before %q: %v", before, err)
			}
		}
	})},
	{"audit-age", onAudit(func(e *env, a store.Auditor) {
		for _, days := range []int64{0, 1, 401} {
			e.clock.Store(epoch + days*day)
			addEntry(e, a, store.AuditEntry{Action: "reset", Limit: "l", What: strconv.FormatInt(days, 10)})
		}
		if list := audited(e, a, "", 10); len(list) != 2 || list[0].What != "401" || list[1].What != "1" {
			e.Errorf("401 days later: %+v", list)
		}
	})},
	{"top-keys", onTopKeys(topKeysListed)},
	{"top-keys-age", onTopKeys(func(e *env, a store.Auditor) {
		for _, days := range []int64{0, 6, 8} {
			e.clock.Store(epoch + days*day)
			addEntry(e, a, topEntry(strconv.FormatInt(days, 10), int(days)))
		}
		if list := audited(e, a, "", 10); len(list) != 2 || list[0].Who != "8" || list[1].Who != "6" {
			e.Errorf("8 days later: %+v", list)
		}
		e.clock.Store(epoch + 20*day)
		if sweep := store.AbilitiesOf(e.store).Sweep; sweep != nil {
			if _, err := sweep(e.ctx, 1000); err != nil {
				e.Fatal(err)
			}
			if list := audited(e, a, "", 10); len(list) != 0 {
				e.Errorf("after a sweep: %+v", list)
			}
		}
	})},
	{"minutes", func(e *env) {
		ab := store.AbilitiesOf(e.store)
		if ab.Minutes == nil {
			return
		}
		for _, minute := range []int64{0, 30, 70} {
			e.clock.Store(epoch + minute*60_000_000)
			entry := topEntry("host:"+strconv.FormatInt(minute, 10), int(minute))
			entry.Action, entry.What = "minute", strings.TrimSuffix(entry.What, "}")+`,"counts":{"limits":[],"took":[1]}}`
			addEntry(e, ab.Minutes, entry)
		}
		list := audited(e, ab.Minutes, "", 10)
		if len(list) != 2 || list[0].Who != "host:70" || list[1].Who != "host:30" || list[0].Action != "minute" || list[0].At != epoch+70*60_000_000 || !strings.Contains(list[0].What, `"counts"`) {
			e.Fatalf("70 minutes later: %+v", list)
		}
		if next := audited(e, ab.Minutes, list[0].ID, 1); len(next) != 1 || next[0].Who != "host:30" {
			e.Errorf("the next page: %+v", next)
		}
		if ab.TopKeys != nil {
			addEntry(e, ab.TopKeys, topEntry("hour:1", 1))
			if hours := audited(e, ab.TopKeys, "", 10); len(hours) != 1 || hours[0].Who != "hour:1" {
				e.Errorf("among the hours: %+v", hours)
			}
			if list = audited(e, ab.Minutes, "", 10); len(list) != 2 {
				e.Errorf("after an hour was added: %+v", list)
			}
		}
	}},
}

const day = 24 * 3600 * 1_000_000

func onTopKeys(run func(*env, store.Auditor)) func(*env) {
	return func(e *env) {
		if a := store.AbilitiesOf(e.store).TopKeys; a != nil {
			run(e, a)
		}
	}
}

// topEntry returns what a process reports for an hour in which a limit's shared bucket had
// n decisions.
func topEntry(process string, n int) store.AuditEntry {
	keys := fmt.Sprintf(`{"keys":[{"limit":"l","key":"","count":%d,"error":0}],"counted":%d,"unlisted_at_most":0}`, n, n)
	return store.AuditEntry{Who: process, Action: "top", What: `{"hour":"2030-01-31T18:00:00Z","busiest":` + keys + `,"refused":` + keys + "}"}
}

// topKeysListed records entries of several processes, and reads them page by page.
func topKeysListed(e *env, a store.Auditor) {
	for i := range 5 {
		e.clock.Store(epoch + int64(i))
		addEntry(e, a, topEntry("host:"+strconv.Itoa(i), i))
	}
	var all []store.AuditEntry
	for before := ""; ; before = all[len(all)-1].ID {
		page := audited(e, a, before, 2)
		if all = append(all, page...); len(page) < 2 {
			break
		}
	}
	if len(all) != 5 {
		e.Fatalf("%d entries: %+v", len(all), all)
	}
	for i, got := range all {
		want := topEntry("host:"+strconv.Itoa(4-i), 4-i)
		var is, should any
		if err := errors.Join(json.Unmarshal([]byte(got.What), &is), json.Unmarshal([]byte(want.What), &should)); err != nil || !reflect.DeepEqual(is, should) {
			e.Errorf("entry %d: %v, %s, want %s", i, err, got.What, want.What)
		}
		if got.Who != want.Who || got.Action != "top" || got.At != epoch+int64(4-i) {
			e.Errorf("entry %d: %+v", i, got)
		}
	}
	if list := audited(e, a, "", 10); len(list) != 5 {
		e.Errorf("%d entries in one page", len(list))
	}
	if audit := store.AbilitiesOf(e.store).Audit; audit != nil {
		if list := audited(e, audit, "", 10); len(list) != 0 {
			e.Errorf("in the audit: %+v", list)
		}
	}
}

func onAudit(run func(*env, store.Auditor)) func(*env) {
	return func(e *env) {
		if a := store.AbilitiesOf(e.store).Audit; a != nil {
			run(e, a)
		}
	}
}

func addEntry(e *env, a store.Auditor, entry store.AuditEntry) {
	e.Helper()
	if err := a.Record(e.ctx, entry); err != nil {
		e.Fatal(err)
	}
}

func audited(e *env, a store.Auditor, before string, n int) []store.AuditEntry {
	e.Helper()
	list, err := a.Audit(e.ctx, before, n)
	if err != nil {
		e.Fatal(err)
	}
	return list
}

// auditLists records audit entries, some at the same time, and reads them page by page.
func auditLists(e *env, a store.Auditor) {
	want := []store.AuditEntry{
		{Who: "2001:db8::1", Action: "override", Limit: "api", Key: "cust-7", What: "plan pro until 2030-01-31T18:00:00Z", Note: "ticket 81"},
		{Action: "reset", Limit: "api"},
		{Who: "10.0.0.7", Action: "refund", Limit: "a:b{c}%", Key: `<b>"it's"</b> \ 日本 ` + "\x01\n", What: "5 tokens", Note: strings.Repeat("é", 512)},
		{Action: "define", Limit: "api", What: "10/1s"},
		{Action: "drop", Limit: "api"},
	}
	if list := audited(e, a, "", 10); len(list) != 0 {
		e.Errorf("a new store has %+v", list)
	}
	for i := range want {
		if want[i].At = epoch; i > 1 {
			want[i].At += int64(i)
		}
		e.clock.Store(want[i].At)
		addEntry(e, a, want[i])
	}
	var all []store.AuditEntry
	for before := ""; ; before = all[len(all)-1].ID {
		page := audited(e, a, before, 2)
		if all = append(all, page...); len(page) < 2 {
			break
		}
	}
	if len(all) != len(want) {
		e.Fatalf("%d entries, want %d: %+v", len(all), len(want), all)
	}
	if all[4].Action == "reset" { // the two entries of the same time may come in any order
		all[3], all[4] = all[4], all[3]
	}
	if list := audited(e, a, all[4].ID, 10); len(list) > 1 {
		e.Errorf("before the first entries: %+v", list)
	}
	for i, got := range all {
		if got.ID == "" {
			e.Errorf("entry %d has no ID", i)
		}
		if got.ID, got.Role = "", ""; got != want[len(want)-1-i] {
			e.Errorf("entry %d: %+v, want %+v", i, got, want[len(want)-1-i])
		}
	}
}
