package dipwell_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

// The sequences have every key once, in order, over several pages, and end where the loop
// does, or with an error.
func TestAll(t *testing.T) {
	const n = 2500 // two pages and a half
	ctx := t.Context()
	s, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := dipwell.New(s,
		dipwell.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5, ListKeys: true},
		dipwell.Limit{Name: "all", Rate: 1, Period: time.Hour, Burst: 5, ListKeys: true, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range n {
		key := fmt.Sprintf("u%04d", i)
		want = append(want, key)
		if _, err = l.Take(ctx, "api", key, 1); err != nil {
			t.Fatal(err)
		}
		if _, err = l.SetOverride(ctx, "api", dipwell.Override{Key: key, Rate: 2}); err != nil {
			t.Fatal(err)
		}
	}
	keys := func(limit, prefix string, most int) (keys []string, err error) {
		for row, err := range l.AllKeys(ctx, limit, prefix) {
			if err != nil {
				return keys, err
			}
			if keys = append(keys, row.Key); len(keys) == most {
				break
			}
		}
		return keys, nil
	}
	if got, err := keys("api", "", 0); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d keys, want %d: %v", len(got), n, err)
	}
	if got, err := keys("api", "u1", 0); err != nil || !slices.Equal(got, want[1000:2000]) {
		t.Errorf("with a prefix %d keys, want 1000: %v", len(got), err)
	}
	if got, err := keys("api", "", 1001); err != nil || !slices.Equal(got, want[:1001]) {
		t.Errorf("%d keys before the loop ended: %v", len(got), err)
	}
	if got, err := keys("api", "x", 0); err != nil || got != nil {
		t.Errorf("no key begins so: %q, %v", got, err)
	}
	if _, err := l.Take(ctx, "all", dipwell.Shared, 1); err != nil {
		t.Fatal(err)
	}
	if got, err := keys("all", "", 0); err != nil || !slices.Equal(got, []string{""}) {
		t.Errorf("the shared bucket: %q, %v", got, err)
	}
	if got, err := keys("nobody", "", 0); !errors.Is(err, dipwell.ErrUnknownLimit) || got != nil {
		t.Errorf("an unknown limit: %q, %v", got, err)
	}
	var got []string
	for o, err := range l.AllOverrides(ctx, "api", "") {
		if err != nil || o.Rate != 2 {
			t.Fatalf("%+v, %v", o, err)
		}
		got = append(got, o.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d overrides, want %d", len(got), n)
	}
}
