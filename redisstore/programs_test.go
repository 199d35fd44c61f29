package redisstore_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// Programs define limits at the same time: see pgstore.TestPrograms.
func TestPrograms(t *testing.T) {
	t.Parallel()
	now := time.Now().UnixMicro()
	c := redisstore.Config{Prefix: "programs", Clock: func() int64 { return now }, Poll: 10 * time.Millisecond}
	limittest.Programs(t, func() store.Store { return newStore(t, connect(t, redistest.Shared(t).URL()), c) }, 15, eventually)
}
