package replay_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/replay"
)

func play(t interface {
	Helper()
	Fatal(args ...any)
}, s replay.PlaySettings) *replay.PlayRun {
	t.Helper()
	run, err := replay.Play(s)
	if err != nil {
		t.Fatal(err, s)
	}
	return run
}

// Worked cases of the contract, which can be read off the page.
func TestPlay(t *testing.T) {
	for _, c := range []struct {
		name             string
		s                replay.PlaySettings
		allowed, refused int64
	}{
		{"1/s, burst 10, a call each 0.1 s: 10, then one a second", replay.PlaySettings{Limit: "x=1/1s,burst=10", Verb: "take", Cost: 1, Span: "5s", Pattern: "steady", Every: "100ms"}, 14, 36},
		{"polled at the retry time: all that is earned", replay.PlaySettings{Limit: "x=2/1s,burst=5", Verb: "take", Cost: 1, Span: "10s", Pattern: "poll", Every: "1ms"}, 24, 20},
		{"bursts against a window", replay.PlaySettings{Limit: "x=5/10s,algorithm=fixed_window,start=0s", Verb: "take", Cost: 1, Span: "30s", Pattern: "bursts", Every: "5s", Count: 4}, 15, 9},
		{"reservations into debt", replay.PlaySettings{Limit: "x=1/1s,burst=2,max_debt=3", Verb: "reserve", Cost: 1, Span: "1s", Pattern: "bursts", Every: "1s", Count: 9}, 5, 4},
		{"a leaky bucket queues", replay.PlaySettings{Limit: "x=1/1s,algorithm=leaky_bucket,max_debt=3", Verb: "take", Cost: 1, Span: "1s", Pattern: "bursts", Every: "1s", Count: 9}, 4, 5},
		{"drawn", replay.PlaySettings{Limit: "x=1/1s,burst=3", Verb: "take", Cost: 1, Span: "4s", Pattern: "drawn", Drawn: []int64{4, 0, 0, 5}}, 6, 3},
		{"no wait helps", replay.PlaySettings{Limit: "x=1/1s,burst=3", Verb: "take", Cost: 4, Span: "4s", Pattern: "poll", Every: "1s"}, 0, 1},
	} {
		run := play(t, c.s)
		if run.Allowed != c.allowed || run.Refused != c.refused {
			t.Errorf("%s: %d allowed, %d refused; want %d, %d", c.name, run.Allowed, run.Refused, c.allowed, c.refused)
		}
	}
}

// draw draws settings that are allowed.
func draw(t *rapid.T) replay.PlaySettings {
	limit := fmt.Sprintf("x=%d/%s,algorithm=%s", rapid.Int64Range(1, 2000).Draw(t, "rate"), rapid.SampledFrom([]string{"7ms", "1s", "1m", "1h", "1d"}).Draw(t, "per"),
		rapid.SampledFrom([]string{"token_bucket", "fixed_window", "interval", "leaky_bucket,max_debt=9"}).Draw(t, "algorithm"))
	return replay.PlaySettings{Limit: limit, Verb: rapid.SampledFrom([]string{"take", "take_up_to", "reserve"}).Draw(t, "verb"), Cost: rapid.Int64Range(0, 9).Draw(t, "cost"),
		Span: rapid.SampledFrom([]string{"3s", "5m", "2h"}).Draw(t, "span"), Every: rapid.SampledFrom([]string{"10ms", "1s", "7s"}).Draw(t, "every"), Count: rapid.Int64Range(1, 40).Draw(t, "count"),
		Pattern: rapid.SampledFrom([]string{"steady", "bursts", "poll", "drawn"}).Draw(t, "pattern"), Drawn: rapid.SliceOfN(rapid.Int64Range(0, 20), 1, 60).Draw(t, "drawn")}
}

// A run is bounded, its calls and points are in order, and the level is what calls say.
func TestRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t)
		run := play(t, s)
		if len(run.Calls) > 2000 || run.Allowed+run.Refused != int64(len(run.Calls)) || len(run.Level) > 3*2000+402 {
			t.Fatal(len(run.Calls), len(run.Level))
		}
		for i := range run.Level[1:] {
			if run.Level[i][0] > run.Level[i+1][0] {
				t.Fatal(run.Level[i : i+2])
			}
		}
		at := 0
		for i, c := range run.Calls {
			if i > 0 && c.At < run.Calls[i-1].At {
				t.Fatal(run.Calls[i-1 : i+1])
			}
			for at+1 < len(run.Level) && run.Level[at+1][0] <= float64(c.At) {
				at++
			}
			if last := i+1 == len(run.Calls) || run.Calls[i+1].At > c.At; last && int64(max(run.Level[at][1], 0)) != c.Remaining {
				t.Fatalf("level %v, %d remaining", run.Level[at], c.Remaining)
			}
		}
	})
}

// A setting that cannot be is an error that names it.
func TestErrors(t *testing.T) {
	good := replay.PlaySettings{Limit: "x=1/1s", Verb: "take", Cost: 1, Span: "1s", Pattern: "bursts", Every: "1s", Count: 1, Drawn: []int64{1}}
	for field, spoil := range map[string]func(s *replay.PlaySettings){
		"rate":      func(s *replay.PlaySettings) { s.Limit = "x=0/1s" },
		"algorithm": func(s *replay.PlaySettings) { s.Limit = "x=1,algorithm=concurrency,ttl=1m" },
		"verb":      func(s *replay.PlaySettings) { s.Verb = "" },
		"cost":      func(s *replay.PlaySettings) { s.Cost = -1 },
		"span":      func(s *replay.PlaySettings) { s.Span = "100w10d1000w" },
		"every":     func(s *replay.PlaySettings) { s.Every = "0s" },
		"count":     func(s *replay.PlaySettings) { s.Count = 2001 },
		"pattern":   func(s *replay.PlaySettings) { s.Pattern = "none" },
		"drawn":     func(s *replay.PlaySettings) { s.Pattern, s.Drawn = "drawn", []int64{1999, 2} },
	} {
		s := good
		spoil(&s)
		_, err := replay.Play(s)
		var bad *dipwell.FieldError
		if !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// The longest run takes no time that anybody notices.
func TestBound(t *testing.T) {
	run := play(t, replay.PlaySettings{Limit: "x=1000/1s", Verb: "take", Cost: 1, Span: "3660d", Pattern: "steady", Every: "1us"})
	if len(run.Calls) != 2000 || run.Stopped == "" || run.Span != 2000 {
		t.Error(len(run.Calls), run.Stopped, time.Duration(run.Span)*time.Microsecond)
	}
}
