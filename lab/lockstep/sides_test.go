package lockstep

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// A side is a store with its interface for callers.
type side interface {
	setClock(now int64)
	ask(ctx context.Context, e *event) (reply, dipwell.Reservation)
	cancel(ctx context.Context, id dipwell.Reservation) error
	define(ctx context.Context, l dipwell.Limit) error
	drop(ctx context.Context, name string) error
	sweep(ctx context.Context) error
}

// reply is the answer that must be the same on every side.
type reply struct {
	err      string // what went wrong; "" when there is an answer
	allowed  bool
	reserved bool
	delay    int64 // of the call, µs, when reserved
	answers  string
}

// answer is the answer for one entry. Times are in µs.
type answer struct {
	allowed, never, shadow bool
	granted, remaining     int64
	retry, reset, delay    int64
}

// classOf returns the class of an error, by a name that all sides share.
func classOf(err error) string {
	var field *dipwell.FieldError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &field) && field.Limit != "":
		return "definition"
	case errors.Is(err, dipwell.ErrUnknownLimit): // with its place among several, which SQL does not say
		return "unknown limit"
	case errors.As(err, &field):
		return "field " + field.Field
	case errors.Is(err, dipwell.ErrReservation):
		return "reservation"
	}
	return err.Error()
}

// library is a store with a Limiter.
type library struct {
	*dipwell.Limiter
	clock *atomic.Int64
}

func newLibrary(t testing.TB, open func(t testing.TB, now func() int64) store.Store) *library {
	t.Helper()
	s := &library{clock: new(atomic.Int64)}
	s.clock.Store(epoch)
	var err error
	s.Limiter, err = dipwell.New(open(t, s.clock.Load))
	ok(t, err)
	return s
}

func (s *library) setClock(now int64) { s.clock.Store(now) }

func (s *library) cancel(ctx context.Context, id dipwell.Reservation) error { return s.Cancel(ctx, id) }

func (s *library) define(ctx context.Context, l dipwell.Limit) error {
	_, err := s.Define(ctx, l, store.OwnerCode)
	return err
}

func (s *library) drop(ctx context.Context, name string) error {
	return s.Drop(ctx, name, store.OwnerCode)
}

func (s *library) sweep(ctx context.Context) error {
	sweep := store.AbilitiesOf(s.Store()).Sweep
	if sweep == nil {
		return nil
	}
	_, err := sweep(ctx, 1000)
	return err
}

func (s *library) ask(ctx context.Context, e *event) (reply, dipwell.Reservation) {
	var d dipwell.Decision
	var err error
	switch {
	case e.within >= 0:
		err = s.within(ctx, &d, e)
	case e.several:
		err = s.DoAll(ctx, &d, e.verb, e.takes)
	default:
		err = s.Do(ctx, &d, e.verb, dipwell.Take{Limit: e.takes[0].Limit, Key: e.takes[0].Key, Cost: e.takes[0].Cost})
	}
	if err != nil {
		return reply{err: classOf(err)}, dipwell.Reservation{}
	}
	r := reply{allowed: d.Allowed, reserved: d.Reservation != dipwell.Reservation{}}
	if r.reserved {
		r.delay = d.Delay.Microseconds()
	}
	limits := d.Limits
	if !e.several {
		limits = []dipwell.Decision{d}
	}
	var list []answer
	for _, l := range limits {
		list = append(list, answer{l.Allowed, l.Never, l.Shadow, l.Granted, l.Remaining,
			l.RetryAfter.Microseconds(), l.ResetAfter.Microseconds(), l.Delay.Microseconds()})
	}
	r.answers = fmt.Sprint(list)
	return r, d.Reservation
}

// within makes a reservation with a bounded delay, as Wait does.
func (s *library) within(ctx context.Context, d *dipwell.Decision, e *event) error {
	var b store.Batch
	g, op := b.Single()
	op.Def, op.Key, op.Verb, op.Cost = s.Limit(e.takes[0].Limit), keyOf(e.takes[0]), e.verb, e.takes[0].Cost
	op.Bounded, op.MaxDelay = true, e.within
	g.ID = e.id()
	if err := s.Store().Apply(ctx, &b); err != nil || g.Err != nil {
		return errors.Join(err, g.Err)
	}
	us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	a := &op.Answer
	*d = dipwell.Decision{Allowed: a.Allowed, Never: a.Never, Shadow: a.Shadow, Granted: a.Granted, Remaining: a.Remaining,
		RetryAfter: us(a.Retry), ResetAfter: us(a.Reset), Delay: us(a.Delay)}
	if g.Reserved {
		d.Reservation = g.ID
	}
	return nil
}

// keyOf returns a key in the form that stores have.
func keyOf(t dipwell.Take) string {
	if t.Key == dipwell.Shared {
		return ""
	}
	return t.Key
}

// sql is PostgreSQL through the SQL functions, without Go code of dipwell.
type sql struct {
	conn *pgx.Conn
}

// newSQL connects to a database whose dipwell_internal.now_us() a test can set.
func newSQL(t testing.TB) *sql {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), newDatabase(t))
	ok(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), `create or replace function dipwell_internal.now_us() returns bigint language sql volatile
		as $$ select current_setting('test.now')::bigint $$`)
	ok(t, err)
	s := &sql{conn: conn}
	s.setClock(epoch)
	return s
}

func (s *sql) setClock(now int64) {
	_, err := s.conn.Exec(context.Background(), "select set_config('test.now', $1, false)", strconv.FormatInt(now, 10))
	if err != nil {
		panic(err) // the connection is the test's own
	}
}

func (s *sql) exec(ctx context.Context, query string, args ...any) error {
	_, err := s.conn.Exec(ctx, query, args...)
	return sqlError(err)
}

// sqlError converts an exception to the error of Go for the same field.
func sqlError(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	field := pg.ConstraintName
	name, index, _ := strings.Cut(strings.TrimSuffix(field, "]"), "[")
	n, _ := strconv.Atoi(index)
	switch {
	case pg.Code == "42704":
		return dipwell.ErrUnknownLimit
	case pg.Code == "P0002":
		return dipwell.ErrReservation
	case pg.Code != "22023":
		return err
	case index != "":
		field = fmt.Sprintf("takes[%d].%s", n-1, strings.TrimSuffix(name, "s"))
	case name == "costs", name == "keys", name == "limit_names":
		field = "takes"
	}
	return &dipwell.FieldError{Field: field, Reason: pg.Message}
}

func (s *sql) cancel(ctx context.Context, id dipwell.Reservation) error {
	return s.exec(ctx, "select dipwell.cancel($1)", [16]byte(id))
}

func (s *sql) define(ctx context.Context, l dipwell.Limit) error {
	per := fmt.Sprintf("%d microseconds", l.Period.Microseconds())
	if l.Period < 0 {
		per = fmt.Sprintf("%d months", -l.Period)
	}
	orDefault := func(n, zero, unlimited int64) *int64 {
		switch n {
		case 0:
			return nil
		case zero:
			n = 0
		case unlimited:
			n = -1
		}
		return &n
	}
	return s.exec(ctx, `select dipwell.define($1, $2, $3::text::interval, burst => $4, algorithm => $5, max_debt => $6, start => nullif($7, ''), on_change => $8, mode => $9, shared => $10,
			block => nullif($11::bigint, 0) * interval '1 microsecond')`,
		l.Name, l.Rate, per, orDefault(l.Burst, dipwell.NoBurst, store.MaxInt+1), l.Algorithm.String(),
		orDefault(l.MaxDebt, dipwell.NoDebt, dipwell.UnlimitedDebt), l.Start, l.OnChange.String(), l.Mode.String(), l.Shared, l.Block.Microseconds())
}

func (s *sql) drop(ctx context.Context, name string) error {
	return s.exec(ctx, "select dipwell.drop($1)", name)
}

func (s *sql) sweep(ctx context.Context) error {
	return s.exec(ctx, "select dipwell.sweep(1000)")
}

// columns are the columns of every function's result.
const columns = "allowed, remaining, retry_after, reset_after, granted, delay, never, reservation"

func (s *sql) ask(ctx context.Context, e *event) (reply, dipwell.Reservation) {
	var rows pgx.Rows
	var err error
	switch t := e.takes[0]; {
	case e.several && e.verb == store.VerbTake:
		limits, keys, costs := columnsOf(e.takes)
		rows, err = s.conn.Query(ctx, "select "+columns+" from dipwell.take_all($1, $2, $3)", limits, keys, costs)
	case e.several || e.within >= 0:
		return s.decide(ctx, e)
	default:
		rows, err = s.conn.Query(ctx, "select "+columns+" from dipwell."+e.verb.String()+"($1, $2, $3)", t.Limit, sqlKey(t), t.Cost)
	}
	if err != nil {
		return reply{err: classOf(sqlError(err))}, dipwell.Reservation{}
	}
	r, id := reply{allowed: true}, dipwell.Reservation{}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a answer, err error) {
		var retry, reset, delay pgtype.Interval
		var res pgtype.UUID
		err = row.Scan(&a.allowed, &a.remaining, &retry, &reset, &a.granted, &delay, &a.never, &res)
		a.retry, a.reset, a.delay = micros(retry), micros(reset), micros(delay)
		a.shadow = a.allowed && (retry.Valid || a.never) // SQL says so by a retry time on a call that is allowed
		if r.allowed = r.allowed && a.allowed; res.Valid {
			r.reserved, r.delay, id = true, max(r.delay, a.delay), res.Bytes
		}
		return a, err
	})
	if err != nil {
		return reply{err: classOf(sqlError(err))}, dipwell.Reservation{}
	}
	r.answers = fmt.Sprint(list)
	return r, id
}

func micros(i pgtype.Interval) int64 {
	return i.Microseconds + int64(i.Days)*24*time.Hour.Microseconds()
}

// decide calls dipwell_internal.decide, for calls that have no SQL function.
func (s *sql) decide(ctx context.Context, e *event) (reply, dipwell.Reservation) {
	limits, keys, costs := columnsOf(e.takes)
	var within *int64
	if e.within >= 0 {
		within = &e.within
	}
	id := e.id()
	// The same limit and key again adds up, as in take_all.
	rows, err := s.conn.Query(ctx, `with entry as (
			select i, l.id, coalesce(k, '') k, c from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality e (n, k, c, i)
			join dipwell.limits l on l.name = e.n),
		op as (select row_number() over (order by min(i)) o, id, k, sum(c)::bigint c from entry group by id, k),
		a as (select * from dipwell_internal.decide((select array_agg(id order by o) from op), (select array_agg(k order by o) from op),
			(select array_agg($4::int order by o) from op), (select array_agg(c order by o) from op), (select array_agg($5::bigint order by o) from op), $6)
			with ordinality d (allowed, never, shadow, granted, remaining, retry, reset, delay, n, row_used, row_ts, row_version, bound, row_plan, row_override, row_unit, row_free, row_max_charge, row_debt, o))
		select allowed, never, shadow, case when granted > 0 and $7 then entry.c else granted end, remaining, retry, reset, delay
		from entry join op using (id, k) join a using (o) order by i`,
		limits, keys, costs, int(e.verb), within, [16]byte(id), e.several)
	if err != nil {
		return reply{err: classOf(sqlError(err))}, dipwell.Reservation{}
	}
	r := reply{allowed: true}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a answer, err error) {
		err = row.Scan(&a.allowed, &a.never, &a.shadow, &a.granted, &a.remaining, &a.retry, &a.reset, &a.delay)
		r.allowed = r.allowed && a.allowed
		if a.granted > 0 {
			r.delay = max(r.delay, a.delay)
		}
		return a, err
	})
	if err != nil {
		return reply{err: classOf(sqlError(err))}, dipwell.Reservation{}
	}
	r.reserved = r.allowed && r.delay > 0
	if r.answers = fmt.Sprint(list); !r.reserved {
		r.delay, id = 0, dipwell.Reservation{}
	}
	return r, id
}

func columnsOf(takes []dipwell.Take) (limits []string, keys []*string, costs []int64) {
	for _, t := range takes {
		limits, keys, costs = append(limits, t.Limit), append(keys, sqlKey(t)), append(costs, t.Cost)
	}
	return limits, keys, costs
}

func sqlKey(t dipwell.Take) *string {
	if t.Key == dipwell.Shared {
		return nil
	}
	return &t.Key
}
