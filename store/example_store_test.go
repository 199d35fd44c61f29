package store_test

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// A logged is a decorator: a store that prints each group that another one decided.
type logged struct{ inner store.Store }

func (s logged) Apply(ctx context.Context, b *store.Batch) error {
	err := s.inner.Apply(ctx, b)
	for i := range b.Groups {
		g := &b.Groups[i]
		for j := range g.Ops {
			op := &g.Ops[j]
			fmt.Println(op.Verb, op.Def.Name, op.Key, op.Cost, g.Allowed, g.Err, err)
		}
	}
	return err
}

// Abilities are those of the inner store, so that its limits stay in it.
// AbilitiesOf clears Quick, which would bypass Apply.
func (s logged) Abilities() store.Abilities { return store.AbilitiesOf(s.inner) }

// A decorator has the method Apply, and Abilities to keep what the inner store can
// do besides.
func Example_decorator() {
	inner, err := memstore.New(memstore.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer inner.Close()
	limiter, err := dipwell.New(logged{inner}, dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		_, _ = limiter.Take(context.Background(), "login", "user:7", 3)
	}
	// Output:
	// take login user:7 3 true <nil> <nil>
	// take login user:7 3 false <nil> <nil>
}
