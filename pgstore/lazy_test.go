package pgstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestAbsentAtStart checks that a lazy store opens without its server, answers
// by the failure modes, and recovers, with the limits that were defined in the
// meantime.
func TestAbsentAtStart(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "fsync=off")
	ctx := context.Background()
	if err := migrated(server.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	other := newStore(t, connect(t, server.DSN("postgres")), pgstore.Config{Poll: -1})
	for _, name := range []string{"theirs", "sql"} {
		if _, err := other.Define(ctx, store.Limit{Name: name, Rate: 1, Period: time.Hour}, terms.OwnerAPI); err != nil {
			t.Fatal(err)
		}
	}
	server.Stop()

	healed := newErrorLog()
	s, err := pgstore.Open(ctx, server.DSN("postgres"), pgstore.Config{Lazy: true, Poll: 20 * time.Millisecond, OnError: healed.add})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := dipwell.New(s, store.Limit{Name: "closed", Rate: 5, Period: time.Hour},
		store.Limit{Name: "open", Rate: 5, Period: time.Hour, OnStoreError: store.FailOpen},
		store.Limit{Name: "theirs", Rate: 5, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "closed", "k", 1); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed {
		t.Errorf("closed: %+v, %v", d, err)
	}
	if d, err := l.Take(ctx, "open", "k", 1); err != nil || !d.Allowed || d.Source != store.SourceFallbackOpen {
		t.Errorf("open: %+v, %v", d, err)
	}
	if _, err := l.Take(ctx, "sql", "k", 1); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrUnknownLimit) {
		t.Errorf("a limit that only the database knows: %v", err)
	}
	if _, err := l.Define(ctx, store.Limit{Name: "api", Rate: 1, Period: time.Hour}, terms.OwnerAPI); !errors.Is(err, store.ErrStore) {
		t.Errorf("a definition that somebody waits for: %v", err)
	}
	if _, err := s.Abilities().Now(ctx); !errors.Is(err, store.ErrStore) {
		t.Errorf("now: %v", err)
	}

	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovered", func() bool {
		d, err := l.Take(ctx, "closed", "k", 5)
		return err == nil && d.Allowed && d.Source == store.SourceStore
	})
	eventually(t, "a limit that only the database has", func() bool {
		d, err := l.Take(ctx, "sql", "k", 1)
		return err == nil && d.Allowed
	})
	if d := l.Limit("theirs"); d.Rate != 1 || d.Owner != terms.OwnerAPI {
		t.Errorf("a limit of somebody else became %+v", d)
	}
	eventually(t, "an error about another owner", func() bool { return healed.contains(store.ErrOwner) })
	if _, err := l.Take(ctx, "missing", "k", 1); !errors.Is(err, store.ErrUnknownLimit) {
		t.Errorf("a limit that nobody has: %v", err)
	}
}

// TestLazySchema checks that a server with another schema version is an error
// at once.
func TestLazySchema(t *testing.T) {
	dsn := pgtest.Database(t, "empty", func(string) error { return nil })
	_, err := pgstore.Open(context.Background(), dsn, pgstore.Config{Lazy: true})
	var schema *pgstore.SchemaError
	if !errors.As(err, &schema) {
		t.Errorf("opened over no schema: %v", err)
	}
	if _, err = pgstore.Open(context.Background(), "postgres://:bad:port/", pgstore.Config{}); err == nil {
		t.Error("opened a URL that is none")
	}
}

// TestDefinedWhileAway checks that limits changed while the server is down take
// effect in this process as far as possible, and are stored when the server is
// back.
func TestDefinedWhileAway(t *testing.T) {
	t.Parallel()
	server := ownServer(t, "fsync=off")
	ctx := context.Background()
	limit := drained("moved", 5)
	_, l := openURL(t, server.DSN("postgres"), limit)
	if d, err := l.Take(ctx, "moved", "k", 5); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	server.Stop()
	limit.Burst = 50
	if d, err := l.Define(ctx, limit, store.OwnerCode); err != nil || d.Burst != 50 {
		t.Errorf("changed: %+v, %v", d, err)
	}
	if _, err := l.Define(ctx, drained("new", 3), terms.OwnerFile); err != nil {
		t.Error(err)
	}
	if _, err := l.Take(ctx, "new", "k", 1); !errors.Is(err, store.ErrStore) {
		t.Errorf("a new limit without its server: %v", err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "limit stored", func() bool {
		d, err := l.Take(ctx, "moved", "k", 45)
		return err == nil && d.Allowed
	})
	eventually(t, "both limits stored", func() bool { // the pool may have another dead connection
		d, err := l.Take(ctx, "new", "k", 3)
		return err == nil && d.Allowed
	})
	if _, near := openURL(t, server.DSN("postgres")); near.Limit("moved").Burst != 50 || near.Limit("new").Owner != terms.OwnerFile {
		t.Errorf("the server has %+v and %+v", near.Limit("moved"), near.Limit("new"))
	}
}
