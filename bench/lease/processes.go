package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

const workerSetting = "DIPWELL_BENCH_LEASE"

const (
	rate, burst = 10_000, 10_000
	lease       = 250 * time.Millisecond
	clients     = 16 // number of goroutines in a process
)

// A worker is a process that takes tokens of one key at a mean rate, from a given time on.
type worker struct {
	URL, Name  string
	NoDebt     bool
	PerSecond  float64
	Begin, End int64 // µs since the Unix epoch
}

// noGrant marks the last record of a worker, which holds its number of trips to the store.
const noGrant = -1

func (w *worker) limit() dipwell.Limit {
	l := dipwell.Limit{Name: w.Name, Rate: rate, Period: time.Second, Burst: burst, Lease: lease}
	if w.NoDebt {
		l.MaxDebt = dipwell.NoDebt
	}
	return l
}

func (w *worker) run() {
	var trips atomic.Int64
	s := must(stack.New(context.Background(), openStore(w.URL), stack.Options{Breaker: true, DenyMaxAge: time.Second, Leases: true, Fallback: true,
		OnBatch: func(*store.Batch, time.Duration, error) { trips.Add(1) }}))
	l := must(dipwell.New(s.Store, w.limit()))
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			next := w.Begin
			for {
				next += int64(rand.ExpFloat64() * clients / w.PerSecond * 1e6)
				time.Sleep(time.Duration(next-time.Now().UnixMicro()) * time.Microsecond)
				if next > w.End {
					return
				}
				asked := time.Now().UnixMicro()
				d, err := l.Take(context.Background(), w.Name, "k", 1)
				check(err)
				g := limittest.Grant{Asked: asked, Answered: time.Now().UnixMicro()}
				if d.Allowed {
					mu.Lock()
					check(binary.Write(out, binary.LittleEndian, g))
					check(out.Flush())
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	check(binary.Write(out, binary.LittleEndian, limittest.Grant{Asked: noGrant, Answered: trips.Load()}))
	check(out.Flush())
}

// A run is four workers and what happens to the first of them.
type run struct {
	name   string
	load   [4]float64 // load of each worker, in parts of the rate
	noDebt bool
	signal syscall.Signal
}

var runs = []run{
	{"four equals", [4]float64{.3125, .3125, .3125, .3125}, false, 0},
	{"four equals, max_debt 0", [4]float64{.3125, .3125, .3125, .3125}, true, 0},
	{"one asks for 20 times as much", [4]float64{1.087, .054, .054, .054}, false, 0},
	{"one asks for 20 times as much, max_debt 0", [4]float64{1.087, .054, .054, .054}, true, 0},
	{"one is killed in the middle", [4]float64{.5, .5, .5, .5}, false, syscall.SIGKILL},
	{"one stands still for a second", [4]float64{.5, .5, .5, .5}, false, syscall.SIGSTOP},
}

func processes(w io.Writer, urls map[string]string, seconds int) {
	fmt.Fprintf(w, "## Four processes\n\nThey share one key of %d a second, burst %d, leased for %v, for %d s. Of the limit: what was granted of burst + rate·t - rate·τ. Above the rate: the most that was granted between any two instants of the merged log, less what came back; it must be at most the burst. Least share: of what a process could have at most (max-min). Trips: to the store in a lease, by the process with the most.\n\n",
		rate, burst, lease, seconds)
	var rows [][]string
	for _, name := range []string{"PostgreSQL", "Redis"} {
		for i, r := range runs {
			rows = append(rows, append([]string{name, r.name}, r.measure(urls[name], fmt.Sprint("run", i), seconds)...))
		}
	}
	report.Table(w, []string{"store", "processes", "of the limit", "most above the rate", "least share", "trips"}, rows)
}

func (r *run) measure(url, name string, seconds int) []string {
	begin := time.Now().Add(2 * time.Second)
	length := time.Duration(seconds) * time.Second
	var all []limittest.Grant
	var got [4]int
	var trips int64
	var mu sync.Mutex
	var group sync.WaitGroup
	for i, part := range r.load {
		w := worker{url, name, r.noDebt, part * rate, begin.UnixMicro(), begin.Add(length).UnixMicro()}
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), workerSetting+"="+string(must(json.Marshal(w))))
		c.Stderr = os.Stderr
		out := must(c.StdoutPipe())
		check(c.Start())
		if i == 0 && r.signal != 0 {
			time.AfterFunc(time.Until(begin.Add(length/2)), func() {
				check(c.Process.Signal(r.signal))
				if r.signal == syscall.SIGSTOP {
					time.Sleep(time.Second)
					check(c.Process.Signal(syscall.SIGCONT))
				}
			})
		}
		group.Go(func() {
			in := bufio.NewReader(out)
			var g limittest.Grant
			for binary.Read(in, binary.LittleEndian, &g) == nil {
				mu.Lock()
				if g.Asked == noGrant {
					trips = max(trips, g.Answered)
				} else {
					all = append(all, g)
					got[i]++
				}
				mu.Unlock()
			}
			_ = c.Wait()
		})
	}
	group.Wait()
	last := begin.Add(length).UnixMicro()
	for _, g := range all { // calls that waited for a lock may be answered after the end
		last = max(last, g.Answered)
	}
	t := float64(last-begin.UnixMicro()) / 1e6
	limit := burst + rate*t - rate*lease.Seconds()
	share := 1.0
	for i, part := range r.load {
		if r.signal == 0 && (part < .25 || r.load[1] >= .25) {
			share = min(share, float64(got[i])/(limit*min(part, .25)))
		}
	}
	least := "–"
	if r.signal == 0 {
		least = fmt.Sprintf("%.2f", share)
	}
	return []string{fmt.Sprintf("%.2f %%", 100*float64(len(all))/limit), fmt.Sprintf("%.0f", limittest.MostGranted(all, rate/1e6)), least, fmt.Sprintf("%.1f", float64(trips)/(t/lease.Seconds()))}
}
