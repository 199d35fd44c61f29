package store_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// TestGuard checks that each ability that may wait for a server is guarded. One that is new
// must be added to one of the lists.
func TestGuard(t *testing.T) {
	s, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, d := t.Context(), new(store.Definition)
	verbs := map[string]func(ab store.Abilities) []error{
		"Keys":    func(ab store.Abilities) []error { _, err := ab.Keys(ctx, d, "", "", 1); return []error{err} },
		"Holds":   func(ab store.Abilities) []error { _, err := ab.Holds(ctx, d, "k"); return []error{err} },
		"Now":     func(ab store.Abilities) []error { _, err := ab.Now(ctx); return []error{err} },
		"Audit":   func(ab store.Abilities) []error { return audits(ctx, ab.Audit) },
		"TopKeys": func(ab store.Abilities) []error { return audits(ctx, ab.TopKeys) },
		"Minutes": func(ab store.Abilities) []error { return audits(ctx, ab.Minutes) },
		"Usage": func(ab store.Abilities) []error {
			_, err := ab.Usage.Usage(ctx, d, "k", 0, 1)
			return []error{err, ab.Usage.AddUsage(ctx, nil)}
		},
		"Overrides": func(ab store.Abilities) []error {
			_, set := ab.Overrides.SetOverride(ctx, d, store.Override{})
			_, end := ab.Overrides.EndOverride(ctx, d, "k", store.AnyOverride)
			_, list := ab.Overrides.Overrides(ctx, d, "", "", 1)
			return []error{set, end, list}
		},
	}
	others := []string{"Store", "Limits", "CallSite", "Sweep", "Ready", "Metrics", "Quick", "QuickSource", "Lanes", "InProcess"}

	refused := errors.New("refused")
	ab := store.AbilitiesOf(s)
	ab.Minutes = ab.TopKeys // a store of one process has none
	ab.Guard(func(context.Context, bool) (context.Context, context.CancelFunc, error) { return nil, nil, refused })
	for f := range reflect.TypeFor[store.Abilities]().Fields() {
		verb := verbs[f.Name]
		if verb == nil {
			if !slices.Contains(others, f.Name) {
				t.Errorf("%s is in no list", f.Name)
			}
			continue
		}
		for i, err := range verb(ab) {
			if !errors.Is(err, refused) {
				t.Errorf("%s, verb %d: %v", f.Name, i, err)
			}
		}
	}
}

func audits(ctx context.Context, a store.Auditor) []error {
	_, err := a.Audit(ctx, "", 1)
	return []error{err, a.Record(ctx, store.AuditEntry{})}
}
