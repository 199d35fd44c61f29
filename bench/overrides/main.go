// Command overrides measures, in each store, what the overrides of a million other keys
// cost: it compares takes of keys without an override with takes from the same limit
// without overrides.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/store"
)

var ctx = context.Background()

const (
	limitName = "api"
	numKeys   = 1000 // number of keys that have rows
	least     = 0.95 // target: share of the speed without overrides
)

// The limit refuses no call, and no used bucket is full again during a run: a token takes an
// hour to come back, or half an hour.
var limit = dipwell.Limit{Name: limitName, Rate: 1, Period: time.Hour, Burst: 1_000_000,
	Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 2, Burst: 2_000_000})}

// A kind is a kind of overrides, set for the keys kind:0 to kind:n-1.
type kind struct {
	name string
	n    int
	as   func(i int) dipwell.Override
}

// kinds returns overrides for n keys: half of them are permanent, by numbers or by a plan, and
// half are temporary.
func kinds(n int) []kind {
	in := time.Now().Add(6 * time.Hour).UnixMicro()
	return []kind{
		{"numbers", n / 4, func(int) dipwell.Override { return dipwell.Override{Rate: 2, Burst: 1_200_000} }},
		{"plan", n / 4, func(int) dipwell.Override { return dipwell.Override{Plan: "pro"} }},
		{"raised", n / 2, func(i int) dipwell.Override {
			return dipwell.Override{Rate: 2, Burst: 1_200_000, Until: in + int64(i)}
		}},
	}
}

// A side is a store that has the limit.
type side struct {
	take func(key string) (bool, error)
	used func() time.Duration // processor time of the program and the server so far
}

// A contender is one way to call two stores: one without overrides, one with them.
type contender struct {
	name         string
	passes, news int // in a round: passes over the keys that have rows, and calls of new keys
	sides        [2]side
}

func main() {
	out := flag.String("o", "", "write the table to this file as well")
	only := flag.String("store", "postgres,redis,memory,file", "stores to measure")
	rounds := flag.Int("rounds", 31, "rounds for each contender")
	n := flag.Int("n", 1_000_000, "overrides")
	flag.Parse()
	var rows [][]string
	for _, s := range []struct {
		name string
		open func(ks []kind) (cs []contender, closed func())
	}{{"postgres", openPostgres}, {"redis", openRedis}, {"memory", openMemory}, {"file", openFile}} {
		if !slices.Contains(strings.Split(*only, ","), s.name) {
			continue
		}
		cs, closed := s.open(kinds(*n))
		for _, c := range cs {
			rows = append(rows, measure(c, *rounds)...)
		}
		closed()
	}
	var w io.Writer = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	report.Header(w, "Overrides of a million other keys", "make bench-overrides")
	fmt.Fprintf(w, "Keys without an override take from a limit of which %d other keys have one, and from the same limit in a store without overrides; both take turns, %d rounds each. "+
		"A quarter of the overrides stand by numbers of their own, a quarter by a plan, and half are temporary and end in six hours. "+
		"In PostgreSQL (two databases of a server with its default settings but without autovacuum, logged tables, never analyzed) and in Redis (two servers) the first of each kind was set by SetOverride and the others are copies of its rows; in memory and in a file each was set by SetOverride. "+
		"One client calls. Times are of a call: elapsed, and processor time of the program and the server, with Redis of the server alone. Ratios are without ÷ with, of the medians; the target is one of processor time, because other programs use the same cores.\n\n", *n, *rounds)
	report.Table(w, []string{"", "keys", "elapsed µs, none", "with", "ratio", "processor µs, none", "with", "ratio", "target", "reached"}, rows)
}

// measure returns a table row for keys that have rows and one for new keys.
func measure(c contender, rounds int) [][]string {
	known := make([]string, numKeys)
	for i := range known {
		known[i] = "user:" + strconv.Itoa(i)
	}
	for i := range c.sides {
		_, _ = c.sides[i].turn(known, 1) // makes the rows of the known keys
	}
	next := 0
	fresh := func() []string {
		keys := make([]string, c.news)
		for i := range keys {
			keys[i], next = "new "+c.name+":"+strconv.Itoa(next), next+1
		}
		return keys
	}
	var rows [][]string
	for _, k := range []struct {
		name   string
		keys   func() []string
		passes int
	}{{"with rows", func() []string { return known }, c.passes}, {"new", fresh, 1}} {
		var elapsed, used [2][]float64
		for r := range rounds {
			keys := k.keys()
			for i := range c.sides {
				i ^= r % 2
				e, u := c.sides[i].turn(keys, k.passes)
				elapsed[i], used[i] = append(elapsed[i], e), append(used[i], u)
			}
			fmt.Fprintf(os.Stderr, "\r%s, %s: %d ", c.name, k.name, r+1)
		}
		row := []string{c.name, k.name}
		for _, of := range [][2][]float64{elapsed, used} {
			none, with := report.Median(of[0]), report.Median(of[1])
			row = append(row, micros(none), micros(with), report.Figure(none/with))
		}
		ratio := report.Median(used[0]) / report.Median(used[1])
		rows = append(rows, append(row, fmt.Sprintf("≥ %g", least), report.Verdict(ratio >= least)))
		fmt.Fprintf(os.Stderr, "\r%s\n", strings.Join(rows[len(rows)-1], " | "))
	}
	return rows
}

// turn takes from each key, several times over, and returns the µs of a call: elapsed, and
// of processor time.
func (s *side) turn(keys []string, passes int) (elapsed, used float64) {
	before, start := s.used(), time.Now()
	for range passes {
		for _, key := range keys {
			if allowed, err := s.take(key); err != nil || !allowed {
				panic(fmt.Sprintf("%s: allowed: %v, error: %v", key, allowed, err))
			}
		}
	}
	n := float64(passes*len(keys)) * 1000
	return float64(time.Since(start)) / n, float64(s.used()-before) / n
}

// micros formats µs with three digits.
func micros(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// taker returns a function that takes by a limiter.
func taker(l *dipwell.Limiter) func(string) (bool, error) {
	return func(key string) (bool, error) {
		d, err := l.Take(ctx, limitName, key, 1)
		return d.Allowed, err
	}
}

// set sets the overrides of a kind for its first n keys.
func set(l *dipwell.Limiter, k kind, n int) {
	for i := range n {
		o := k.as(i)
		o.Key = k.name + ":" + strconv.Itoa(i)
		must(l.SetOverride(ctx, limitName, o))
	}
}

// verify panics unless the last key of each kind is under its override.
func verify(l *dipwell.Limiter, ks []kind) {
	for _, k := range ks {
		if k.n == 0 {
			continue
		}
		d := must(l.Take(ctx, limitName, k.name+":"+strconv.Itoa(k.n-1), 1))
		if d.Definition.Override == nil {
			panic("the last key of " + k.name + " has no override")
		}
	}
}

func own() time.Duration { return cpu.Own() }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
