package stack_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// TestPostgresCloseWhileCallsRun: calls that are in flight when the stack and then
// its store are closed are decided or fail, and later ones fail.
func TestPostgresCloseWhileCallsRun(t *testing.T) {
	for name, o := range map[string]stack.Options{"coalesced": {}, "service": service} {
		t.Run(name, func(t *testing.T) {
			s, _, _ := onWire(t)
			st := build(t, s, o)
			free := dipwell.Limit{Name: "free", Rate: 1 << 30, Period: time.Second}
			limiter, err := dipwell.New(st.Store, free)
			if err != nil {
				t.Fatal(err)
			}
			var calls sync.WaitGroup
			var decided atomic.Int64
			many := make(chan struct{})
			for i := range 32 {
				calls.Go(func() {
					for {
						switch d, err := limiter.Take(context.Background(), "free", string(rune('a'+i%5)), 1); {
						case err == nil && (!d.Allowed || d.Source != store.SourceStore):
							t.Errorf("%+v", d)
							return
						case err != nil && !errors.Is(err, dipwell.ErrStore):
							t.Error(err)
							return
						case err != nil:
							return
						}
						if decided.Add(1) == 500 {
							close(many)
						}
					}
				})
			}
			<-many
			if err := errors.Join(st.Close(), s.Close()); err != nil {
				t.Error(err)
			}
			calls.Wait()
			if _, err := limiter.Take(context.Background(), "free", "k", 1); !errors.Is(err, dipwell.ErrStore) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// A stack may be closed twice, also at once, as by a handler of signals and a defer.
func TestCloseTwice(t *testing.T) {
	s, _, _ := onWire(t)
	st := build(t, s, service)
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}
