package coalesce_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/store"
)

// hanging answers when the test says so, even after its context has ended.
type hanging struct{ answer chan struct{} }

func (d hanging) Apply(_ context.Context, b *store.Batch) error {
	<-d.answer
	for i := range b.Groups {
		b.Groups[i].Allowed = true
	}
	return nil
}

// TestCallsTimeOutWhileTheStoreHangs checks that calls time out even if the store
// ignores its context. Queued calls were not charged; the outcome of sent ones is
// unknown. Later answers do not reach other calls.
func TestCallsTimeOutWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = time.Minute
		d := hanging{make(chan struct{})}
		s, err := coalesce.New(store.Lanes{Stores: []store.Store{d}}, coalesce.Config{Timeout: most, MaxBatch: 4})
		if err != nil {
			t.Fatal(err)
		}
		cancellable, cancel := context.WithCancel(context.Background())
		defer cancel()
		later, cancelLater := context.WithTimeout(context.Background(), time.Hour)
		defer cancelLater()
		var calls sync.WaitGroup
		var unknown, answered atomic.Int32
		ask := func(ctx context.Context) {
			calls.Go(func() {
				start := time.Now()
				var b store.Batch
				g, op := b.Single()
				op.Def, op.Key, op.Cost = def, "k", 1
				err := errors.Join(s.Apply(ctx, &b), g.Err)
				switch took := time.Since(start); {
				case err == nil && g.Allowed:
					answered.Add(1)
				case !errors.Is(err, context.DeadlineExceeded) || took < most*9/10 || took > most:
					t.Errorf("after %v: %v", took, err)
				case errors.Is(err, store.ErrOutcomeUnknown):
					unknown.Add(1)
				}
			})
		}
		ask(context.Background()) // alone
		synctest.Wait()
		for range 2 {
			for _, ctx := range []context.Context{context.Background(), cancellable, later} {
				ask(ctx)
			}
			synctest.Wait()
		}
		d.answer <- struct{}{} // four go on the next statement, two wait
		time.Sleep(2 * most)
		if n, _ := coalesce.Waiting(s); n != 0 || unknown.Load() != 4 || answered.Load() != 1 {
			t.Errorf("%d still wait; of %d nobody knows, %d were answered", n, unknown.Load(), answered.Load())
		}
		ask(context.Background())
		ask(cancellable)
		synctest.Wait()
		d.answer <- struct{}{} // nobody hears it
		d.answer <- struct{}{} // these do
		calls.Wait()
		if answered.Load() != 3 {
			t.Errorf("%d were answered, not 3", answered.Load())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// hangingVerbs is a store whose verbs never answer.
type hangingVerbs struct{ hanging }

func (d hangingVerbs) Abilities() store.Abilities {
	return store.Abilities{
		Keys: func(ctx context.Context, _ *store.Definition, _, _ string, _ int) ([]store.KeyState, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		Holds: func(ctx context.Context, _ *store.Definition, _ string) ([]store.KeyHold, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}
}

// TestVerbsTimeOut checks that other verbs than Apply time out as calls do, and lists later.
func TestVerbsTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, coalesce.Config{Timeout: 5 * time.Second}, hangingVerbs{})
		defer s.Close()
		ab, start := store.AbilitiesOf(s), time.Now()
		if _, err := ab.Holds(context.Background(), def, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Errorf("holds: %v after %v", err, time.Since(start))
		}
		start = time.Now()
		if _, err := ab.Keys(context.Background(), def, "", "", 1); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 30*time.Second {
			t.Errorf("keys: %v after %v", err, time.Since(start))
		}
	})
}
