package pace_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pace"
	"github.com/dipwell/dipwell/memstore"
)

// virtual runs f with a limiter whose store tells the bubble's time.
func virtual(t *testing.T, f func(t *testing.T, l *dipwell.Limiter), limits ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		epoch := time.Now()
		store, err := memstore.New(memstore.Config{MaxKeys: 100, Clock: func() int64 { return 1e15 + time.Since(epoch).Microseconds() }})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		var parsed []dipwell.Limit
		for _, text := range limits {
			l, err := dipwell.ParseLimit(text)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, l)
		}
		l, err := dipwell.New(store, parsed...)
		if err != nil {
			t.Fatal(err)
		}
		f(t, l)
	})
}

func takes(names ...string) (out []dipwell.Take) {
	for _, name := range names {
		out = append(out, dipwell.Take{Limit: name, Key: "k", Cost: 1})
	}
	return out
}

func TestWait(t *testing.T) {
	for _, c := range []struct {
		name    string
		takes   []dipwell.Take
		bound   time.Duration
		allowed int           // of five
		took    time.Duration // all in all
	}{
		{"in turn", takes("debt"), pace.Forever, 5, 4 * time.Second},
		{"no debt", takes("plain"), pace.Forever, 5, 4 * time.Second},
		{"several", takes("plain", "debt"), pace.Forever, 5, 4 * time.Second},
		{"leaky", takes("leaky"), pace.Forever, 5, 4 * time.Second},
		{"leaky, several", takes("leaky", "day"), pace.Forever, 5, 4 * time.Second},
		{"bound", takes("debt"), time.Second / 2, 1, 0},
		{"bound, no debt", takes("plain"), time.Second / 2, 1, 0},
		{"bound, leaky", takes("leaky"), time.Second / 2, 1, 0},
		{"fail fast, leaky", takes("leaky"), 0, 1, 0},
		{"as long as the wait", takes("plain"), time.Second, 5, 4 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, l *dipwell.Limiter) {
				start, allowed := time.Now(), 0
				for range 5 {
					var d dipwell.Decision
					if err := pace.Wait(t.Context(), l, &d, c.takes, c.bound); err != nil {
						t.Fatal(err)
					}
					if d.Allowed {
						allowed++
					} else if d.RetryAfter <= 0 || d.RetryAfter > time.Second {
						t.Errorf("a refusal says %v", d.RetryAfter)
					}
				}
				if took := time.Since(start); allowed != c.allowed || took < c.took || took > c.took+time.Millisecond {
					t.Errorf("%d allowed in %v; want %d in %v", allowed, took, c.allowed, c.took)
				}
			}, "plain=1/1s,burst=1,max_debt=0", "debt=1/1s,burst=1,max_debt=9", "leaky=1/1s,algorithm=leaky_bucket,max_debt=9", "day=100/1d")
		})
	}
}

// What is not waited for is given back, and a cancelled wait costs nothing.
func TestWaitGivesBack(t *testing.T) {
	virtual(t, func(t *testing.T, l *dipwell.Limiter) {
		var d dipwell.Decision
		if err := pace.Wait(t.Context(), l, &d, takes("leaky"), 0); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if err := pace.Wait(ctx, l, &d, takes("leaky"), pace.Forever); err != nil || d.Allowed {
				t.Fatal(d, err)
			}
			cancel()
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if err := pace.Wait(ctx, l, &d, takes("leaky"), pace.Forever); !errors.Is(err, context.Canceled) {
			t.Fatal(d, err)
		}
		start := time.Now()
		if err := pace.Wait(t.Context(), l, &d, takes("leaky"), pace.Forever); err != nil || !d.Allowed || time.Since(start) > time.Second {
			t.Errorf("%v %v after %v: the cancelled ones still count", d, err, time.Since(start))
		}
	}, "leaky=1/1s,algorithm=leaky_bucket,max_debt=9")
}
