package background_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/background"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := background.Sleep(ctx, time.Second); err != nil || time.Since(start) != time.Second {
			t.Errorf("slept %v: %v", time.Since(start), err)
		}
		if err := background.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("ended after %v: %v", time.Since(start), err)
		}
	})
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := make(background.Gate, 1)
		if err := g.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second one was let in: %v", err)
		}
		time.AfterFunc(time.Second, g.Leave)
		if err := g.Enter(t.Context()); err != nil {
			t.Error(err)
		}
		g.Leave()
	})
}
