package pgstore_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// changeZone gives the program other data for a zone, before any is loaded.
func changeZone() (forget func()) {
	dir, err := os.MkdirTemp("", "dipwell-zones-")
	if err == nil {
		err = errors.Join(os.Setenv("ZONEINFO", dir), pgtest.MoveZone(dir, pgtest.MovedZone))
	}
	if err != nil {
		panic(err)
	}
	return func() { _ = os.RemoveAll(dir) }
}

// TestZonesDiffer checks that a calendar limit in a zone for which the database
// has other data is defined with a warning that names the zone and the date,
// and that each verb uses the database's data.
func TestZonesDiffer(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), pgstore.Config{Poll: -1})
	ctx := context.Background()
	define := func(name, zone string) *store.Definition {
		d, err := s.Define(ctx, store.Limit{Name: name, Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "00:00 " + zone}, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := define("moved", pgtest.MovedZone)
	today := time.Now().UTC()
	near := []string{today.AddDate(0, 0, -1).Format(time.DateOnly), today.Format(time.DateOnly), today.AddDate(0, 0, 1).Format(time.DateOnly)}
	if !strings.Contains(d.Warning, pgtest.MovedZone) || !slices.ContainsFunc(near, func(date string) bool { return strings.Contains(d.Warning, "from "+date+" on") }) {
		t.Errorf("defined with %q", d.Warning)
	}
	for name, zone := range map[string]string{"rome": "Europe/Rome", "utc": "UTC"} {
		if d := define(name, zone); d.Warning != "" {
			t.Errorf("%s: %q", zone, d.Warning)
		}
	}
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	took, err := l.Take(ctx, "moved", "k", 1)
	if err != nil {
		t.Fatal(err)
	}
	checked, err := l.Check(ctx, "moved", "k", 1)
	if err != nil {
		t.Fatal(err)
	}
	if late := took.ResetAfter - checked.ResetAfter; late < 0 || late > time.Hour {
		t.Errorf("full in %v says the take, in %v the check", took.ResetAfter, checked.ResetAfter)
	}
}

// TestZoneOfTheProgramAlone checks that a limit in a zone that the database
// does not have is rejected when it is defined, because every take would fail.
func TestZoneOfTheProgramAlone(t *testing.T) {
	t.Parallel()
	if err := pgtest.MoveZone(os.Getenv("ZONEINFO"), "Atlantis"); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, newPool(t), pgstore.Config{Poll: -1})
	_, err := s.Define(context.Background(), store.Limit{Name: "day", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "00:00 Atlantis"}, store.OwnerCode)
	var limit *store.FieldError
	if !errors.As(err, &limit) || limit.Field != "start" || !strings.Contains(limit.Reason, "Atlantis") {
		t.Errorf("%v", err)
	}
}

// The zones are compared over the caller's connection, which may be the only one.
func TestZonesInATransaction(t *testing.T) {
	config := newPool(t).Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, dipwell.Limit{Name: "day", Algorithm: dipwell.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "06:00 Europe/Rome"})
	if err != nil {
		t.Fatal(err)
	}
	s.AgeZones()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // the end of the test
	if d, err := l.With(s.With(tx)).Take(ctx, "day", "k", 1); err != nil || !d.Allowed {
		t.Error(d, err)
	}
}
