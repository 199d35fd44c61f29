// Command redis measures dipwell's decisions in Redis against
// go-redis/redis_rate, and against dipwell's own in PostgreSQL: one client
// program, one machine, taking turns.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
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

// Nobody is refused: what is measured is a charge. At much higher rates
// redis_rate's sums round to nothing, and it writes no key.
const (
	perSecond = 1_000_000
	burst     = 10_000_000
	numKeys   = 10_000
)

const (
	rivalName     = "redis_rate"
	singleName    = "dipwell on Redis"
	coalescedName = "dipwell on Redis, coalesced"
	postgresName  = "dipwell on PostgreSQL, coalesced"
)

type scenario struct {
	title   string
	clients int
	keys    int
	names   []string
	targets []target
}

// A target is a ratio that one contender is to reach against another.
type target struct {
	ours, theirs string
	ratio        float64
}

func scenarios() (all []scenario) {
	for _, n := range []int{1, 64, 256} {
		s := scenario{
			title: fmt.Sprintf("10,000 keys, %d goroutines", n), clients: n, keys: numKeys,
			names:   []string{rivalName, singleName, coalescedName, postgresName},
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
	return append(all, scenario{
		title: "One hot key, 256 goroutines", clients: 256, keys: 1,
		names:   []string{rivalName, singleName, coalescedName, postgresName},
		targets: []target{{coalescedName, rivalName, 10}},
	})
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
	h, err := open(ctx)
	defer h.close()
	if err != nil {
		return err
	}
	var text strings.Builder
	reached, asked := 0, 0
	for _, s := range scenarios() {
		if !strings.Contains(s.title, only) {
			continue
		}
		r, n, err := h.measure(ctx, &text, s, rounds, length)
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
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
	report.Header(w, "Redis: decisions a second, beside redis_rate", "make bench-redis")
	fmt.Fprintf(w, "%s, redis_rate %s, both over go-redis %s with its default pool; PostgreSQL %s with unlogged tables. "+
		"Clients and servers share the cores. %d rounds of %v for each contender; each call is admitted. "+
		"Coalesced is over four lanes; `dipwell serve` has two to four, as many as there are processors.\n\n**%d of %d targets reached.**\n\n",
		h.redisVersion, h.module("redis_rate"), h.module("redis/go-redis"), h.pgVersion, rounds, length, reached, asked)
	_, err = io.WriteString(w, text.String())
	return err
}

// measure runs one scenario, each contender once a round, and writes its table.
func (h *house) measure(ctx context.Context, w io.Writer, s scenario, rounds int, length time.Duration) (reached, asked int, err error) {
	rate, p50, p99 := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for i := range rounds {
		for j := range s.names { // nobody is always the first
			name := s.names[(i+j)%len(s.names)]
			l := load.Load{Clients: s.clients, Keys: s.keys, Length: length}
			r, err := l.Run(ctx, func(context.Context) (load.Session, error) { return load.Session{Take: h.contenders[name]}, nil })
			switch {
			case err != nil:
				return 0, 0, fmt.Errorf("%s: %w", name, err)
			case ctx.Err() != nil:
				return 0, 0, ctx.Err()
			case r.Refused > 0:
				return 0, 0, fmt.Errorf("%s: %d calls were refused", name, r.Refused)
			}
			rate[name] = append(rate[name], r.PerSecond)
			p50[name] = append(p50[name], r.Times.Percentile(50))
			p99[name] = append(p99[name], r.Times.Percentile(99))
		}
	}
	base := report.Median(rate[rivalName])
	var rows [][]string
	for _, name := range s.names {
		rows = append(rows, []string{name, strconv.Itoa(int(report.Median(rate[name]))), fmt.Sprintf("%.2f", report.Median(rate[name])/base),
			fmt.Sprintf("%.0f", report.Median(p50[name])), fmt.Sprintf("%.0f", report.Median(p99[name]))})
	}
	fmt.Fprintf(w, "## %s\n\n", s.title)
	report.Table(w, []string{"", "decisions/s", "× redis_rate", "p50, µs", "p99, µs"}, rows)
	rows = nil
	for _, t := range s.targets {
		got := report.Median(rate[t.ours]) / report.Median(rate[t.theirs])
		if got >= t.ratio {
			reached++
		}
		rows = append(rows, []string{t.ours + " ÷ " + t.theirs, fmt.Sprintf("%.2f", got), fmt.Sprintf("%.2f", t.ratio), report.Verdict(got >= t.ratio)})
	}
	report.Table(w, []string{"ratio of medians", "measured", "target", "reached"}, rows)
	return reached, len(s.targets), nil
}

// module is the version of a library that this program was built with.
func (h *house) module(part string) string {
	i := slices.IndexFunc(h.modules, func(m string) bool { return strings.Contains(m, part) })
	if i < 0 {
		return "of an unknown version"
	}
	_, version, _ := strings.Cut(h.modules[i], "@")
	return version
}
