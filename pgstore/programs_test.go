package pgstore_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// Programs define limits at the same time. Each reads only the limit that it has changed,
// unless another has changed one meanwhile.
func TestPrograms(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	now := time.Now().UnixMicro()
	limittest.Programs(t, func() store.Store {
		return newStore(t, pool, pgstore.Config{Clock: func() int64 { return now }, Poll: 10 * time.Millisecond})
	}, 8, eventually)
}
