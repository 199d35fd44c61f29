// Command rls compares dipwell's RateLimitService for Envoy with a no-op gRPC
// handler of the same types and with envoyproxy/ratelimit on Redis. Each server
// is a process of its own; one client program measures them in turns.
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
	fmt.Fprintf(w, "%d keys, one descriptor a request, fixed windows that admit everything, or one request a day where nine of ten are refused. %d rounds of %v each; client, servers and stores share the cores; all servers have %s. "+
		"PostgreSQL has its default settings; Redis keeps nothing on the disk, nor does PostgreSQL where it says unlogged. µs are processor time a decision; RSS is the server's resident memory after the rounds.\n\n", keys, b.rounds, b.length, gogc)
	for _, l := range loads {
		b.measure(l)
		b.table(w, l)
	}
	b.verdicts(w)
}

// A load is a number of concurrent callers, and how many of ten calls are
// refused.
type load struct{ streams, refused int }

var loads = []load{{64, 0}, {256, 0}, {64, 9}}

func (l load) String() string {
	if l.refused > 0 {
		return fmt.Sprintf("%d streams, %d of 10 calls refused", l.streams, l.refused)
	}
	return fmt.Sprintf("%d streams", l.streams)
}

// bench has the contenders of a run.
type bench struct {
	rounds  int
	length  time.Duration
	conns   int
	all     []*contender
	closers []func()
	results map[load]map[string]figures // by name
}

type figures struct{ perSecond, server, store, client, p99, rss float64 }

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

// measure measures all contenders in turns, after a first pass over all keys.
func (b *bench) measure(l load) {
	for _, c := range b.all {
		c.fill(l.refused)
		c.measured = measured{}
	}
	for range b.rounds {
		for _, c := range b.all {
			c.round(l.streams, l.refused, b.length)
		}
	}
	if b.results == nil {
		b.results = map[load]map[string]figures{}
	}
	b.results[l] = map[string]figures{}
	for _, c := range b.all {
		m := report.Median
		b.results[l][c.name] = figures{m(c.perSecond), m(c.server), m(c.storeTime), m(c.client), m(c.p99), c.rssMiB()}
	}
}

func (b *bench) table(w io.Writer, l load) {
	base := b.results[l][nameNoop].perSecond
	upstream := max(b.results[l][nameUpstream].perSecond, b.results[l][namePipelined].perSecond)
	var rows [][]string
	for _, c := range b.all {
		f := b.results[l][c.name]
		row := []string{c.name, fmt.Sprintf("%.0f", f.perSecond), report.Figure(f.perSecond / base), ""}
		if upstream > 0 {
			row[3] = report.Figure(f.perSecond / upstream)
		}
		for _, v := range []float64{f.server, f.store, f.client, f.p99, f.rss} {
			row = append(row, fmt.Sprintf("%.0f", v))
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(w, "## %v, %d connections\n\n", l, b.conns)
	report.Table(w, []string{"", "decisions/s", "× no-op", "× envoyproxy/ratelimit", "server µs", "store µs", "client µs", "p99 µs", "RSS MiB"}, rows)
}

// verdicts compares the results with the targets, for the contenders that ran.
func (b *bench) verdicts(w io.Writer) {
	var rows [][]string
	row := func(what string, got, limit float64, below bool) {
		ok, sign := got >= limit, "≥"
		if below {
			ok, sign = got <= limit, "≤"
		}
		rows = append(rows, []string{what, fmt.Sprintf("%.2f", got), fmt.Sprintf("%s %.2f", sign, limit), report.Verdict(ok)})
	}
	for _, l := range loads {
		if l.refused > 0 {
			continue
		}
		r := b.results[l]
		rival := r[nameUpstream]
		if p := r[namePipelined]; p.perSecond > rival.perSecond {
			rival = p
		}
		at := fmt.Sprintf(" at %d streams", l.streams)
		if f, ok := r[nameMemory]; ok {
			row("memory: × no-op"+at, f.perSecond/r[nameNoop].perSecond, 0.8, false)
		}
		if f, ok := r[nameRedis]; ok && rival.perSecond > 0 {
			row("Redis: × envoyproxy/ratelimit, the better of the two,"+at, f.perSecond/rival.perSecond, 1.5, false)
			row("Redis: server CPU × envoyproxy/ratelimit's"+at, f.server/cmp.Or(rival.server, 1), 0.65, true)
		}
		if f, ok := r[namePostgres]; ok && rival.perSecond > 0 {
			row("PostgreSQL, unlogged: × envoyproxy/ratelimit on Redis"+at, f.perSecond/rival.perSecond, 1.2, false)
		}
	}
	for _, c := range b.all {
		if strings.HasPrefix(c.name, "dipwell") {
			row("RSS MiB: "+c.name, b.results[loads[1]][c.name].rss, 40, true) // the target is for 10,000 keys
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
