package recipes

import (
	"context"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// open opens one of the stores. The rest of a program is the same for all.
func open(ctx context.Context, kind string) (store.Store, error) {
	switch kind {
	case "postgres": // after dipwell migrate up
		return pgstore.Open(ctx, "postgres://localhost/shop", pgstore.Config{})
	case "redis":
		return redisstore.Open(ctx, "redis://localhost:6379", redisstore.Config{})
	case "file": // for one process; survives a restart
		return filestore.Open("limits.db", filestore.Config{})
	default:
		return memstore.New(memstore.Config{})
	}
}

// The stores that need no server are opened and asked; the others are compiled.
func TestStores(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, kind := range []string{"file", "memory"} {
		s, err := open(t.Context(), kind)
		if err != nil {
			t.Fatal(kind, err)
		}
		defer s.(interface{ Close() error }).Close()
		limiter, err := dipwell.New(s, dipwell.Limit{Name: "login", Rate: 1, Period: time.Hour})
		if err != nil {
			t.Fatal(kind, err)
		}
		for _, want := range []bool{true, false} {
			if d, err := limiter.Take(t.Context(), "login", "user:7", 1); err != nil || d.Allowed != want {
				t.Error(kind, d, err)
			}
		}
	}
}
