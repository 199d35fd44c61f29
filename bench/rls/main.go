// Command rls measures Envoy's RateLimitService: dipwell's against a no-op gRPC
// handler of the same types and against envoyproxy/ratelimit on Redis. Servers
// are processes of their own, one client program calls all, taking turns.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dipwell/dipwell/bench/internal/report"
)

const keys = 10_000

func main() {
	if len(os.Args) > 2 && os.Args[1] == "noop" {
		noop(os.Args[2])
		return
	}
	rounds := flag.Int("rounds", 7, "rounds")
	length := flag.Duration("length", 2*time.Second, "length of a round")
	conns := flag.Int("conns", 4, "connections of the client")
	only := flag.String("only", "", "only the contenders whose names contain one of these, separated by commas (the no-op always runs)")
	out := flag.String("o", "", "write the tables to this file as well")
	flag.Parse()
	var w io.Writer = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	b := &bench{rounds: *rounds, length: *length, conns: *conns}
	defer b.close()
	b.start(*only)
	report.Header(w, "Envoy's RateLimitService", "make bench-rls")
	for _, streams := range []int{64, 256} {
		b.measure(streams)
		b.table(w, streams)
	}
	b.verdicts(w)
	fmt.Fprintf(w, "%d keys, one descriptor a request, fixed windows that admit everything. %d rounds of %v each; client, servers and stores share the cores. "+
		"CPU is that of the rate limit server's process alone, without its store; RSS is its resident memory after the rounds.\n", keys, b.rounds, b.length)
}

// bench is the contenders of a run.
type bench struct {
	rounds  int
	length  time.Duration
	conns   int
	all     []*contender
	closers []func()
	results map[int]map[string]figures // by streams and name
}

type figures struct{ perSecond, cpu, p99 float64 }

func (b *bench) close() {
	for i := len(b.closers) - 1; i >= 0; i-- {
		b.closers[i]()
	}
}

func wanted(name, only string) bool {
	if only == "" || name == nameNoop {
		return true
	}
	for part := range strings.SplitSeq(only, ",") {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// measure lets the contenders take turns, after a first pass that touches every key.
func (b *bench) measure(streams int) {
	for _, c := range b.all {
		c.fill()
		c.reset()
	}
	for range b.rounds {
		for _, c := range b.all {
			before := c.cpuSeconds()
			n, p99 := c.load(streams, b.length)
			c.cpu = append(c.cpu, (c.cpuSeconds()-before)/float64(n)*1e6)
			c.perSecond = append(c.perSecond, float64(n)/b.length.Seconds())
			c.p99 = append(c.p99, p99)
		}
	}
	if b.results == nil {
		b.results = map[int]map[string]figures{}
	}
	b.results[streams] = map[string]figures{}
	for _, c := range b.all {
		b.results[streams][c.name] = figures{report.Median(c.perSecond), report.Median(c.cpu), report.Median(c.p99)}
	}
}

func (b *bench) table(w io.Writer, streams int) {
	base := b.results[streams][nameNoop].perSecond
	var rows [][]string
	for _, c := range b.all {
		f := b.results[streams][c.name]
		rows = append(rows, []string{c.name, fmt.Sprintf("%.0f", f.perSecond), fmt.Sprintf("%.2f", f.perSecond/base),
			fmt.Sprintf("%.0f", f.cpu), fmt.Sprintf("%.0f", f.p99), fmt.Sprintf("%.0f", c.rssMiB())})
	}
	report.Table(w, []string{fmt.Sprintf("%d streams, %d connections", streams, b.conns), "decisions/s", "× no-op", "server CPU µs a decision", "p99 µs", "RSS MiB"}, rows)
}

// verdicts compare with what was aimed at, as far as the contenders ran.
func (b *bench) verdicts(w io.Writer) {
	var rows [][]string
	row := func(what string, got, limit float64, below bool) {
		ok, sign := got >= limit, "≥"
		if below {
			ok, sign = got <= limit, "≤"
		}
		rows = append(rows, []string{what, fmt.Sprintf("%.2f", got), fmt.Sprintf("%s %.2f", sign, limit), report.Verdict(ok)})
	}
	for _, streams := range []int{64, 256} {
		r := b.results[streams]
		rival := r[nameUpstream]
		if p := r[namePipelined]; p.perSecond > rival.perSecond {
			rival = p
		}
		at := fmt.Sprintf(" at %d streams", streams)
		if f, ok := r[nameMemory]; ok {
			row("memory: × no-op"+at, f.perSecond/r[nameNoop].perSecond, 0.8, false)
		}
		if f, ok := r[nameRedis]; ok && rival.perSecond > 0 {
			row("Redis: × envoyproxy/ratelimit, the better of the two,"+at, f.perSecond/rival.perSecond, 1.5, false)
			row("Redis: server CPU × envoyproxy/ratelimit's"+at, f.cpu/cmp.Or(rival.cpu, 1), 0.65, true)
		}
		if f, ok := r[namePostgres]; ok && rival.perSecond > 0 {
			row("PostgreSQL: × envoyproxy/ratelimit on Redis"+at, f.perSecond/rival.perSecond, 1.2, false)
		}
	}
	for _, c := range b.all {
		if strings.HasPrefix(c.name, "dipwell") {
			row("RSS MiB: "+c.name, c.rssMiB(), 40, true)
		}
	}
	report.Table(w, []string{"aim", "reached", "target", ""}, rows)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
