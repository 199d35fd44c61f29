// Command redis compares dipwell's decisions in Redis with
// go-redis/redis_rate's and with dipwell's decisions in PostgreSQL: one client
// program, one machine, in turns.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
)

// The limit refuses no call, so that charges are measured. At much higher rates
// redis_rate's arithmetic rounds to zero, and redis_rate writes no key.
const (
	perSecond = 1_000_000
	burst     = 10_000_000
	numKeys   = 10_000
)

const (
	commonLimit  = "api"
	windowLimit  = "window"
	drainedLimit = "drained"
	plansLimit   = "plans"
	hotKey       = "hot"
)

const (
	rivalName     = "redis_rate"
	singleName    = "dipwell on Redis"
	coalescedName = "dipwell on Redis, coalesced"
	postgresName  = "dipwell on PostgreSQL, coalesced"

	takeName      = "Take"
	twoName       = "TakeAll of 2"
	windowName    = "Take of a window"
	mixedName     = "Take of 1 to 5 tokens"
	tenantsName   = "TakeAll of a user and one of ten tenants"
	rareName      = "Take, 5 % on one hot key"
	holdName      = "Hold and settle"
	slotName      = "Hold and settle of a concurrency limit"
	alone         = ", alone" // follows the name of a verb that is not coalesced
	rareMixedName = "Take, 5 % of 1 to 5 tokens on one hot key"
)

type scenario struct {
	title   string
	clients int
	keys    int
	draw    load.Draw // how keys are drawn; nil: uniformly
	refuse  bool      // nine calls of ten are refused
	names   []string  // names of the contenders; the others are compared with the first
	targets []target
}

// A target is the ratio that one contender must reach to another.
type target struct {
	ours, theirs string
	ratio        float64
}

func scenarios() (all []scenario) {
	everyContender := []string{rivalName, singleName, coalescedName, postgresName}
	for _, n := range []int{1, 64, 256} {
		s := scenario{
			title: "10,000 keys, " + report.Goroutines(n), clients: n, keys: numKeys,
			names:   everyContender,
			targets: []target{{singleName, rivalName, 1}},
		}
		if n == 1 {
			s.names = s.names[:3]
		}
		if n == 256 {
			s.targets = append(s.targets, target{coalescedName, rivalName, 3}, target{postgresName, rivalName, 1})
		}
		all = append(all, s)
	}
	var names []string
	var targets []target
	for _, v := range verbs {
		if v.alone {
			continue
		}
		names = append(names, v.name)
		if v.least > 0 {
			targets = append(targets, target{v.name, takeName, v.least})
		}
	}
	return append(all,
		scenario{title: "One hot key, 256 goroutines", clients: 256, keys: 1, names: everyContender, targets: []target{{coalescedName, rivalName, 10}}},
		scenario{title: "Keys seen for the first time, 256 goroutines", clients: 256, draw: load.Fresh, names: everyContender},
		scenario{title: "90 % refusals, 256 goroutines", clients: 256, draw: load.Refused(0.9, numKeys), refuse: true, names: everyContender},
		scenario{title: "Zipf(1.1) over 1,000,000 keys, 256 goroutines", clients: 256, draw: load.Zipf(1.1, 1_000_000), names: everyContender},
		scenario{title: "Each verb coalesced, 10,000 keys, 256 goroutines", clients: 256, keys: numKeys, names: append(names, tenantsName), targets: targets},
		scenario{title: "Holds alone, 10,000 keys, 64 goroutines", clients: 64, keys: numKeys, names: []string{takeName + alone, holdName + alone, slotName + alone}},
		scenario{title: "Mixed costs of one hot key, coalesced, 256 goroutines", clients: 256, keys: 1, names: []string{takeName, mixedName}, targets: []target{{mixedName, takeName, 0.4}}},
		scenario{title: "Mixed costs beside others, coalesced, 10,000 keys, 256 goroutines", clients: 256, keys: numKeys, names: []string{rareName, rareMixedName}, targets: []target{{rareMixedName, rareName, 0.85}}},
	)
}

func main() {
	rounds := flag.Int("rounds", 7, "rounds for each contender")
	length := flag.Duration("length", 2*time.Second, "length of a round")
	only := flag.String("only", "", "only scenarios whose title holds this")
	out := flag.String("o", "", "write the tables to this file as well")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *rounds, *length, *only, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds int, length time.Duration, only, out string) error {
	load.NameKeys(numKeys)
	b, err := open(ctx)
	defer b.close()
	if err != nil {
		return err
	}
	var text strings.Builder
	if err = b.prepare(ctx); err != nil {
		return err
	}
	b.addCalls()
	reached, asked := 0, 0
	for _, s := range scenarios() {
		if !strings.Contains(s.title, only) {
			continue
		}
		r, n, err := b.measure(ctx, &text, s, rounds, length)
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		reached, asked = reached+r, asked+n
	}
	if title := "Each verb alone"; strings.Contains(title, only) {
		r, n, err := b.singleVerbs(ctx, &text, rounds, length)
		if err != nil {
			return err
		}
		reached, asked = reached+r, asked+n
	}
	var w io.Writer = os.Stdout
	if out != "" {
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	report.Header(w, "Redis: decisions a second, beside redis_rate", "go run ./redis "+strings.Join(os.Args[1:], " "))
	fmt.Fprintf(w, "%s, redis_rate %s, both over go-redis %s with its default pool; PostgreSQL %s with unlogged tables. "+
		"Clients and servers share the cores. %d rounds of %v for each contender; each call is admitted unless it says otherwise. Processor time is a decision's. "+
		"Coalesced is over four lanes; `dipwell serve` has two to four, as many as there are processors.\n\n**%d of %d targets reached.**\n\n",
		b.redisVersion, b.module("redis_rate"), b.module("redis/go-redis"), b.pgVersion, rounds, length, reached, asked)
	_, err = io.WriteString(w, text.String())
	return err
}

// figures are the results of a contender's rounds.
type figures struct{ rate, p50, p99, server, client []float64 }

func (f *figures) add(r *load.Result) {
	f.rate = append(f.rate, r.PerSecond)
	f.p50, f.p99 = append(f.p50, r.Times.Percentile(50)), append(f.p99, r.Times.Percentile(99))
	n := float64(r.Times.Count) * 1000
	f.server, f.client = append(f.server, float64(r.Server)/n), append(f.client, float64(r.Client)/n)
}

// measure runs one scenario, each contender once a round, and writes its table.
func (b *bench) measure(ctx context.Context, w io.Writer, s scenario, rounds int, length time.Duration) (reached, asked int, err error) {
	all := map[string]*figures{}
	if s.refuse {
		if err = b.drain(ctx, s.names); err != nil {
			return 0, 0, err
		}
	}
	for i := range rounds {
		for j := range s.names { // each round starts with another contender
			name := s.names[(i+j)%len(s.names)]
			r, err := b.round(ctx, s, name, length)
			if err != nil {
				return 0, 0, fmt.Errorf("%s: %w", name, err)
			}
			if all[name] == nil {
				all[name] = new(figures)
			}
			all[name].add(&r)
		}
	}
	base := report.Median(all[s.names[0]].rate)
	var rows [][]string
	for _, name := range s.names {
		f := all[name]
		rows = append(rows, []string{name, strconv.Itoa(int(report.Median(f.rate))), report.Figure(report.Median(f.rate) / base),
			fmt.Sprintf("%.0f", report.Median(f.p50)), fmt.Sprintf("%.0f", report.Median(f.p99)),
			fmt.Sprintf("%.1f", report.Median(f.server)), fmt.Sprintf("%.1f", report.Median(f.client))})
	}
	fmt.Fprintf(w, "## %s\n\n", s.title)
	report.Table(w, []string{"", "decisions/s", "× " + s.names[0], "p50, µs", "p99, µs", "server, µs", "client, µs"}, rows)
	rows = nil
	for _, t := range s.targets {
		got := report.Median(all[t.ours].rate) / report.Median(all[t.theirs].rate)
		if got >= t.ratio {
			reached++
		}
		rows = append(rows, []string{t.ours + " ÷ " + t.theirs, report.Figure(got), fmt.Sprintf("%.2f", t.ratio), report.Verdict(got >= t.ratio)})
	}
	if rows != nil {
		report.Table(w, []string{"ratio of medians", "measured", "target", "reached"}, rows)
	}
	return reached, len(s.targets), nil
}

// drain takes the only token of each key with the prefix Gone.
func (b *bench) drain(ctx context.Context, names []string) error {
	for _, name := range names {
		for i := range numKeys {
			if _, err := b.contenders[name](ctx, load.Gone+load.Key(i)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// round measures one contender once, and checks that it refused the intended
// share of calls.
func (b *bench) round(ctx context.Context, s scenario, name string, length time.Duration) (load.Result, error) {
	l := load.Load{Clients: s.clients, Keys: s.keys, Draw: s.draw, Length: length, Server: b.serverTime}
	r, err := l.Run(ctx, func(context.Context) (load.Session, error) { return load.Session{Take: b.contenders[name]}, nil })
	share, want := float64(r.Refused)/float64(r.Times.Count), 0.0
	if s.refuse {
		want = 0.9
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && (math.Abs(share-want) > 0.05 || want == 0 && r.Refused > 0) {
		err = fmt.Errorf("%.3f of the calls were refused", share)
	}
	return r, err
}

// module returns the version of a module that this program was built with.
func (b *bench) module(part string) string {
	i := slices.IndexFunc(b.modules, func(m string) bool { return strings.Contains(m, part) })
	if i < 0 {
		return "of an unknown version"
	}
	_, version, _ := strings.Cut(b.modules[i], "@")
	return version
}
