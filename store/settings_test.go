package store_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Every field of Limit has a setting. Stores would lose a field without one.
func TestEveryFieldIsASetting(t *testing.T) {
	seen := map[string]string{}
	for i := range reflect.TypeFor[store.Limit]().NumField() {
		var l store.Limit
		switch f := reflect.ValueOf(&l).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Uint8:
			f.SetUint(1)
		case reflect.Struct:
			l.Plans = store.NewPlans(store.Plan{Name: "pro"})
			if f.IsZero() {
				l = store.Limit{Adaptive: store.Adaptive{Floor: 1}}
			}
		default:
			f.SetInt(1000) // a µs
		}
		name, found := reflect.TypeFor[store.Limit]().Field(i).Name, ""
		for _, s := range l.Explicit() {
			if !slices.Contains(store.Limit{}.Explicit(), s) {
				found += s[0]
			}
		}
		if found == "" || seen[found] != "" {
			t.Errorf("Limit.%s is written as %q, and Limit.%s too", name, found, seen[found])
		}
		seen[found] = name
	}
}

// Setting what Explicit lists makes an equal limit.
func TestSettingsReadBack(t *testing.T) {
	for _, l := range []store.Limit{
		{Name: "plain", Rate: 5, Period: time.Minute},
		{Name: "every field", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Burst: 7, MaxDebt: 3, MaxCharge: 9,
			Start: "06:00 Europe/Rome", OnChange: store.StartOver, Mode: store.Shadow, Auth: true, RetryJitter: 20,
			OnStoreError: store.FailLocal, Timeout: 1500 * time.Microsecond, ListKeys: true},
		{Name: "markers", Rate: 5, Period: time.Second, Burst: store.NoBurst, MaxDebt: store.UnlimitedDebt},
		{Name: "no debt", Rate: 5, Period: time.Second, MaxDebt: store.NoDebt},
	} {
		var back store.Limit
		for _, s := range l.Explicit() {
			if err := back.Set(s[0], s[1]); err != nil {
				t.Errorf("%s: %v", l.Name, err)
			}
		}
		if back != l {
			t.Errorf("%+v came back as %+v", l, back)
		}
	}
}
