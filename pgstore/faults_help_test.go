package pgstore_test

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// patience bounds what a test waits for; on a busy machine servers are slow.
const patience = time.Minute

// until asks again and again until ok.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not %s after %v", what, patience)
		}
	}
}

// hearer keeps what OnError hears.
type hearer struct {
	mu   sync.Mutex
	errs []error
}

func newHearer() *hearer { return new(hearer) }

func (h *hearer) hear(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

func (h *hearer) heard(target error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, err := range h.errs {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
