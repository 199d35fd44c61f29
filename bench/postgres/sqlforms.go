package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/jackc/pgx/v5"
)

func init() { register("sqlforms", (*bench).sqlForms) }

const (
	sqlCounter = "bare counter in a PL/pgSQL function"
	sqlRefused = "dipwell.take, refused"
	sqlNew     = "dipwell.take, new keys"
)

// sqlForms are the measured calls of SQL functions. The targets limit the server's processor
// time.
var sqlForms = []verb{
	{name: sqlCounter, call: inSQL("select counter.take($1) is not null")},
	{name: sqlTake, call: inSQL("select (dipwell.take('" + apiLimit + "', $1)).allowed"), over: sqlCounter, most: 1.5},
	{name: sqlRefused, call: inSQL("select not (dipwell.take('" + drainedLimit + "', $1)).allowed"), over: sqlCounter, most: 1.5},
	{name: sqlNew, call: inSQL("select (dipwell.take('" + apiLimit + "', $1 || ' ' || gen_random_uuid()::text)).allowed"), over: sqlCounter + ", new keys", most: 1.7},
	{name: sqlCounter + ", new keys", call: inSQL("select counter.count($1 || ' ' || gen_random_uuid()::text) is not null")},
	{name: "floor", call: inSQL("select (dipwell.take('" + apiLimit + "', $1, floor => 5)).allowed"), over: sqlTake, most: 1.15},
	{name: "key with a hold", call: inSQL("select (dipwell.take('held', $1)).allowed"), over: sqlTake, most: 1.15},
	{name: "plan", call: inSQL("select (dipwell.take('planned', $1, plan => 'pro')).allowed"), over: sqlTake, most: 1.25},
	{name: "window without start", call: inSQL("select (dipwell.take('spread', $1)).allowed"), over: sqlTake, most: 1.4},
	{name: "leaky bucket", call: inSQL("select (dipwell.take('drip', $1)).allowed"), over: sqlTake, most: 1.8},
	{name: "window by a calendar", call: inSQL("select (dipwell.take('daily', $1)).allowed"), over: sqlTake, most: 1.8},
	{name: "shadow", call: inSQL("select (dipwell.take('shadowed', $1)).allowed"), over: sqlTake, most: 1.5},
	{name: "limit with a parent", call: inSQL("select (dipwell.take('of-two', $1)).allowed"), over: sqlTake, most: 1.8},
	{name: "limit with two parents", call: inSQL("select (dipwell.take('of-three', 't/' || $1)).allowed"), over: sqlTake, most: 2.4},
	{name: "hold and settle", call: holdInSQL("held-and-settled"), over: sqlTake, most: 3},
	{name: "slot and its end", call: holdInSQL("slots"), over: sqlTake, most: 3},
	{name: "take_all of 2", call: inSQL("select bool_and(allowed) from dipwell.take_all(array['" + apiLimit + "', 'tenant'], array[$1, $1])"), over: sqlTake, most: 2},
}

// sqlFormLimits are the limits of sqlForms. Each key of these limits has a row before.
const sqlFormLimits = `
	select dipwell.define('planned', rate => 300, per => '1 second', burst => 1000000000);
	select dipwell.define_plan('planned', 'pro', rate => 600);
	select dipwell.define('tenant', rate => 300, per => '1 second', burst => 1000000000);
	select dipwell.define('held', rate => 300, per => '1 second', burst => 1000000000);
	select dipwell.define('held-and-settled', rate => 300, per => '1 second', burst => 1000000000);
	select dipwell.define('spread', rate => 1000000000, per => '1 hour', algorithm => 'fixed_window');
	select dipwell.define('drip', rate => 1000000, per => '1 second', algorithm => 'leaky_bucket', max_debt => 1000000000);
	select dipwell.define('daily', rate => 1000000000, per => '1 day', algorithm => 'fixed_window', start => '00:00 Europe/Rome');
	select dipwell.define('shadowed', rate => 300, per => '1 second', burst => 1000000000, mode => 'shadow');
	select dipwell.define('slots', rate => 0, per => null, burst => 1000000, algorithm => 'concurrency');
	select dipwell.define('everybody', rate => 300, per => '1 second', burst => 1000000000, shared => true);
	select dipwell.define('of-two', rate => 300, per => '1 second', burst => 1000000000, parent => 'everybody');
	select dipwell.define('all', rate => 300, per => '1 second', burst => 1000000000, shared => true);
	select dipwell.define('of-all', rate => 300, per => '1 second', burst => 1000000000, parent => 'all');
	select dipwell.define('of-three', rate => 300, per => '1 second', burst => 1000000000, parent => 'of-all');`

func holdInSQL(limit string) caller {
	return func(ctx context.Context, _ *dipwell.Limiter, c *pgx.Conn, key string) (allowed bool, err error) {
		var id string
		if err = c.QueryRow(ctx, "select h.allowed, h.hold from dipwell.hold('"+limit+"', $1, 2, '1 minute') h", key).Scan(&allowed, &id); err != nil || !allowed {
			return allowed, err
		}
		err = c.QueryRow(ctx, "select (dipwell.settle($1, 1)).allowed", id).Scan(&allowed)
		return allowed, err
	}
}

// sqlForms measures the server's processor time of a call in each form, and of the first call
// of a session.
func (b *bench) sqlForms(ctx context.Context) error {
	w, err := b.newSchema(ctx, verbsDB, "logged")
	if err != nil {
		return err
	}
	defer w.close()
	err = withConn(ctx, w.dsn, func(c *conn) error {
		_, err := c.Exec(ctx, designSchema("counter", "logged")+sqlFormLimits).ReadAll()
		if err == nil {
			err = c.once(ctx, sqlFile("counter_fill.sql"), fmt.Sprint(b.keys))
		}
		if err == nil {
			// Each call has its own transaction, as users' calls do.
			err = c.once(ctx, fmt.Sprintf(`do $$ begin
				for k in 0..%d loop
					perform dipwell.hold('held', 'user:' || k, 1, interval '1 hour'), dipwell.take('planned', 'user:' || k, plan => 'pro'),
						dipwell.take('of-three', 't/user:' || k), dipwell.take('of-two', 'user:' || k);
					perform dipwell.take(l, 'user:' || k) from unnest('{tenant,held-and-settled,spread,drip,daily,shadowed}'::text[]) l;
					commit;
				end loop;
			end $$`, b.keys-1))
		}
		return err
	})
	if err != nil {
		return err
	}
	times, err := b.timeVerbs(ctx, w, "sqlforms", sqlForms)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b.out, "## The server's processor time of a call in SQL, %d keys, one session at a time\n\n", b.keys)
	b.formTable(times)
	return b.firstCalls(ctx, w)
}

func (b *bench) formTable(times map[string]*spent) {
	var rows [][]string
	for _, v := range sqlForms {
		row := []string{v.name, count(report.Median(times[v.name].server)), "", "", "", ""}
		if v.over != "" {
			r := report.Median(times[v.name].server) / report.Median(times[v.over].server)
			row[2], row[3], row[4], row[5] = fmt.Sprintf("%.2f", r), v.over, fmt.Sprintf("≤ %g", v.most), b.reached(r <= v.most)
		}
		rows = append(rows, row)
	}
	report.Table(&b.out, []string{"", "server µs a call", "×", "of", "target", "reached"}, rows)
}

// firstSessions is how many sessions each form opens in a round; a session makes one call.
const firstSessions = 20

func (b *bench) firstCalls(ctx context.Context, w *schema) error {
	forms := map[string][]float64{}
	for range b.numRounds {
		for _, v := range sqlForms {
			for i := range firstSessions {
				us, err := w.firstCall(ctx, v, load.Key(i))
				if err != nil {
					return fmt.Errorf("first call, %s: %w", v.name, err)
				}
				forms[v.name] = append(forms[v.name], us)
			}
		}
	}
	fmt.Fprintf(&b.out, "## The first call of a session, with connecting\n\nMedians of %d sessions.\n\n", firstSessions*b.numRounds)
	var rows [][]string
	for _, name := range []string{sqlCounter, sqlTake, sqlRefused, "window without start", "floor", "plan", "limit with a parent", "hold and settle", "take_all of 2"} {
		over, most := sqlTake, 1.2
		row := []string{name, count(report.Median(forms[name])), "", "", "", ""}
		if name == sqlTake {
			over, most = sqlCounter, 1.6
		}
		if r := report.Median(forms[name]) / report.Median(forms[over]); name != sqlCounter {
			row[2], row[3] = fmt.Sprintf("%.2f", r), over
			if slices.Contains([]string{sqlTake, "window without start", "floor", "plan"}, name) {
				row[4], row[5] = fmt.Sprintf("≤ %g", most), b.reached(r <= most)
			}
		}
		rows = append(rows, row)
	}
	report.Table(&b.out, []string{"", "server µs", "×", "of", "target", "reached"}, rows)
	return nil
}

// firstCall returns the processor time of the server for a new session and its call, in µs.
func (w *schema) firstCall(ctx context.Context, v verb, key string) (float64, error) {
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return 0, err
	}
	defer closeConn(conn)
	if _, err = v.call(ctx, w.limiter, conn, key); err != nil {
		return 0, err
	}
	spent, err := cpu.Process(int(conn.PgConn().PID()))
	return float64(spent.Microseconds()), err
}
