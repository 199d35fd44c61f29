package lockstep

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// leaserSetting is the URL of the store. A process that has it is a worker of
// TestLeasedProcesses.
const leaserSetting = "DIPWELL_LEASER"

// A bucket without the carve would grant a lease's worth more, half of the burst.
var leasedLimit = dipwell.Limit{Name: "leased", Rate: 2000, Period: time.Second, Burst: 2000, Lease: 500 * time.Millisecond}

// TestLeasedProcesses: four processes ask for more than a leased limit gives. Two stand
// still for longer than a lease, two are killed and others start.
// Between any two instants no more is granted than the burst and what came back.
func TestLeasedProcesses(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return newDatabase(t) },
		"redis": func(t *testing.T) string {
			return redistest.Shared(t).URL() + fmt.Sprint("?prefix=leased", prefixes.Add(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leaseProcesses(t, open(t))
		})
	}
}

// A grant is a call that was allowed between two times of this machine's clock, in µs,
// and its source.
type grant struct{ Asked, Answered, Source int64 }

func leaseProcesses(t *testing.T, url string) {
	const enough = 5000 // grants from leases
	openLimiter(t.Context(), url, leasedLimit)
	more, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var mu sync.Mutex
	var grants []grant
	var leased, stopped, killed atomic.Int64
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			for more.Err() == nil {
				mine := runLeaser(more, t, url, time.Duration(w+1)*time.Second+rand.N(time.Second), w%2 == 0, &stopped, &killed, func(g grant) {
					if g.Source == int64(store.SourceLease) && leased.Add(1) >= enough && stopped.Load() > 0 && killed.Load() > 0 {
						stop()
					}
				})
				mu.Lock()
				grants = append(grants, mine...)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	most := mostGranted(grants, float64(leasedLimit.Rate)/1e6)
	t.Logf("%d grants, %d of them from leases, at most %.0f above the rate; %d processes stood still, %d were killed", len(grants), leased.Load(), most, stopped.Load(), killed.Load())
	if most > float64(leasedLimit.Burst) {
		t.Errorf("%.0f granted above the rate; the burst is %d", most, leasedLimit.Burst)
	}
	if leased.Load() < enough || stopped.Load() == 0 || killed.Load() == 0 {
		t.Errorf("%d grants from leases, %d processes stood still, %d were killed", leased.Load(), stopped.Load(), killed.Load())
	}
}

// runLeaser runs a worker until ctx ends. After some time it stands still for longer than
// a lease, or is killed.
func runLeaser(ctx context.Context, t *testing.T, url string, life time.Duration, kill bool, stopped, killed *atomic.Int64, granted func(grant)) (grants []grant) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), leaserSetting+"="+url)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Error(err)
		return nil
	}
	end := context.AfterFunc(ctx, func() { _ = c.Process.Kill() })
	defer end()
	over := time.AfterFunc(life, func() {
		if kill {
			killed.Add(1)
			_ = c.Process.Kill()
			return
		}
		_ = c.Process.Signal(syscall.SIGSTOP)
		<-time.After(2 * leasedLimit.Lease)
		_ = c.Process.Signal(syscall.SIGCONT)
		stopped.Add(1)
	})
	defer over.Stop()
	for {
		var g grant
		if binary.Read(out, binary.LittleEndian, &g) != nil {
			break
		}
		grants = append(grants, g)
		granted(g)
	}
	_ = c.Wait()
	return grants
}

// mostGranted returns the most that was granted between two instants, less perMicro for
// each µs between them. A grant counts if it was asked for after the first and answered
// before the second.
func mostGranted(grants []grant, perMicro float64) (most float64) {
	byAsked := slices.SortedFunc(slices.Values(grants), func(a, b grant) int { return int(a.Asked - b.Asked) })
	begin := byAsked[0].Asked
	// A tree over the first instants, which are when a grant was asked for that has been
	// answered: sums[i] was added to all below i, and best[i] is the most of them.
	size := 1
	for size < len(byAsked) {
		size *= 2
	}
	best, sums := make([]float64, 2*size), make([]float64, 2*size)
	for i := range best {
		best[i] = math.Inf(-1)
	}
	byAnswered := slices.SortedFunc(slices.Values(grants), func(a, b grant) int { return int(a.Answered - b.Answered) })
	for _, g := range byAnswered {
		// One more in all windows that begin at or before asked.
		last, _ := slices.BinarySearchFunc(byAsked, g.Asked+1, func(a grant, at int64) int { return int(a.Asked - at) })
		at := size + last - 1
		sums[at]++
		best[at] = sums[at] + perMicro*float64(g.Asked-begin)
		for ; at > 1; at /= 2 {
			if at%2 == 1 {
				best[at-1], sums[at-1] = best[at-1]+1, sums[at-1]+1
			}
			best[at/2] = max(best[at/2*2], best[at/2*2+1]) + sums[at/2]
		}
		most = max(most, best[1]-perMicro*float64(g.Answered-begin))
	}
	return most
}

// TestMostGranted compares mostGranted with all pairs of instants.
func TestMostGranted(t *testing.T) {
	for range 200 {
		var grants []grant
		for range 1 + rand.IntN(40) {
			at := rand.Int64N(100)
			grants = append(grants, grant{Asked: at, Answered: at + rand.Int64N(10)})
		}
		rate, want := rand.Float64(), 0.0
		for from := range int64(101) {
			for to := from; to < 111; to++ {
				n := 0.0
				for _, g := range grants {
					if g.Asked >= from && g.Answered <= to {
						n++
					}
				}
				want = max(want, n-rate*float64(to-from))
			}
		}
		if got := mostGranted(grants, rate); math.Abs(got-want) > 1e-6 {
			t.Fatalf("%v at %v: %v, want %v", grants, rate, got, want)
		}
	}
}

// takeLeased is a worker of TestLeasedProcesses. It asks for 1.25 of its share of the rate,
// and writes its grants.
func takeLeased(url string) {
	ctx := context.Background()
	l := openLimiter(ctx, url, leasedLimit)
	s, err := stack.New(ctx, l.Store(), stack.Options{Breaker: true, DenyMaxAge: time.Second, Leases: true, Fallback: true})
	check(err)
	l = l.With(s.Store)
	every := time.Second * 4 * 4 / 5 / time.Duration(leasedLimit.Rate)
	for next := time.Now(); ; next = next.Add(every) {
		if wait := time.Until(next); wait > 0 {
			<-time.After(wait)
		}
		asked := time.Now()
		d, err := l.Take(ctx, leasedLimit.Name, "k", 1)
		if check(err); d.Allowed {
			check(binary.Write(os.Stdout, binary.LittleEndian, grant{asked.UnixMicro(), time.Now().UnixMicro(), int64(d.Source)}))
		}
	}
}
