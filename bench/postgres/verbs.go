package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/store"
	"github.com/jackc/pgx/v5"
)

func init() { register("verbs", (*bench).verbs) }

// otherLimits are the limits besides apiLimit: those of groups, one that
// Reset uses, one with calendar windows, a leaky bucket in which hardly
// any call waits, and one for reservations.
var otherLimits = []dipwell.Limit{
	{Name: "tenant", Rate: perSecond, Period: time.Second, Burst: burst},
	{Name: "global", Rate: perSecond, Period: time.Second, Burst: burst},
	{Name: "resets", Rate: perSecond, Period: time.Second, Burst: burst},
	{Name: "day", Algorithm: dipwell.FixedWindow, Rate: burst, Period: 24 * time.Hour, Start: "00:00 Europe/Rome"},
	{Name: "leaky", Algorithm: dipwell.LeakyBucket, Rate: perSecond, Period: time.Second, MaxDebt: burst},
	{Name: "queue", Rate: 1, Period: time.Hour, Burst: 1, MaxDebt: 1_000_000},
}

// A verb is one kind of call of the library or of an SQL function.
type verb struct {
	name   string
	call   caller
	over   string  // name of the verb that it is compared with
	most   float64 // target: at most so many times that verb's processor time; 0: none
	shared float64 // target: at least so many times Take's rate if coalesced; 0: none
}

// A caller makes one call, through a limiter or on a connection.
type caller func(ctx context.Context, l *dipwell.Limiter, c *pgx.Conn, key string) (bool, error)

func one(do func(*dipwell.Limiter, context.Context, string, string, int64) (dipwell.Decision, error)) caller {
	return oneOf(apiLimit, do)
}

func oneOf(limit string, do func(*dipwell.Limiter, context.Context, string, string, int64) (dipwell.Decision, error)) caller {
	return func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := do(l, ctx, limit, key, 1)
		return d.Allowed, err
	}
}

func takeAll(limits ...string) caller {
	return func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		takes := make([]dipwell.Take, len(limits))
		for i, name := range limits {
			takes[i] = dipwell.Take{Limit: name, Key: key, Cost: 1}
		}
		d, err := l.TakeAll(ctx, takes...)
		return d.Allowed, err
	}
}

// cancelled makes two calls: a Reserve with a delay, and its Cancel.
func cancelled(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
	d, err := l.Reserve(ctx, "queue", key, 2)
	if err != nil {
		return false, err
	}
	return d.Allowed, l.Cancel(ctx, d.Reservation)
}

func reset(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
	_, err := l.Reset(ctx, "resets", key)
	return err == nil, err
}

// mixedCosts takes from 1 to 5 tokens from a key.
func mixedCosts() caller {
	var n atomic.Int64
	return func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := l.Take(ctx, apiLimit, key, 1+n.Add(1)%5)
		return d.Allowed, err
	}
}

func counters(tables int) caller {
	return func(ctx context.Context, _ *dipwell.Limiter, c *pgx.Conn, key string) (bool, error) {
		return byHand(ctx, c, key, tables)
	}
}

func inSQL(sql string) caller {
	return func(ctx context.Context, _ *dipwell.Limiter, c *pgx.Conn, key string) (allowed bool, err error) {
		err = c.QueryRow(ctx, sql, key).Scan(&allowed)
		return allowed, err
	}
}

const (
	verbTake = "Take"
	sqlTake  = "dipwell.take"
)

// verbs lists the measured verbs, the library's first.
var verbs = []verb{
	{name: verbTake, call: one((*dipwell.Limiter).Take)},
	{"TakeAll of 2", takeAll(apiLimit, "tenant"), verbTake, 2.2, 0.3},
	{"TakeAll of 3", takeAll(apiLimit, "tenant", "global"), verbTake, 2.6, 0},
	{"TakeUpTo", one((*dipwell.Limiter).TakeUpTo), verbTake, 1.5, 0.6},
	{"Reserve", one((*dipwell.Limiter).Reserve), verbTake, 1.5, 0.6},
	{"Charge", one((*dipwell.Limiter).Charge), verbTake, 1.5, 0.6},
	{"Refund", one((*dipwell.Limiter).Refund), verbTake, 0, 0.6},
	{"Check", one((*dipwell.Limiter).Check), verbTake, 1.5, 0.6},
	{"Take of 1 to 5", mixedCosts(), verbTake, 0, 0},
	{"Take of a day's window", oneOf("day", (*dipwell.Limiter).Take), verbTake, 0, 0},
	{"Take of a leaky bucket", oneOf("leaky", (*dipwell.Limiter).Take), verbTake, 0, 0},
	{"Reset", reset, verbTake, 0, 0},
	{"Reserve that waits, and Cancel", cancelled, verbTake, 0, 0},
}

var otherVerbs = append([]verb{
	{twoByHand, counters(2), verbTake, 0, 0},
	{threeByHand, counters(3), verbTake, 0, 0},
}, sqlVerbs...)

var sqlVerbs = []verb{
	{name: sqlTake, call: inSQL("select (dipwell.take('" + apiLimit + "', $1)).allowed")},
	{"dipwell.take_all of 2", inSQL("select bool_and(allowed) from dipwell.take_all(array['" + apiLimit + "', 'tenant'], array[$1, $1])"), sqlTake, 2.5, 0},
}

// newSchemaAll is newSchema with otherLimits too, and with the counters of
// byHand.
func (b *bench) newSchemaAll(ctx context.Context, tables string) (*schema, error) {
	w, err := b.newSchemaVerbs(ctx, verbsDB, tables, b.keys)
	if err != nil {
		return nil, err
	}
	err = withConn(ctx, w.dsn, func(c *conn) error {
		_, err := c.Exec(ctx, designSchema("groups", tables)).ReadAll()
		return err
	})
	if err != nil {
		w.close()
	}
	return w, err
}

// newSchemaVerbs is newSchemaRows with otherLimits too.
func (b *bench) newSchemaVerbs(ctx context.Context, database string, tables string, rows int) (*schema, error) {
	w, err := b.newSchemaRows(ctx, database, tables, rows)
	if err != nil {
		return nil, err
	}
	for _, l := range otherLimits {
		if _, err = w.limiter.Define(ctx, l, store.OwnerCode); err == nil && l.Name != "queue" {
			err = w.fill(ctx, l.Name, rows)
		}
		if err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

// verbs measures the processor time of each kind of call on one connection.
func (b *bench) verbs(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Processor time of each verb, %d keys, one connection\n\n", b.keys)
	for _, tables := range []string{"logged", "unlogged"} {
		w, err := b.newSchemaAll(ctx, tables)
		if err != nil {
			return err
		}
		err = b.verbsOf(ctx, w, tables)
		w.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// spent has the processor time of one verb's calls in µs, a figure for each round.
type spent struct{ server, client []float64 }

func (s *spent) total() float64 { return report.Median(s.server) + report.Median(s.client) }

func (b *bench) verbsOf(ctx context.Context, w *schema, durability string) error {
	all := slices.Concat(verbs, otherVerbs)
	times, err := b.timeVerbs(ctx, w, "verbs, "+durability, all)
	if err == nil {
		b.verbTable(all, times, durability)
	}
	return err
}

// timeVerbs measures several verbs in turns.
func (b *bench) timeVerbs(ctx context.Context, w *schema, title string, all []verb) (map[string]*spent, error) {
	times := map[string]*spent{}
	for round := range b.numRounds {
		for i := range all {
			v := &all[(i+round)%len(all)]
			progress("%s: round %d of %d, %s", title, round+1, b.numRounds, v.name)
			server, client, err := w.timeVerb(ctx, v, b.keys, b.length)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			if times[v.name] == nil {
				times[v.name] = new(spent)
			}
			times[v.name].server = append(times[v.name].server, server)
			times[v.name].client = append(times[v.name].client, client)
		}
	}
	progress("")
	return times, nil
}

func (b *bench) verbTable(all []verb, times map[string]*spent, durability string) {
	fmt.Fprintf(&b.out, "### One connection, %s\n\n", durability)
	var rows [][]string
	for _, v := range all {
		t := times[v.name]
		row := []string{v.name, count(report.Median(t.server)), count(report.Median(t.client)), "", "", "", ""}
		if v.over != "" {
			r := t.total() / times[v.over].total()
			row[3], row[4] = fmt.Sprintf("%.2f", r), v.over
			if v.most > 0 && durability == "logged" {
				row[5], row[6] = fmt.Sprintf("≤ %g", v.most), b.reached(r <= v.most)
			}
		}
		rows = append(rows, row)
	}
	report.Table(&b.out, []string{"", "server µs a call", "client µs a call", "both ×", "of", "target", "reached"}, rows)
}

// warmCalls is the number of calls before measuring begins: from the sixth
// execution on, the server may use a statement's generic plan.
const warmCalls = 20

// timeVerb makes calls for a while on one connection, and returns the processor
// time of a call in µs: of the server's process for the connection, and of this
// process.
func (w *schema) timeVerb(ctx context.Context, v *verb, keys int, length time.Duration) (server, client float64, err error) {
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return 0, 0, err
	}
	defer closeConn(conn)
	l, random := w.limiter.With(w.store.With(conn)), rand.New(rand.NewPCG(1, 2))
	call := func() error {
		allowed, err := v.call(ctx, l, conn, load.Key(random.IntN(keys)))
		if err == nil && !allowed {
			err = fmt.Errorf("refused")
		}
		return err
	}
	for range warmCalls {
		if err := call(); err != nil {
			return 0, 0, err
		}
	}
	pid := int(conn.PgConn().PID())
	s0, err := cpu.Process(pid)
	if err != nil {
		return 0, 0, err
	}
	calls, c0 := 0.0, cpu.Own()
	for end := time.Now().Add(length); time.Now().Before(end); calls++ {
		if err := call(); err != nil {
			return 0, 0, err
		}
	}
	s1, err := cpu.Process(pid)
	return float64((s1 - s0).Microseconds()) / calls, float64((cpu.Own() - c0).Microseconds()) / calls, err
}

// verb returns a contender that makes one kind of call, with a connection for
// each client.
func (w *schema) verb(name string) contender {
	for _, v := range slices.Concat(verbs, otherVerbs) {
		if v.name == name {
			return contender{name: name, open: w.onConn(v.call), ours: true}
		}
	}
	panic("no verb " + name)
}
