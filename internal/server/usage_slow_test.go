package server_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// A slowStore takes a time to record a minute, and notes what usage it is given. As
// PostgreSQL, it does not tell whether a call whose context has ended had an effect.
type slowStore struct {
	*memstore.Store
	takes time.Duration
	log   []string
}

func (s *slowStore) Abilities() store.Abilities {
	ab := s.Store.Abilities()
	ab.Quick, ab.Lanes, ab.TopKeys = nil, nil, nil
	ab.Minutes, ab.Usage = slowAudit{s}, slowUsage{ab.Usage, s}
	return ab
}

type slowAudit struct{ s *slowStore }

func (a slowAudit) Record(ctx context.Context, e store.AuditEntry) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrStore, ctx.Err())
	case <-time.After(a.s.takes):
		return nil
	}
}

func (a slowAudit) Audit(context.Context, string, int) ([]store.AuditEntry, error) { return nil, nil }

type slowUsage struct {
	store.UsageKeeper
	s *slowStore
}

func (u slowUsage) AddUsage(ctx context.Context, lines []store.UsageLine) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
	}
	for _, l := range lines {
		u.s.log = append(u.s.log, fmt.Sprint(l.Key, " ", l.Allowed, " hour ", time.UnixMicro(l.Hour).UTC().Format("15:04")))
	}
	return u.UsageKeeper.AddUsage(ctx, lines)
}

func slowService(t *testing.T, takes time.Duration) (*slowStore, *fixture, func()) {
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	s := &slowStore{Store: st, takes: takes}
	w := (&fixture{t: t}).over(s, server.Config{}, local, "api=100/1h,burst=1000,usage=true")
	ctx, cancel := context.WithCancel(t.Context())
	wait := w.server.CountKeys(ctx, "host:1", 0)
	return s, w, func() { cancel(); wait(); _ = st.Close() }
}

// What keys used is stored when the service stops while the store records a minute.
func TestUsageAtAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, end := slowService(t, time.Second)
		for range 7 {
			w.post("take", "limit=api&key=k")
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 100*time.Millisecond)))
		end() // SIGTERM while the minute is being stored
		if len(s.log) != 1 {
			t.Errorf("usage of 7 calls was lost: %q", s.log)
		}
	})
}

// Calls count for the hour in which they were made, also if the store is slow.
func TestUsageOfTheHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, end := slowService(t, 1500*time.Millisecond)
		hour := time.Now().Truncate(time.Hour).Add(time.Hour)
		time.Sleep(time.Until(hour.Add(time.Second)))
		for range 5 {
			w.post("take", "limit=api&key=k") // at 1 s after the hour
		}
		time.Sleep(2 * time.Minute)
		end()
		if want := "k 5 hour " + hour.UTC().Format("15:04"); len(s.log) != 1 || s.log[0] != want {
			t.Errorf("%q, want %q", s.log, want)
		}
	})
}
