package model

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// clock makes the functions of SQL read the time from a setting.
const clock = `create or replace function dipwell_internal.now_us() returns bigint language sql volatile
	as $$ select coalesce(nullif(current_setting('test.now', true), '')::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) $$`

// inSQL plays the calls of histories by the functions of SQL, and the rest through the Go
// store of the same database.
type inSQL struct {
	*inGo
	pool *pgxpool.Pool
	ids  map[string]pgtype.UUID

	below map[string]bool // limits that have a parent
}

func newInSQL(t testing.TB) *inSQL {
	g := &inSQL{pool: database(t, "modelsql", pgstore.MigrateOptions{Tables: "unlogged"}, clock), ids: map[string]pgtype.UUID{}, below: map[string]bool{}}
	g.inGo = newInGo(t, func(t testing.TB, now func() int64) store.Store { return postgres(t, g.pool, now) })
	return g
}

// single reports whether an op has a function of SQL that answers with one row.
func single(o *op) bool { return len(o.takes) == 1 }

// inFunctions reports whether an op is one that SQL has.
func inFunctions(o *op) bool {
	switch o.kind {
	case kCall:
		return single(o) || o.verb == vTake
	case kCancel, kHold, kSettle, kExtend, kOverride, kEndOverride:
		return true
	}
	return false
}

func (g *inSQL) do(prefix string, o *op) (answer, error) {
	if o.kind == kDefine {
		g.below[o.name] = o.parent != ""
	}
	if !inFunctions(o) {
		return g.inGo.do(prefix, o)
	}
	a, err := g.run(prefix, o)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return a, err
	}
	switch {
	case pg.Code == "P0002" && o.kind == kCancel:
		return answer{err: "reservation"}, nil
	case pg.Code == "P0002":
		return answer{err: "unknown hold"}, nil
	case pg.Code == "55000":
		return answer{err: "conflict"}, nil
	case strings.HasPrefix(pg.ConstraintName, "cost"):
		return answer{err: "field cost"}, nil
	}
	return a, err
}

// adapt leaves what SQL says: of the takes of a call that it answers, the columns of take.
func (g *inSQL) adapt(o *op, a *answer) {
	if !inFunctions(o) {
		return
	}
	defer func() { a.reserved, a.repeated, a.expires = false, false, 0 }()
	if o.kind == kSettle || o.kind == kExtend || o.kind == kHold && !single(o) || single(o) && g.below[o.takes[0].limit] {
		a.levels = nil
		return
	}
	a.levels = a.levels[:min(len(a.levels), len(o.takes))]
	for i := range a.levels {
		x := &a.levels[i]
		if a.repeated || o.kind == kHold {
			x.granted = 0
		}
		x.shadow, x.bound, x.capacity, x.blocked, x.plan, x.limit, x.key = false, false, 0, 0, "", "", ""
	}
}

// run plays an op in a transaction that has the time as a setting. Both are one message to the
// server, which saves half of the time of a history.
func (g *inSQL) run(prefix string, o *op) (a answer, err error) {
	var b pgx.Batch
	b.Queue("select set_config('test.now', $1, true)", strconv.FormatInt(g.now.Load(), 10))
	sql, args := g.statement(prefix, o)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		a, err = g.rows(o, rows)
		return err
	})
	err = g.pool.SendBatch(context.Background(), &b).Close()
	return a, err
}

// statement is that of an op.
func (g *inSQL) statement(prefix string, o *op) (sql string, args []any) {
	const settled = "allowed, remaining, retry_after, reset_after, granted, delay, never, null::uuid"
	const columns = "allowed, remaining, retry_after, reset_after, granted, delay, never, reservation"
	limits, keys, costs, plans, floors := arrays(prefix, o.takes)
	with := func(sql string, args ...any) (string, []any) { return sql, args }
	switch {
	case o.kind == kCancel:
		id := g.ids[g.id(o.id)]
		if other, made := g.reservations[g.id(o.id)]; made {
			id = pgtype.UUID{Bytes: other, Valid: true}
		}
		return with("select dipwell.cancel($1)", id)
	case o.kind == kExtend:
		return with("select dipwell.extend($1, $2)", g.id(o.id), micros(o.ttl))
	case o.kind == kOverride:
		return setOverride(prefix, o)
	case o.kind == kEndOverride:
		kind := kindOf(o).String()
		if kind == "any" {
			kind = ""
		}
		return with("select dipwell.end_override($1, $2, $3)", limits[0], keys[0], orNull(kind))
	case o.kind == kSettle && len(o.costs) == 1:
		return with("select "+settled+" from dipwell.settle($1, $2)", g.id(o.id), o.costs[0])
	case o.kind == kSettle:
		return with("select "+settled+" from dipwell.settle_all($1, $2)", g.id(o.id), o.costs)
	case o.kind == kHold && single(o):
		return with("select "+settled+" from dipwell.hold($1, $2, $3, ttl => $4, id => $5, plan => $6, floor => $7)",
			limits[0], keys[0], costs[0], micros(o.ttl), g.id(o.id), plans[0], floors[0])
	case o.kind == kHold:
		return with("select "+settled+" from dipwell.hold_all($1, $2, $3, ttl => $4, id => $5, plans => $6, floors => $7)",
			limits, keys, costs, micros(o.ttl), g.id(o.id), plans, floors)
	case !single(o):
		return with("select "+columns+" from dipwell.take_all($1, $2, $3, $4, $5)", limits, keys, costs, plans, floors)
	case o.verb <= vCheck:
		return with("select "+columns+" from dipwell."+verbNames[o.verb]+"($1, $2, $3, plan => $4, floor => $5)", limits[0], keys[0], costs[0], plans[0], floors[0])
	case o.verb <= vReserve:
		return with("select "+columns+" from dipwell."+verbNames[o.verb]+"($1, $2, $3, plan => $4)", limits[0], keys[0], costs[0], plans[0])
	}
	return with("select "+columns+" from dipwell."+verbNames[o.verb]+"($1, $2, $3)", limits[0], keys[0], costs[0])
}

func setOverride(prefix string, o *op) (sql string, args []any) {
	set := o.override
	var rate, burst *int64
	var per *time.Duration
	var until *time.Time
	var start *string
	if set.rate != 0 {
		rate = &set.rate
	}
	if set.burst != absent {
		burst = &set.burst
	}
	if set.per != 0 {
		length := micros(set.per)
		per = &length
	}
	if set.until != 0 {
		at := time.UnixMicro(set.until)
		until = &at
	}
	if set.start != nil {
		start = orNull(set.start.text())
	}
	return "select dipwell.override($1, $2, plan => $3, rate => $4, per => $5, burst => $6, until => $7, start => $8)",
		[]any{prefix + o.takes[0].limit, orNull(o.takes[0].key), orNull(set.plan), rate, per, burst, until, start}
}

// arrays are the arguments of take_all. Nulls are absent.
func arrays(prefix string, takes []take) (limits []string, keys []*string, costs []int64, plans []*string, floors []int64) {
	for _, t := range takes {
		limits, costs, floors = append(limits, prefix+t.limit), append(costs, t.cost), append(floors, t.floor)
		keys, plans = append(keys, orNull(t.key)), append(plans, orNull(t.plan))
	}
	return limits, keys, costs, plans, floors
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// rows reads the answer to an op.
func (g *inSQL) rows(o *op, rows pgx.Rows) (a answer, err error) {
	a.allowed = true
	for rows.Next() {
		switch o.kind {
		case kCancel, kExtend, kOverride, kEndOverride:
			continue
		}
		var x told
		var remain *int64 // null if the limit was dropped
		var retry, reset, delay pgtype.Interval
		var id pgtype.UUID
		if err = rows.Scan(&x.allowed, &remain, &retry, &reset, &x.granted, &delay, &x.never, &id); err != nil {
			return a, err
		}
		if remain != nil {
			x.remain = *remain
		}
		x.retry, x.reset, x.delay = retry.Microseconds, reset.Microseconds, delay.Microseconds
		a.allowed = a.allowed && x.allowed
		a.levels = append(a.levels, x)
		if id.Valid {
			g.ids[g.id(o.id)] = id
		}
	}
	return a, rows.Err()
}
