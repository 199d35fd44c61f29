package httplimit_test

import (
	"context"
	"sync"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// clockStore is a minimal store whose clock the test sets.
type clockStore struct {
	mu   sync.Mutex
	now  int64
	rows map[[2]string]store.State
	err  error
}

func (s *clockStore) Abilities() store.Abilities {
	return store.Abilities{Now: func(context.Context) (int64, error) { return s.now, nil }}
}

func (s *clockStore) Apply(_ context.Context, b *store.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		var rows [store.MaxTakes]store.State
		var write [store.MaxTakes]bool
		for j := range g.Ops {
			rows[j] = s.rows[[2]string{g.Ops[j].Def.Name, g.Ops[j].Key}]
		}
		g.Err = g.Decide(s.now, rows[:len(g.Ops)], write[:len(g.Ops)])
		for j := range g.Ops {
			if write[j] {
				s.rows[[2]string{g.Ops[j].Def.Name, g.Ops[j].Key}] = rows[j]
			}
		}
	}
	return nil
}

// newLimiter returns a limiter at second 1,000,000,000 with limits in the form of the --limit flag.
func newLimiter(t testing.TB, limits ...string) (*dipwell.Limiter, *clockStore) {
	t.Helper()
	s := &clockStore{now: 1e15, rows: map[[2]string]store.State{}}
	var parsed []dipwell.Limit
	for _, text := range limits {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, l)
	}
	l, err := dipwell.New(s, parsed...)
	if err != nil {
		t.Fatal(err)
	}
	return l, s
}
