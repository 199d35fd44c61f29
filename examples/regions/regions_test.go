//go:build unix

package regions_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/examples/regions"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A sea lies between two regions: what is sent over it takes 40 ms, or fails once it is cut.
type sea struct{ cut atomic.Bool }

const crossing = 40 * time.Millisecond

var errCut = errors.New("the cable is cut")

type overSea struct {
	net.Conn
	sea *sea
}

func (c overSea) Write(b []byte) (int, error) {
	<-time.After(crossing)
	if c.sea.cut.Load() {
		_ = c.Close()
		return 0, errCut
	}
	return c.Conn.Write(b)
}

// connect opens a server's database; over is nil for the server of the own region.
func connect(t *testing.T, s *pgtest.Server, over *sea) *pgxpool.Pool {
	t.Helper()
	config, err := pgstore.ParseURL(s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if over != nil {
		dial := config.ConnConfig.DialFunc
		config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if over.cut.Load() {
				return nil, errCut
			}
			c, err := dial(ctx, network, addr)
			return overSea{c, over}, err
		}
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func server(t *testing.T) *pgtest.Server {
	t.Helper()
	s := pgtest.Start(t)
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err = pgstore.Migrate(t.Context(), conn, pgstore.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func open(t *testing.T, own, home *pgxpool.Pool) *regions.Region {
	t.Helper()
	r, err := regions.Open(t.Context(), own, home)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// TestRegions asks in both regions for more than the world's limit gives, cuts the cable,
// and mends it.
func TestRegions(t *testing.T) {
	home, away, cable := server(t), server(t), new(sea)
	there := connect(t, away, nil)
	near, far := open(t, connect(t, home, nil), connect(t, home, nil)), open(t, there, connect(t, home, cable))

	var log grants
	log.ask(t, near, far)
	log.check(t)

	cable.cut.Store(true)
	await(t, "the far region fails", func() bool {
		_, err := far.Take(t.Context(), "cut")
		return errors.Is(err, dipwell.ErrStore)
	})
	await(t, "the near region decides", func() bool {
		d, err := near.Take(t.Context(), "cut")
		return err == nil && d.Allowed
	})
	cable.cut.Store(false)
	await(t, "the far region decides again", func() bool {
		_, err := far.Take(t.Context(), "mended")
		return err == nil
	})
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline, tick := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("not within a minute: " + what)
		case <-tick.C:
		}
	}
}

// grants are when calls began and ended that were allowed.
type grants struct {
	mu   sync.Mutex
	all  []grant
	kind map[string]int
	in   [2]bool // the regions that granted
}

type grant struct{ began, ended time.Duration }

// ask takes in both regions, with customers who do not wait for each other, for two seconds
// and until both have granted; check fails if one has not within a minute. A call that the
// store did not answer in time, as on a busy machine, grants nothing.
func (g *grants) ask(t *testing.T, in ...*regions.Region) {
	t.Helper()
	const callers, length = 25, 2 * time.Second
	start, done := time.Now(), sync.WaitGroup{}
	g.kind = map[string]int{}
	for i, r := range in {
		for c := range callers {
			done.Go(func() {
				tick := time.NewTicker(10 * time.Millisecond) // 100 a second, as the customer's limit
				defer tick.Stop()
				for began := time.Since(start); began < length || began < time.Minute && !g.both(); began = time.Since(start) {
					d, err := r.Take(t.Context(), fmt.Sprintf("%d-%d", i, c))
					if err != nil && (d.Allowed || !errors.Is(err, dipwell.ErrStore)) {
						t.Errorf("allowed %v, error %v", d.Allowed, err)
						return
					}
					g.add(i, d, grant{began, time.Since(start)})
					<-tick.C
				}
			})
		}
	}
	done.Wait()
}

// both reports whether both regions have granted.
func (g *grants) both() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.in == [2]bool{true, true}
}

func (g *grants) add(region int, d dipwell.Decision, one grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kind[fmt.Sprintf("%v by %s", d.Allowed, d.Source)]++
	g.in[region] = g.in[region] || d.Allowed
	if d.Allowed {
		g.all = append(g.all, one)
	}
}

// check counts the calls that lie within two instants, for all pairs of instants on a grid.
func (g *grants) check(t *testing.T) {
	t.Helper()
	const step = 50 * time.Millisecond
	t.Logf("%d granted; %v", len(g.all), g.kind)
	if !g.both() {
		t.Fatalf("regions that granted: %v", g.in)
	}
	var last time.Duration
	for _, one := range g.all {
		last = max(last, one.ended)
	}
	for from := time.Duration(0); from < last; from += step {
		for to := from + step; to < last+step; to += step {
			n := 0
			for _, one := range g.all {
				if one.began >= from && one.ended <= to {
					n++
				}
			}
			if most := regions.Burst + regions.Rate*(to-from).Seconds(); float64(n) > most {
				t.Fatalf("%d granted between %v and %v, at most %.0f", n, from, to, most)
			}
		}
	}
}
