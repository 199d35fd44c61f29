package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestUnreadableLimit checks that a limit that only another program can read
// does not affect other limits, and that its own calls return an error that
// names it.
func TestUnreadableLimit(t *testing.T) {
	t.Parallel()
	ctx, db := context.Background(), client(t)
	if _, err := dipwell.New(newStore(t, db, redisstore.Config{Prefix: "unreadable"}), store.Limit{Name: "good", Rate: 5, Period: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := db.HSet(ctx, "unreadable.limits", "newer", `{"Version":1,"Algorithm":"martian"}`).Err(); err != nil {
		t.Fatal(err)
	}
	var reports atomic.Int64
	l, err := dipwell.New(newStore(t, db, redisstore.Config{Prefix: "unreadable", OnError: func(error) { reports.Add(1) }}))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "good", "k", 1); err != nil || !d.Allowed {
		t.Errorf("a limit beside it: %+v, %v", d, err)
	}
	if d, err := l.Take(ctx, "newer", "k", 1); !errors.Is(err, store.ErrStore) || d.Allowed || !strings.Contains(err.Error(), "limit newer") {
		t.Errorf("%+v, %v", d, err)
	}
	if n := reports.Load(); n != 1 {
		t.Errorf("%d reports", n)
	}
}
