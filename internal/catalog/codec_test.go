package catalog

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// everyField has no field at its default.
var everyField = store.Limit{Name: "every", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Burst: 7, MaxDebt: 3, MaxCharge: 9,
	Start: "06:00 Europe/Rome", OnChange: store.StartOver, Mode: store.Shadow, Auth: true, RetryJitter: 20,
	OnStoreError: store.FailLocal, Timeout: 1500 * time.Microsecond, ListKeys: true, Usage: true,
	Plans: store.NewPlans(store.Plan{Name: "staff", Mode: store.Unlimited, OverrideOnly: true}, store.Plan{Name: "pro", Rate: 600, Burst: 1000}),
	Parts: 2, TTL: time.Minute, KeepExpired: true, Shards: 1}

var adaptive = store.Adaptive{Floor: 1, Latency: 1500 * time.Microsecond, Quantile: 0.999, Errors: 0.000001, Window: time.Minute}

// throughColumns reads back what the columns of a limit hold, as a driver
// returns it.
func throughColumns(t *testing.T, l store.Limit) store.Limit {
	t.Helper()
	values := LimitValues(&l)
	for i, v := range values {
		if n, ok := v.(int); ok {
			values[i] = int32(n)
		}
	}
	back, err := ReadLimit(values)
	if err != nil {
		t.Fatal(err)
	}
	return back
}

func throughText(t *testing.T, l store.Limit) store.Limit {
	t.Helper()
	back, err := parseSettings(formatSettings(&l))
	if err != nil {
		t.Fatal(err)
	}
	return back
}

// TestEveryFieldIsStored: each field of Limit survives every stored form. A new
// field is missing in everyField first, then in the settings of package store and in fields.
func TestEveryFieldIsStored(t *testing.T) {
	for i := range reflect.TypeFor[store.Limit]().NumField() {
		name := reflect.TypeFor[store.Limit]().Field(i).Name
		value := reflect.ValueOf(everyField).Field(i)
		switch name { // those that are for other limits
		case "Parent":
			value = reflect.ValueOf("tenant")
		case "Shared":
			value = reflect.ValueOf(true)
		case "Block":
			value = reflect.ValueOf(15 * time.Minute)
		case "Lease":
			value = reflect.ValueOf(250 * time.Millisecond)
		case "Adaptive":
			value = reflect.ValueOf(adaptive)
		}
		if value.IsZero() {
			t.Errorf("everyField.%s is its default", name)
		}
		l := store.Limit{Name: "one", Rate: 1, Period: time.Second}
		reflect.ValueOf(&l).Elem().Field(i).Set(value)
		if back := throughColumns(t, l); back != l {
			t.Errorf("%s in columns: %+v came back as %+v", name, l, back)
		}
		if back := throughText(t, l); back != l {
			t.Errorf("%s as text: %+v came back as %+v", name, l, back)
		}
	}
	for _, l := range []store.Limit{
		{Name: "none ahead", Rate: 1, Period: time.Second, Burst: store.NoBurst, MaxDebt: store.UnlimitedDebt},
		{Name: "jobs", Algorithm: store.Concurrency, Burst: 10, TTL: time.Minute, Plans: store.NewPlans(store.Plan{Name: "pro", Burst: 20})},
		{Name: "no debt", Rate: 1, Period: store.Month, MaxDebt: store.NoDebt},
	} {
		if back := throughColumns(t, l); back != l {
			t.Errorf("in columns: %+v came back as %+v", l, back)
		}
		if back := throughText(t, l); back != l {
			t.Errorf("as text: %+v came back as %+v", l, back)
		}
	}
}

// TestStoredFormsStay: programs of other versions read these forms.
func TestStoredFormsStay(t *testing.T) {
	row := func(l store.Limit) string {
		var out []string
		for i, v := range LimitValues(&l) {
			out = append(out, fmt.Sprintf("%s=%v", LimitColumns[i], v))
		}
		return strings.Join(out, " ")
	}
	text := func(l store.Limit) string { return formatSettings(&l) }
	asJSON := func(l store.Limit) string {
		b, err := json.Marshal(allVersions(limittest.Definition(l)))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	plain := store.Limit{Name: "plain", Rate: 5, Period: time.Minute, Burst: store.NoBurst, MaxDebt: store.UnlimitedDebt}
	leased := store.Limit{Name: "leased", Rate: 100, Period: time.Second, Lease: 250 * time.Millisecond}
	for _, c := range [][2]string{
		{row(everyField), "name=every algorithm=fixed_window rate=5 per=1d burst=7 max_debt=3 max_charge=9 start=06:00 Europe/Rome " +
			"on_change=reset mode=shadow auth=true retry_jitter=20 on_store_error=local timeout_us=1500 list_keys=true usage=true " +
			"plans=pro:rate=600;burst=1000|staff:mode=unlimited;callable=false parent=<nil> parts=2 shared=false ttl_us=60000000 on_expire=keep block_us=0 lease_us=0 shards=1 adaptive=<nil>"},
		{row(plain), "name=plain algorithm=token_bucket rate=5 per=1m burst=0 max_debt=-1 max_charge=<nil> start=<nil> " +
			"on_change=keep mode=enforce auth=false retry_jitter=0 on_store_error=closed timeout_us=0 list_keys=false usage=false " +
			"plans=<nil> parent=<nil> parts=<nil> shared=false ttl_us=0 on_expire=give_back block_us=0 lease_us=0 shards=<nil> adaptive=<nil>"},
		{row(leased), "name=leased algorithm=token_bucket rate=100 per=1s burst=<nil> max_debt=<nil> max_charge=<nil> start=<nil> " +
			"on_change=keep mode=enforce auth=false retry_jitter=0 on_store_error=closed timeout_us=0 list_keys=false usage=false " +
			"plans=<nil> parent=<nil> parts=<nil> shared=false ttl_us=0 on_expire=give_back block_us=0 lease_us=250000 shards=<nil> adaptive=<nil>"},
		{text(everyField), `{"name":"every","algorithm":"fixed_window","rate":"5","per":"1d","burst":"7","max_debt":"3","max_charge":"9",` +
			`"start":"06:00 Europe/Rome","on_change":"reset","mode":"shadow","auth":"true","retry_jitter":"20%","on_store_error":"local",` +
			`"timeout":"1500us","keys":"list","usage":"true","plans":"pro:rate=600;burst=1000|staff:mode=unlimited;callable=false","parts":"2","ttl":"1m","on_expire":"keep","shards":"1"}`},
		{text(store.Limit{Name: "up", Rate: 5, Period: time.Second, Adaptive: adaptive}),
			`{"name":"up","rate":"5","per":"1s","adaptive":"floor=1;latency=1500us;quantile=0.999;errors=0.000001;window=1m"}`},
		{text(store.Limit{Name: "login", Rate: 5, Period: 15 * time.Minute, Block: 90 * time.Second}), `{"name":"login","rate":"5","per":"15m","block":"90s"}`},
		{text(leased), `{"name":"leased","rate":"100","per":"1s","lease":"250ms"}`},
		{text(plain), `{"name":"plain","rate":"5","per":"1m","burst":"0","max_debt":"unlimited"}`},
		{asJSON(everyField), `[{"number":1,"since":0,"policy":"reset","unit":1,"every":0,"add":5,"cap":7,"origin":0,"burst":7,"debt":3,"most":10,` +
			`"max_charge":9,"max_used":260615,"days":1,"clock":21600,"zone":"Europe/Rome","settings":` + strconv.Quote(text(everyField)) + `}]`},
		{asJSON(store.Limit{Name: "spread", Algorithm: store.Interval, Rate: 5, Period: time.Minute}),
			`[{"number":1,"since":0,"policy":"keep","unit":1,"every":60000000,"add":5,"cap":5,"origin":0,"burst":5,"debt":5,"most":10,` +
				`"max_charge":50,"max_used":750599930,"spread":true,"settings":"{\"name\":\"spread\",\"algorithm\":\"interval\",\"rate\":\"5\",\"per\":\"1m\"}"}]`},
	} {
		if c[0] != c[1] {
			t.Errorf("%s\nwant %s", c[0], c[1])
		}
	}
	var inTables []string
	var types []reflect.Type
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Version]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Name == "Calendar" || f.Name == "Enough" || f.Anonymous || slices.Contains([]string{"months", "days", "clock", "zone"}, name) {
			continue // computed from the others, or in JSON alone
		}
		if name == "-" {
			name = strings.ToLower(f.Name)
		}
		inTables, types = append(inTables, name), append(types, f.Type)
	}
	if !slices.Equal(inTables, VersionColumns) {
		t.Errorf("columns of a version: %v; its fields: %v", VersionColumns, inTables)
	}
	for i, at := range new(Version).Fields() {
		if v := reflect.ValueOf(at); v.Elem().Type() != types[i] {
			t.Errorf("column %s is a field of type %v", VersionColumns[i], v.Elem().Type())
		}
	}
}

// allVersions returns the stored versions of a definition, the present one last.
func allVersions(d *store.Definition) []Version {
	l := Stored(d)
	return append(l.Past, *l.Present)
}

// changes are limits of one name, each the successor of the one before.
var changes = []store.Limit{
	{Name: "l", Rate: 5, Period: time.Minute},
	{Name: "l", Algorithm: store.LeakyBucket, Rate: 5, Period: time.Minute},
	{Name: "l", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "10s"},
	{Name: "l", Algorithm: store.FixedWindow, Rate: 5, Period: 7 * 24 * time.Hour, Start: "06:30:10 Europe/Rome"},
	{Name: "l", Algorithm: store.FixedWindow, Rate: 5, Period: 3 * store.Month},
	{Name: "l", Algorithm: store.Interval, Rate: 5, Period: 12 * store.Month, Start: "00:00 Asia/Tokyo", OnChange: store.Proportional},
	{Name: "l", Rate: 5, Period: time.Minute},
}

// A concurrency limit has neither rate nor per; columns that are not null have 0 and "".
func TestConcurrencyIsStored(t *testing.T) {
	l := store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 10}
	values := LimitValues(&l)
	if rate, per := values[slices.Index(LimitColumns, "rate")], values[slices.Index(LimitColumns, "per")]; rate != int64(0) || per != "" {
		t.Errorf("rate %v, per %q", rate, per)
	}
	var reg store.Registry
	for i := range 2 {
		l.Burst += int64(i)
		d, err := reg.Define(int64(i), l, terms.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		for form, versions := range map[string][]Version{"JSON": asStoredJSON(t, d), "a table": asRows(d, []store.Limit{{Name: "jobs", Algorithm: store.Concurrency, Burst: 10}, l})} {
			back, err := Definition(l, d.Owner, d.Number, versions, nil)
			if err != nil || numbers(back) != numbers(d) {
				t.Errorf("%s: %v, %v; want %v", form, err, back, d)
			}
		}
	}
}

// TestVersionsReadBack: a definition with a past is the same after it was stored
// as JSON and in a table.
func TestVersionsReadBack(t *testing.T) {
	var reg store.Registry
	limits := []store.Limit{}
	for i, l := range changes {
		d, err := reg.Define(int64(i), l, terms.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		limits = append(limits, l)
		for form, versions := range map[string][]Version{"JSON": asStoredJSON(t, d), "a table": asRows(d, limits)} {
			back, err := Definition(l, d.Owner, d.Number, versions, nil)
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			if numbers(back) != numbers(d) {
				t.Errorf("%s:\n%s\nwant\n%s", form, numbers(back), numbers(d))
			}
		}
	}
	if d := reg.Lookup("l"); int(d.Number) != len(changes) || len(d.Past) != len(changes)-1 {
		t.Errorf("version %d with a past of %d", d.Number, len(d.Past))
	}
}

// TestPeriodSpelled: SQL keeps a period as it was written.
func TestPeriodSpelled(t *testing.T) {
	for _, c := range []struct {
		l   store.Limit
		per string
	}{
		{store.Limit{Name: "l", Rate: 1000, Period: time.Minute}, "60s"},
		{store.Limit{Name: "l", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "06:00 Europe/Rome"}, "24h"},
	} {
		versions := allVersions(limittest.Definition(c.l))
		versions[0].Per = c.per
		d, err := Definition(c.l, "", 1, versions, nil)
		if want := limittest.Definition(c.l); err != nil || numbers(d) != numbers(want) {
			t.Errorf("%s: %s, want %s, %v", c.per, numbers(d), numbers(want), err)
		}
	}
}

func asStoredJSON(t *testing.T, d *store.Definition) (out []Version) {
	t.Helper()
	b, err := json.Marshal(allVersions(d))
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// asRows returns the versions as tables keep them: written one by one, each with
// the settings of its own limit.
func asRows(d *store.Definition, limits []store.Limit) (out []Version) {
	for i, v := range append(slices.Clone(d.Past), Present(d)) {
		row := NewVersion(v, &limits[i])
		row.Months, row.Days, row.Clock, row.Zone = 0, 0, 0, ""
		out = append(out, row)
	}
	return out
}

// numbers are all that counts of a definition.
func numbers(d *store.Definition) string {
	out := fmt.Sprintf("%+v %s %s", d.Limit, d.Owner, d.Warning)
	for _, v := range allVersions(d) {
		v.Per, v.Start = "", ""
		out += fmt.Sprintf("\n%+v", v)
	}
	return out
}

// TestStoredNonsense: what no program has written is an error, not a panic.
func TestStoredNonsense(t *testing.T) {
	l := store.Limit{Name: "l", Rate: 5, Period: time.Minute}
	good := allVersions(limittest.Definition(l))[0]
	for name, spoil := range map[string]func(v *Version){
		"no unit":              func(v *Version) { v.Unit = 0 },
		"nothing comes back":   func(v *Version) { v.Add = 0 },
		"too large":            func(v *Version) { v.Cap = store.MaxInt + 1 },
		"negative":             func(v *Version) { v.MaxUsed = -1 },
		"no calendar":          func(v *Version) { v.Every = 0 },
		"no calendar, in JSON": func(v *Version) { v.Every, v.Per, v.Start = 0, "", "" },
		"no period":            func(v *Version) { v.Per, v.Every = "a fortnight", 7 },
		"no zone":              func(v *Version) { v.Per, v.Every, v.Days, v.Zone = "", 0, 1, "Mars/Olympus" },
		"no policy":            func(v *Version) { v.Policy = "forget" },
		"no present version":   func(v *Version) { v.Number = 2 },
	} {
		v := good
		spoil(&v)
		if d, err := Definition(l, terms.OwnerCode, 1, []Version{v}, nil); err == nil {
			t.Errorf("%s: %+v", name, d)
		}
	}
	for i, s := range fields(&everyField) {
		values := LimitValues(&everyField)
		values[i] = struct{}{}
		if _, ok := s.at.(*bool); ok || s.setting == "name" || s.setting == "start" || s.setting == "parent" {
			continue
		}
		if l, err := ReadLimit(values); err == nil {
			t.Errorf("%s: %+v", s.setting, l)
		}
	}
}
