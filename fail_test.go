package dipwell_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// failingStore fails every call with err.
type failingStore struct{ err error }

func (s failingStore) Apply(context.Context, *store.Batch) error { return s.err }

// TestFailureModes checks that a limit that fails open allows a call that the store
// failed to decide, but not one with invalid input.
func TestFailureModes(t *testing.T) {
	away, wrong := errors.New("away"), &store.FieldError{Field: "takes", Reason: "cannot be asked together"}
	dropped := fmt.Errorf("%w %q", store.ErrUnknownLimit, "l")
	for _, c := range []struct {
		mode    store.FailureMode
		err     error
		allowed bool
	}{
		{store.FailOpen, away, true},
		{store.FailOpen, wrong, false},
		{store.FailClosed, away, false},
		{store.FailClosed, wrong, false},
		{store.FailOpen, dropped, false},
		{store.FailClosed, dropped, false},
	} {
		l, err := dipwell.New(failingStore{c.err}, store.Limit{Name: "l", Rate: 1, Period: time.Hour, OnStoreError: c.mode})
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Take(t.Context(), "l", "k", 1)
		if d.Allowed != c.allowed || (err == nil) != c.allowed || d.Granted != 0 || errors.Is(err, store.ErrStore) != (!c.allowed && errors.Is(c.err, away)) {
			t.Errorf("%v on %v: %+v, %v", c.mode, c.err, d, err)
		}
	}
}

// TestFailureModesOfSeveral checks that one limit that fails closed refuses a call of
// several.
func TestFailureModesOfSeveral(t *testing.T) {
	l, err := dipwell.New(failingStore{errors.New("away")},
		store.Limit{Name: "open", Rate: 1, Period: time.Hour, OnStoreError: store.FailOpen},
		store.Limit{Name: "closed", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	open, closed := dipwell.Take{Limit: "open", Key: "k", Cost: 1}, dipwell.Take{Limit: "closed", Key: "k", Cost: 1}
	for _, takes := range [][]dipwell.Take{{open, closed}, {closed, open}} { // the decision is of the limit that refused
		if d, err := l.TakeAll(t.Context(), takes...); !errors.Is(err, store.ErrStore) || d.Allowed || d.Limit != "closed" || d.Source != store.SourceFallbackClosed {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if d, err := l.TakeAll(t.Context(), open, open); err != nil || !d.Allowed || d.Source != store.SourceFallbackOpen {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestFailureOfShadow checks that a limit in shadow mode refuses nothing while the store
// fails either, and says that it would have.
func TestFailureOfShadow(t *testing.T) {
	l, err := dipwell.New(failingStore{errors.New("away")},
		store.Limit{Name: "shadow", Rate: 1, Period: time.Hour, Mode: store.Shadow},
		store.Limit{Name: "local", Rate: 1, Period: time.Hour, Mode: store.Shadow, OnStoreError: store.FailLocal}, // nothing here decides locally
		store.Limit{Name: "open", Rate: 1, Period: time.Hour, OnStoreError: store.FailOpen},
		store.Limit{Name: "closed", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	shadow, open, closed := dipwell.Take{Limit: "shadow", Key: "k", Cost: 1}, dipwell.Take{Limit: "open", Key: "k", Cost: 1}, dipwell.Take{Limit: "closed", Key: "k", Cost: 1}
	for _, takes := range [][]dipwell.Take{{shadow}, {{Limit: "local", Key: "k", Cost: 1}}, {shadow, open}} {
		if d, err := l.TakeAll(t.Context(), takes...); err != nil || !d.Allowed || !d.Shadow || d.Granted != 0 || d.Source != store.SourceFallbackOpen {
			t.Errorf("%v: %+v, %v", takes, d, err)
		}
	}
	if d, err := l.TakeAll(t.Context(), shadow, closed); !errors.Is(err, store.ErrStore) || d.Allowed || d.Limit != "closed" {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Charge(t.Context(), "shadow", "k", 1); !errors.Is(err, store.ErrStore) || d.Allowed {
		t.Errorf("a charge that was not made: %+v, %v", d, err)
	}
}

// partial answers the op of a call and not its group.
type partial struct{}

func (partial) Apply(_ context.Context, b *store.Batch) error {
	b.Groups[0].Ops[0].Allowed = true
	return nil
}

// TestChargeRefusedByNone checks that no error is made up for a charge of which no limit
// says that it is too large.
func TestChargeRefusedByNone(t *testing.T) {
	l, err := dipwell.New(partial{}, store.Limit{Name: "l", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Charge(t.Context(), "l", "k", 1); err != nil || d.Source != store.SourceStore {
		t.Errorf("%+v, %v", d, err)
	}
}
