package store_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Every field of Limit has a setting. Stores would lose a field without one.
func TestEveryFieldIsASetting(t *testing.T) {
	var l store.Limit
	fields := reflect.ValueOf(&l).Elem()
	for i := range fields.NumField() {
		at := fields.Field(i).Addr().Interface()
		n := 0
		for _, s := range store.Settings() {
			if s.Field(&l) == at {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d settings are for Limit.%s", n, fields.Type().Field(i).Name)
		}
	}
	if n := len(store.Settings()); n != fields.NumField() {
		t.Errorf("%d settings for %d fields", n, fields.NumField())
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
