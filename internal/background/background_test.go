package background_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

type storeFunc func() error

func (f storeFunc) Apply(context.Context, *store.Batch) error { return f() }

func TestApply(t *testing.T) {
	for _, want := range []error{nil, io.EOF} {
		if err := background.Apply(t.Context(), storeFunc(func() error { return want }), nil); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	err := background.Apply(t.Context(), storeFunc(func() error { panic("broken") }), nil)
	if !errors.Is(err, store.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "broken") {
		t.Errorf("%v does not name the panic", err)
	}
}
