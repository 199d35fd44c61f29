package pgstore_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// tripCounter counts round trips: the client waits for the answer to each
// write.
type tripCounter struct {
	net.Conn
	n *int
}

func (c tripCounter) Write(b []byte) (int, error) {
	*c.n++
	return c.Conn.Write(b)
}

// TestTakeAtRetryTime checks that a Take is refused 1 µs before its retry time
// and granted at it, by the UPDATE in one round trip, for any number of units
// per tick. The fourth limit is just below the bound of function enough.
func TestTakeAtRetryTime(t *testing.T) {
	ctx := context.Background()
	config, err := pgx.ParseConfig(pgtest.Database(t, "dipwell", migrated))
	if err != nil {
		t.Fatal(err)
	}
	var asked int
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return tripCounter{conn, &asked}, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	const start = 1_700_000_000_000_000
	now := int64(start)
	for _, rate := range []int64{1, 3, 7, 256, 257, 999_983} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			name := fmt.Sprint("limit", rate)
			st := newStore(t, conn, pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
			limiter, err := dipwell.New(st, store.Limit{Name: name, Rate: rate, Period: time.Second + time.Microsecond, Burst: 5})
			if err != nil {
				t.Fatal(err)
			}
			take := func(cost int64, at int64, want bool, most int) dipwell.Decision {
				t.Helper()
				now, asked = at, 0
				d, err := limiter.Take(ctx, name, "key", cost)
				if err != nil || d.Allowed != want {
					t.Fatalf("cost %d at %d µs: allowed %v, %v; want %v", cost, at-start, d.Allowed, err, want)
				}
				if want && asked > most {
					t.Fatalf("cost %d at %d µs: %d trips; want %d", cost, at-start, asked, most)
				}
				return d
			}
			take(1, start, true, 6) // three statements, each prepared first
			take(2, start, true, 1)
			take(2, start, true, 1) // exactly what is left
			for i, cost := range []int64{1, 3, 5} {
				at := now + take(cost, now, false, 0).RetryAfter.Microseconds()
				take(cost, at-1, false, 0)
				take(cost, at, true, 2) // after a refusal the row is read first
				if i == 0 {
					take(0, at-20, true, 2)
				}
			}
			d := take(1, now+3600*1_000_000, true, 1) // full for a long time: nothing beyond full is counted
			if d.Remaining != 4 {
				t.Errorf("%d remain of 5 after a rest and a call", d.Remaining)
			}
			take(4, now-1, true, 1) // the clock steps back: charged, without extra tokens
			take(1, now, false, 0)
		})
	}
}

// TestShortestWindow checks windows of 1 µs, whose statements have no parameter
// for the origin.
func TestShortestWindow(t *testing.T) {
	ctx := context.Background()
	for name, prepare := range map[string]func(string) error{"dipwell": migrated, "portable": migratedPortable} {
		for _, clock := range []func() int64{nil, func() int64 { return 1_700_000_000_000_000 }} {
			pool := recycledPool(t, name, prepare)
			s := newStore(t, pool, pgstore.Config{Clock: clock, Poll: -1})
			d, err := s.Define(ctx, store.Limit{Name: "short", Algorithm: store.FixedWindow, Rate: 1, Period: time.Microsecond, Burst: 5}, store.OwnerCode)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				for n := 1; n <= 3; n++ { // alone, and in a batch
					var b store.Batch
					for i := range n {
						b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: d, Key: fmt.Sprint("k", n, i), Verb: store.VerbTake, Cost: 2}}})
					}
					err := s.Apply(ctx, &b)
					for i := range b.Groups {
						if g := &b.Groups[i]; err != nil || g.Err != nil || !g.Allowed {
							t.Errorf("%s: %d of %d: %v, %v, %v", name, i, n, g.Allowed, err, g.Err)
						}
					}
				}
			}
		}
	}
}
