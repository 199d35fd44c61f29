package lockstep

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
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
			return redisURL(t) + fmt.Sprint("&prefix=leased", prefixes.Add(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leaseProcesses(t, open(t))
		})
	}
}

// A grant is a call that was allowed, and its source.
type grant struct {
	limittest.Grant
	Source int64
}

func leaseProcesses(t *testing.T, url string) {
	const enough = 5000 // grants from leases
	openLimiter(t.Context(), url, leasedLimit)
	more, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var mu sync.Mutex
	var grants []limittest.Grant
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
	most := limittest.MostGranted(grants, float64(leasedLimit.Rate)/1e6)
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
func runLeaser(ctx context.Context, t *testing.T, url string, life time.Duration, kill bool, stopped, killed *atomic.Int64, granted func(grant)) (grants []limittest.Grant) {
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
		grants = append(grants, g.Grant)
		granted(g)
	}
	_ = c.Wait()
	return grants
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
			check(binary.Write(os.Stdout, binary.LittleEndian, grant{limittest.Grant{Asked: asked.UnixMicro(), Answered: time.Now().UnixMicro()}, int64(d.Source)}))
		}
	}
}
