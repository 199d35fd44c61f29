package pgstore_test

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// testTimeout bounds how long a test waits for a condition; servers are slow on
// a busy machine.
const testTimeout = 5 * time.Minute

// eventually polls until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(testTimeout)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not %s after %v", what, testTimeout)
		}
	}
}

// An errorLog records the errors passed to OnError.
type errorLog struct {
	mu   sync.Mutex
	errs []error
}

func newErrorLog() *errorLog { return new(errorLog) }

func (h *errorLog) add(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

func (h *errorLog) contains(target error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, err := range h.errs {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
