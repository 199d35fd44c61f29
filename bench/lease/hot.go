package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// A contender is a limiter, with its decisions a second and processor time per decision.
type contender struct {
	name       string
	procs      int
	l          *dipwell.Limiter
	perSecond  []float64
	ns, leased []float64
}

// hot compares Takes of one key.
func hot(w io.Writer, postgres string, rounds int) {
	limit := dipwell.Limit{Name: "hot", Rate: 400_000_000, Period: time.Second, Burst: 400_000_000}
	memory := must(memstore.New(memstore.Config{}))
	defer memory.Close()
	inMemory := must(dipwell.New(memory, limit))
	limit.Lease = 250 * time.Millisecond
	s := must(stack.New(context.Background(), openStore(postgres), stack.Options{Breaker: true, DenyMaxAge: time.Second, Leases: true, Fallback: true}))
	defer s.Close()
	leased := must(dipwell.New(s.Store, limit))
	contenders := []*contender{
		{name: "memstore", procs: 1, l: inMemory}, {name: "memstore", procs: 2, l: inMemory},
		{name: "leased, PostgreSQL", procs: 1, l: leased}, {name: "leased, PostgreSQL", procs: 2, l: leased}}
	for range rounds {
		for _, c := range contenders {
			c.round()
		}
	}
	fmt.Fprint(w, "## One hot key\n\nA goroutine a processor takes one token of one key as fast as it is answered. The lease is 250 ms.\n\n")
	var rows [][]string
	for _, c := range contenders {
		rows = append(rows, []string{c.name, fmt.Sprint(c.procs), report.Figure(report.Median(c.perSecond)), fmt.Sprintf("%.0f", report.Median(c.ns)),
			fmt.Sprintf("%.2f", report.Median(c.perSecond)/report.Median(contenders[1].perSecond)), fmt.Sprintf("%.1f %%", 100*report.Median(c.leased))})
	}
	report.Table(w, []string{"contender", "processors", "decisions/s", "ns of processor time each", "of memstore on 2", "from leases"}, rows)
	fmt.Fprintf(w, "\nLeased, two processors make %.2f × the decisions of one.\n\n", report.Median(contenders[3].perSecond)/report.Median(contenders[2].perSecond))
}

func (c *contender) round() {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.procs))
	c.take(500 * time.Millisecond)
	before, began := cpu.Own(), time.Now()
	n, leased := c.take(time.Second)
	took := time.Since(began)
	c.perSecond = append(c.perSecond, float64(n)/took.Seconds())
	c.ns = append(c.ns, float64(cpu.Own()-before)/float64(n))
	c.leased = append(c.leased, float64(leased)/float64(n))
}

// take makes takes for some time, and returns how many tokens it got, and how many from
// leases.
func (c *contender) take(length time.Duration) (taken, leased int64) {
	ctx := context.Background()
	var stop atomic.Bool
	defer time.AfterFunc(length, func() { stop.Store(true) }).Stop()
	var group sync.WaitGroup
	var all, fromLease atomic.Int64
	for range c.procs {
		group.Go(func() {
			n, own := int64(0), int64(0)
			for !stop.Load() {
				d, err := c.l.Take(ctx, "hot", "user:7", 1)
				check(err)
				if d.Allowed {
					n++
				}
				if d.Source == store.SourceLease {
					own++
				}
			}
			all.Add(n)
			fromLease.Add(own)
		})
	}
	group.Wait()
	return all.Load(), fromLease.Load()
}
