package lockstep

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// Settings of TestKilledHolders. A process that has holderSetting is one of its workers.
const (
	holderSetting   = "DIPWELL_HOLDER"   // URL of the store
	acquiresSetting = "DIPWELL_ACQUIRES" // how many in all; default: as many as there are in five seconds
)

const (
	slots     = 10
	holdTTL   = time.Second
	processes = 32
)

var jobs = dipwell.Limit{Name: "jobs", Algorithm: dipwell.Concurrency, Burst: slots}

// A hold of a worker, in µs of this machine's clock. It certainly holds a slot from
// the answer until it begins to settle, or else until it expires.
type span struct{ from, to int64 }

// TestKilledHolders: processes hold slots of a concurrency limit and release them, and
// half of them are killed. There are never more than the limit has, and when the holds
// of the dead have expired all slots are free.
func TestKilledHolders(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) string{
		// A server with the settings that PostgreSQL has by default: without autovacuum the rows
		// of the one key, each dead after a change, make every statement slower.
		"postgres": func(t *testing.T) string { return newDatabaseOn(t, pgtest.Start(t)) },
		"redis": func(t *testing.T) string {
			return redisURL(t) + fmt.Sprint("&prefix=killed", prefixes.Add(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killHolders(t, open(t))
		})
	}
}

func killHolders(t *testing.T, url string) {
	begin, shortest := time.Now(), 200*time.Millisecond
	target, length := setting(t, acquiresSetting, 0), 5*time.Second
	if target > 0 { // or until the test must end
		end, _ := t.Deadline()
		shortest, length = 2*time.Second, time.Until(end)-2*time.Minute
	} else {
		target = math.MaxInt
	}
	more, stop := context.WithTimeout(t.Context(), length+time.Minute)
	defer stop()
	l := openHolder(t.Context(), url)
	if !strings.HasPrefix(url, "redis") {
		sweep(t, url)
	}
	var mu sync.Mutex
	var spans []span
	var acquired, killed atomic.Int64
	var group sync.WaitGroup
	var used usage
	first := limittest.NewSeed(t)
	group.Go(func() { used.watch(more, t, l) })
	group.Go(func() { // the time is over, and a slow machine has started the processes
		for tick := time.NewTicker(10 * time.Millisecond); more.Err() == nil; <-tick.C {
			if time.Since(begin) >= length && acquired.Load() >= slots && killed.Load() > 0 {
				stop()
			}
		}
	})
	for w := range processes {
		group.Go(func() {
			rnd := rand.New(rand.NewPCG(first, uint64(w)))
			for more.Err() == nil {
				life := shortest + time.Duration(rnd.Int64N(int64(15*shortest)))
				if w%2 == 0 {
					life = time.Hour
				}
				mine, dead := runHolder(more, t, url, life, func() {
					n := acquired.Add(1)
					if n >= int64(target) {
						stop()
					}
					if n%50_000 == 0 {
						t.Logf("%d acquires after %v", n, time.Since(begin))
					}
				})
				mu.Lock()
				spans = append(spans, mine...)
				mu.Unlock()
				if dead {
					killed.Add(1)
				}
			}
		})
	}
	group.Wait()
	most := mostAtOnce(spans)
	t.Logf("%d acquires in %v, %d of the processes were killed; at most %d of %d slots were held at once; %v", len(spans), time.Since(begin).Round(time.Millisecond), killed.Load(), most, slots, &used)
	if most > slots || len(spans) < slots || killed.Load() == 0 {
		t.Errorf("%d slots were held at once", most)
	}
	if used.held > slots || used.held == 0 {
		t.Errorf("%d of %d holds were live at once", used.held, slots)
	}
	if target < math.MaxInt && used.mean() < slots/2 {
		t.Errorf("slots were free while %d processes wanted them: %v", processes, &used)
	}
	ended := time.Now()
	for {
		asked := time.Now()
		d, err := l.Hold(t.Context(), holdTTL, "", dipwell.Take{Limit: "jobs", Key: "k", Cost: slots})
		ok(t, err)
		if d.Allowed {
			break
		}
		if late := time.Since(ended); late > time.Minute {
			t.Fatalf("%v after the last process has ended, a hold of all slots is refused: %+v", late, d)
		}
		// A server can go on with the statement of a process that is dead, and read the
		// clock for it after it has read the clock for this call.
		if took := time.Since(asked); d.RetryAfter > holdTTL+took {
			t.Errorf("all slots are free %v after a call of %v; holds last %v", d.RetryAfter, took, holdTTL)
		}
		<-time.After(d.RetryAfter)
	}
}

// sweep deletes the records of holds that ended a minute ago, as a service does. A
// million of them would not fit into the memory that PostgreSQL has by default.
func sweep(t *testing.T, url string) {
	pool, err := pgxpool.New(t.Context(), url)
	ok(t, err)
	s, err := pgstore.New(t.Context(), pool, pgstore.Config{Poll: -1, Sweep: true, OnError: func(err error) { t.Error(err) }})
	ok(t, err)
	t.Cleanup(func() {
		ok(t, s.Close())
		pool.Close()
	})
}

// usage is how many slots were in use, at times that do not depend on the workers, and the
// most for which there were live holds. The spans say less, because a worker has its slot
// from before the answer until after it begins to settle.
type usage struct{ times, sum, all, held int }

func (u *usage) watch(ctx context.Context, t *testing.T, l *dipwell.Limiter) {
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		d, err := l.Check(t.Context(), "jobs", "k", 0)
		if err != nil {
			t.Error(err)
			return
		}
		holds, err := l.Holds(t.Context(), "jobs", "k")
		if err != nil {
			t.Error(err)
			return
		}
		u.held = max(u.held, len(holds))
		if u.times++; d.Remaining == 0 {
			u.all++
		}
		u.sum += slots - int(d.Remaining)
	}
}

func (u *usage) mean() float64 { return float64(u.sum) / float64(max(u.times, 1)) }

func (u *usage) String() string {
	return fmt.Sprintf("%.1f slots were in use on average, and all of them in %d %% of the time; at most %d holds were listed", u.mean(), 100*u.all/max(u.times, 1), u.held)
}

// runHolder runs a worker until ctx ends or its life does, and then kills it.
func runHolder(ctx context.Context, t *testing.T, url string, life time.Duration, acquired func()) (spans []span, killed bool) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), holderSetting+"="+url)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Error(err)
		return nil, false
	}
	over := time.AfterFunc(life, func() { _ = c.Process.Kill() })
	end := context.AfterFunc(ctx, func() { _ = c.Process.Kill() })
	for in := bufio.NewReader(out); ; {
		var event [16]byte
		if _, err := io.ReadFull(in, event[:]); err != nil {
			break
		}
		at, expires := int64(binary.LittleEndian.Uint64(event[:8])), int64(binary.LittleEndian.Uint64(event[8:]))
		if expires != 0 {
			spans = append(spans, span{at, expires})
			acquired()
		} else { // released
			last := &spans[len(spans)-1]
			last.to = min(last.to, at)
		}
	}
	killed = !over.Stop()
	if ended := !end(); !killed && !ended {
		t.Errorf("a worker ended: %v", c.Wait())
		return spans, false
	}
	_ = c.Wait()
	return spans, killed
}

// mostAtOnce returns the most spans that overlap.
func mostAtOnce(spans []span) (most int) {
	type edge struct {
		at int64
		by int
	}
	var edges []edge
	for _, s := range spans {
		if s.to > s.from { // the answer was not later than the expiry
			edges = append(edges, edge{s.from, 1}, edge{s.to, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
	n := 0
	for _, e := range edges {
		n += e.by
		most = max(most, n)
	}
	return most
}

func openHolder(ctx context.Context, url string) *dipwell.Limiter { return openLimiter(ctx, url, jobs) }

// openLimiter opens the store of a worker, and defines a limit in it.
func openLimiter(ctx context.Context, url string, limit dipwell.Limit) *dipwell.Limiter {
	var s store.Store
	if strings.HasPrefix(url, "redis") {
		db, c, err := redisstore.Client(url, redisstore.Config{Poll: -1})
		check(err)
		s, err = redisstore.New(ctx, db, c)
		check(err)
	} else {
		pool, err := pgxpool.New(ctx, url)
		check(err)
		s, err = pgstore.New(ctx, pool, pgstore.Config{Poll: -1})
		check(err)
	}
	l, err := dipwell.New(s, limit)
	check(err)
	return l
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

const (
	longestWork = 10 * time.Millisecond // a worker holds a slot
	firstPause  = time.Millisecond      // a worker waits after a refusal
	mostPause   = time.Second / 4       // the same, after several
)

// holdAndRelease is a worker of TestKilledHolders. It writes the time at which it got a
// slot and that at which its hold expires, and then the time at which it releases it. A
// worker that is refused again and again waits longer, so that most of the calls are
// of those who get a slot.
func holdAndRelease(url string) {
	runtime.GOMAXPROCS(1) // there are many of them
	ctx := context.Background()
	l := openHolder(ctx, url)
	write := func(expires int64) {
		var event [16]byte
		binary.LittleEndian.PutUint64(event[:8], uint64(time.Now().UnixMicro()))
		binary.LittleEndian.PutUint64(event[8:], uint64(expires))
		_, err := os.Stdout.Write(event[:])
		check(err)
	}
	for pause := firstPause; ; {
		d, err := l.Hold(ctx, holdTTL, "", dipwell.Take{Limit: "jobs", Key: "k", Cost: 1})
		check(err)
		if !d.Allowed {
			<-time.After(pause/2 + rand.N(pause))
			pause = min(2*pause, mostPause)
			continue
		}
		pause = firstPause
		write(d.Expires.UnixMicro())
		if rand.N(4) == 0 { // a timer costs as much as a call
			<-time.After(rand.N(longestWork))
		}
		write(0)
		// On a machine that starves it for a minute, the record of the hold is gone.
		if _, err = l.Settle(ctx, d.Hold); err != nil && (!errors.Is(err, store.ErrUnknownHold) || time.Since(d.Expires) < time.Minute) {
			check(fmt.Errorf("settle: %w", err))
		}
	}
}

// TestAllHoldersDie: 300 calls hold, 50 at a time, and none of them settles. When the
// holds have expired, one call gets all slots of a concurrency limit, and of a bucket
// all but what its list of lows, which is bounded, has forgotten.
func TestAllHoldersDie(t *testing.T) {
	const callers, calls = 50, 300
	eachHoldStore(t, func(t *testing.T, open func(now func() int64) store.Store) {
		var clock atomic.Int64
		clock.Store(time.Now().UnixMicro())
		l, err := dipwell.New(open(clock.Load), dipwell.Limit{Name: "tokens", Rate: 1, Period: time.Hour, Burst: 50 * calls, Timeout: time.Minute},
			dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: calls, Timeout: time.Minute})
		ok(t, err)
		var group sync.WaitGroup
		for w := range callers {
			group.Go(func() {
				for i := range calls / callers {
					takes := []dipwell.Take{{Limit: "tokens", Key: "k", Cost: 10 + int64(w+i)%41}, {Limit: "slots", Key: "k", Cost: 1}}
					if d, err := l.Hold(t.Context(), time.Minute, "", takes...); err != nil || !d.Allowed {
						t.Errorf("%+v, %v", d, err)
					}
				}
			})
		}
		group.Wait()
		clock.Add(time.Minute.Microseconds() - 1)
		for _, take := range []dipwell.Take{{Limit: "tokens", Key: "k", Cost: 45 * calls}, {Limit: "slots", Key: "k", Cost: calls}} {
			if d, err := l.Hold(t.Context(), time.Minute, "", take); err != nil || d.Allowed {
				t.Errorf("a µs before the holds expire: %+v, %v", d, err)
			}
		}
		clock.Add(1)
		for _, take := range []dipwell.Take{{Limit: "tokens", Key: "k", Cost: 45 * calls}, {Limit: "slots", Key: "k", Cost: calls}} {
			if d, err := l.Hold(t.Context(), time.Minute, "", take); err != nil || !d.Allowed {
				t.Errorf("when the holds have expired: %+v, %v", d, err)
			}
		}
	})
}
