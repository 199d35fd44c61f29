package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/jackc/pgx/v5"
)

// otherLimits are what groups of several take from beside the common limit.
var otherLimits = []dipwell.Limit{
	{Name: "tenant", Rate: perSecond, Period: time.Second, Burst: burst},
	{Name: "global", Rate: perSecond, Period: time.Second, Burst: burst},
}

// A verb is one kind of call of the library or of an SQL function.
type verb struct {
	name   string
	call   func(ctx context.Context, l *dipwell.Limiter, c *pgx.Conn, key string) (bool, error)
	over   string  // the verb that it is compared with
	target float64 // times its processor time, at most; 0: none
}

func one(do func(*dipwell.Limiter, context.Context, string, string, int64) (dipwell.Decision, error)) func(context.Context, *dipwell.Limiter, *pgx.Conn, string) (bool, error) {
	return func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := do(l, ctx, apiLimit, key, 1)
		return d.Allowed, err
	}
}

func takeAll(limits ...string) func(context.Context, *dipwell.Limiter, *pgx.Conn, string) (bool, error) {
	return func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		takes := make([]dipwell.Take, len(limits))
		for i, name := range limits {
			takes[i] = dipwell.Take{Limit: name, Key: key, Cost: 1}
		}
		d, err := l.TakeAll(ctx, takes...)
		return d.Allowed, err
	}
}

func inSQL(sql string) func(context.Context, *dipwell.Limiter, *pgx.Conn, string) (bool, error) {
	return func(ctx context.Context, _ *dipwell.Limiter, c *pgx.Conn, key string) (allowed bool, err error) {
		err = c.QueryRow(ctx, sql, key).Scan(&allowed)
		return allowed, err
	}
}

const sqlTake = "dipwell.take"

var verbs = []verb{
	{name: "Take", call: one((*dipwell.Limiter).Take)},
	{"TakeAll of 2", takeAll(apiLimit, "tenant"), "Take", 2.2},
	{"TakeAll of 3", takeAll(apiLimit, "tenant", "global"), "Take", 2.6},
	{"TakeUpTo", one((*dipwell.Limiter).TakeUpTo), "Take", 1.5},
	{"Reserve", one((*dipwell.Limiter).Reserve), "Take", 1.5},
	{"Charge", one((*dipwell.Limiter).Charge), "Take", 1.5},
	{"Refund", one((*dipwell.Limiter).Refund), "Take", 0},
	{"Check", one((*dipwell.Limiter).Check), "Take", 1.5},
	{name: sqlTake, call: inSQL("select (dipwell.take('" + apiLimit + "', $1)).allowed")},
	{"dipwell.take_all of 2", inSQL("select bool_and(allowed) from dipwell.take_all(array['" + apiLimit + "', 'tenant'], array[$1, $1])"), sqlTake, 2.5},
}

// digAll is dig with the other limits too.
func (b *bench) digAll(ctx context.Context) (*well, error) {
	w, err := b.dig(ctx, loggedDB, pgstore.Logged)
	if err != nil {
		return nil, err
	}
	for _, l := range otherLimits {
		if _, err = w.limiter.Define(ctx, l, dipwell.OwnerCode); err == nil {
			err = w.fill(ctx, l.Name, b.keys)
		}
		if err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

// coalescedVerbs: each verb from many goroutines through coalesce, logged.
func (b *bench) coalescedVerbs(ctx context.Context) error {
	w, err := b.digAll(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	fmt.Fprint(&b.out, "## Each verb coalesced, logged\n\n")
	over := func(v verb, name string) contender {
		return contender{name: cmp.Or(name, v.name), ours: true, open: func(context.Context) (load.Session, error) {
			return load.Session{Close: func() {}, Take: func(ctx context.Context, key string) (bool, error) { return v.call(ctx, w.shared, nil, key) }}, nil
		}}
	}
	var cs []contender
	var targets []struct {
		name string
		min  float64
	}
	for _, v := range verbs {
		if v.name == sqlTake {
			break
		}
		cs = append(cs, over(v, ""))
		if least := map[string]float64{"TakeAll of 2": 0.3, "TakeUpTo": 0.6, "Reserve": 0.6, "Charge": 0.6, "Check": 0.6}[v.name]; least > 0 {
			targets = append(targets, struct {
				name string
				min  float64
			}{v.name, least})
		}
	}
	fs, err := b.rounds(ctx, "coalesced verbs", load.Load{Clients: 256, Keys: b.keys}, fromGo, cs...)
	if err != nil {
		return err
	}
	b.compare("256 goroutines, 10,000 keys", fs, names(cs), []string{"Take"})
	for _, t := range targets {
		r := fs[t.name].rate() / fs["Take"].rate()
		fmt.Fprintf(&b.out, "- %s: %.2f × Take; target ≥ %g: %s\n", t.name, r, t.min, b.reached(r >= t.min))
	}
	fmt.Fprintln(&b.out)
	same, mixed := over(verbs[0], "cost 1"), over(verb{call: mixedCosts()}, "costs 1 to 5")
	hot := []contender{mixed, same}
	if fs, err = b.rounds(ctx, "coalesced, costs of one key", load.Load{Clients: 256, Keys: 1}, fromGo, hot...); err != nil {
		return err
	}
	b.compare("256 goroutines, one hot key", fs, names(hot), []string{mixed.name}, target{same.name, 0.4})
	return nil
}

// mixedCosts takes from 1 to 5 tokens.
func mixedCosts() func(context.Context, *dipwell.Limiter, *pgx.Conn, string) (bool, error) {
	var n atomic.Int64
	return func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := l.Take(ctx, apiLimit, key, 1+n.Add(1)%5)
		return d.Allowed, err
	}
}

// verbs: the processor time of each kind of call, one connection, logged.
func (b *bench) verbs(ctx context.Context) error {
	w, err := b.digAll(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	server, client := make([][]float64, len(verbs)), make([][]float64, len(verbs))
	for round := range b.numRounds {
		for i := range verbs {
			at := (i + round) % len(verbs)
			progress("verbs: round %d of %d, %s", round+1, b.numRounds, verbs[at].name)
			s, c, err := w.timeVerb(ctx, &verbs[at], b.keys, b.length)
			if err != nil {
				return fmt.Errorf("%s: %w", verbs[at].name, err)
			}
			server[at], client[at] = append(server[at], s), append(client[at], c)
		}
	}
	progress("")
	fmt.Fprintf(&b.out, "## Processor time of each verb, logged, %d keys, one connection\n\n", b.keys)
	total := map[string]float64{}
	var rows [][]string
	for i, v := range verbs {
		s, c := report.Median(server[i]), report.Median(client[i])
		total[v.name] = s + c
		row := []string{v.name, fmt.Sprintf("%.0f", s), fmt.Sprintf("%.0f", c), "", "", ""}
		if v.over != "" {
			r := (s + c) / total[v.over]
			row[3] = fmt.Sprintf("%.2f × %s", r, v.over)
			if v.target > 0 {
				row[4], row[5] = fmt.Sprintf("≤ %g", v.target), b.reached(r <= v.target)
			}
		}
		rows = append(rows, row)
	}
	report.Table(&b.out, []string{"", "server µs a call", "client µs a call", "both", "target", "reached"}, rows)
	return nil
}

// timeVerb makes calls for a while on a connection of its own, and returns the
// processor time of a call in µs: that of the server's process for the
// connection, and that of this process.
func (w *well) timeVerb(ctx context.Context, v *verb, keys int, length time.Duration) (server, client float64, err error) {
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return 0, 0, err
	}
	defer hangUp(conn)
	var pid int
	if err := conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
		return 0, 0, err
	}
	l := w.limiter.With(w.store.With(conn))
	random := rand.New(rand.NewPCG(1, 2))
	calls := 0
	var s0, c0 time.Duration
	var end time.Time
	for ; calls <= 20 || time.Now().Before(end); calls++ {
		if calls == 20 { // from the sixth execution on, a statement's plan is kept
			if s0, err = processorTime(pid); err != nil {
				return 0, 0, err
			}
			c0, end = ownTime(), time.Now().Add(length)
		}
		if allowed, err := v.call(ctx, l, conn, load.Key(random.IntN(keys))); err != nil || !allowed {
			return 0, 0, fmt.Errorf("allowed: %v, %w", allowed, err)
		}
	}
	s1, err := processorTime(pid)
	n := float64(calls - 20)
	return float64((s1 - s0).Microseconds()) / n, float64((ownTime() - c0).Microseconds()) / n, err
}

// processorTime is what a process has used, from the kernel, in hundredths of a second.
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	user, err := strconv.ParseInt(string(f[11]), 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(string(f[12]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

func ownTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
