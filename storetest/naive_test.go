package storetest_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// naiveStore calls Group.Decide and does no other duty of a store.
type naiveStore struct {
	now  func() int64
	mu   sync.Mutex
	rows map[rowKey]store.State
}

func (s *naiveStore) Apply(_ context.Context, b *store.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Cancel {
			g.Err = store.ErrReservation
			continue
		}
		rows, write := make([]store.State, len(g.Ops)), make([]bool, len(g.Ops))
		for j := range g.Ops {
			rows[j] = s.rows[rowKey{g.Ops[j].Def.Name, g.Ops[j].Key}]
		}
		if g.Err = g.Decide(s.now(), rows, write); g.Err != nil {
			continue
		}
		for j := range g.Ops {
			if write[j] {
				s.rows[rowKey{g.Ops[j].Def.Name, g.Ops[j].Key}] = rows[j]
			}
		}
	}
	return nil
}

func (s *naiveStore) Abilities() store.Abilities {
	return store.Abilities{Now: func(context.Context) (int64, error) { return s.now(), nil }}
}

// TestNaive runs the suite on a naiveStore, in a child process of
// TestFailuresNameDuties.
func TestNaive(t *testing.T) {
	if os.Getenv(mutantEnv) != "naive" {
		return
	}
	storetest.Run(t, func(_ testing.TB, now func() int64) store.Store {
		return &naiveStore{now: now, rows: map[rowKey]store.State{}}
	}, storetest.Options{Quick: true})
}

// TestFailuresNameDuties checks that failures name the duties that a store does
// not do.
func TestFailuresNameDuties(t *testing.T) {
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNaive$", "-test.timeout=5m")
	child.Env = append(os.Environ(), mutantEnv+"=naive")
	out, err := child.CombinedOutput()
	if err == nil {
		t.Fatal("a store without reservations passed")
	}
	var named []string
	for _, m := range regexp.MustCompile(`duty "([a-z]+)": `).FindAllSubmatch(out, -1) {
		named = append(named, string(m[1]))
	}
	failed := len(regexp.MustCompile(`(?m)^    --- FAIL: `).FindAll(out, -1))
	if failed != len(named) {
		t.Errorf("%d cases failed, but %d named a duty", failed, len(named))
	}
	slices.Sort(named)
	named = slices.Compact(named)
	named = slices.DeleteFunc(named, func(d string) bool { return d == "versions" }) // race-change fails only if a call is concurrent with a change
	if want := []string{"all", "cancel", "concurrency", "drop", "holds", "overrides", "plans", "records", "reservations", "reset"}; !slices.Equal(named, want) {
		t.Errorf("duties named: %v, want %v\n%s", named, want, out)
	}
}
