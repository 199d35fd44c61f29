package store_test

import (
	"context"
	"sync"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// able is a store with every ability.
type able struct{ plain }

func (a *able) Abilities() store.Abilities {
	return store.Abilities{
		Store: a,
		Now:   func(context.Context) (int64, error) { return 7, nil },
		Quick: func(*store.Definition, string, store.Verb, int64, bool) (store.QuickAnswer, *sync.Mutex, bool) {
			return store.QuickAnswer{}, nil, true
		},
		Lanes:     func(context.Context, int) (store.Lanes, error) { return store.Lanes{}, nil },
		InProcess: true,
	}
}

type plain struct{ applied int }

func (p *plain) Apply(context.Context, *store.Batch) error { p.applied++; return nil }

// embedding has its own Apply and able's other methods.
type embedding struct{ *able }

func (e embedding) Apply(ctx context.Context, b *store.Batch) error { return e.able.Apply(ctx, b) }

// wrapping returns the abilities of its inner store.
type wrapping struct{ store.Store }

func (w *wrapping) Abilities() store.Abilities { return store.AbilitiesOf(w.Store) }

// keeping sets Abilities.Store to itself.
type keeping struct{ store.Store }

func (k *keeping) Abilities() store.Abilities {
	ab := store.AbilitiesOf(k.Store)
	ab.Store = k
	return ab
}

// labelled is a decorator with values that cannot be compared.
type labelled struct {
	store.Store
	labels []string
}

func (l labelled) Abilities() store.Abilities { return store.AbilitiesOf(l.Store) }

// AbilitiesOf works with decorators whose values cannot be compared.
func TestAbilitiesOfUncomparable(t *testing.T) {
	s := labelled{labelled{&able{}, nil}, []string{"outer"}}
	if ab := store.AbilitiesOf(s); ab.Store == nil || ab.Quick != nil || ab.Lanes != nil || ab.InProcess {
		t.Errorf("%+v", ab)
	}
	if ab := store.AbilitiesOf(wrapped{wrapped{s}}); ab.Quick != nil {
		t.Errorf("%+v", ab)
	}
}

// wrapped has a comparable type, but comparing its values panics if the inner
// store's type is not comparable.
type wrapped struct{ store.Store }

func (w wrapped) Abilities() store.Abilities { return store.AbilitiesOf(w.Store) }

// Abilities that replace Apply, such as Quick, are dropped if a store with
// another Apply returns them from its inner store.
func TestAbilitiesOf(t *testing.T) {
	inner := &able{}
	for _, c := range []struct {
		name             string
		store            store.Store
		clock, aboutThis bool
	}{
		{"no method", &inner.plain, false, false},
		{"its own", inner, true, true},
		{"embeds another", embedding{inner}, true, false},
		{"wraps another", &wrapping{inner}, true, false},
		{"wraps one that embeds", &wrapping{embedding{inner}}, true, false},
		{"wraps another and says that it may be passed by", &keeping{inner}, true, true},
		{"keeps what a wrapper cleared", &keeping{&wrapping{inner}}, true, false},
	} {
		ab := store.AbilitiesOf(c.store)
		now, err := ab.Now(t.Context())
		if err != nil || ab.Store != c.store || (now == 7) != c.clock || (ab.Quick != nil) != c.aboutThis || (ab.Lanes != nil) != c.aboutThis || ab.InProcess != c.aboutThis {
			t.Errorf("%s: Store %T, Now %d, Quick %t, Lanes %t, InProcess %t", c.name, ab.Store, now, ab.Quick != nil, ab.Lanes != nil, ab.InProcess)
		}
	}
}

// AddMetrics appends the metrics of a decorator to those of its inner store.
func TestAddMetrics(t *testing.T) {
	list := func(name string) func() []store.Metric {
		return func() []store.Metric { return []store.Metric{{Name: name}} }
	}
	var ab store.Abilities
	ab.AddMetrics(nil)
	if ab.Metrics != nil {
		t.Error("metrics of nothing")
	}
	ab.AddMetrics(list("a"))
	ab.AddMetrics(nil)
	ab.AddMetrics(list("b"))
	for range 2 {
		if m := ab.Metrics(); len(m) != 2 || m[0].Name != "a" || m[1].Name != "b" {
			t.Errorf("%+v", m)
		}
	}
}
