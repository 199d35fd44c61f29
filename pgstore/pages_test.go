package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// maxPages bounds the pages of tables and indexes that a call reads for each
// bucket. An index of three levels and the row are four pages, and no call
// looks up a bucket more than a few times, with some dead rows. All rows of a
// limit are hundreds of pages.
const maxPages = 100

// A session is a connection that calls are made on.
type session struct {
	*dipwell.Limiter
	store *pgstore.Store
	conn  *pgx.Conn
}

// pagedCalls has every statement of a store and every function. Keys k1 to k400
// have rows, which are drained in limit "empty"; other keys are new for each i.
var pagedCalls = []struct {
	name    string
	buckets int
	call    func(ctx context.Context, s session, i int) error
}{
	{"Take", 1, goCall((*dipwell.Limiter).Take, "user", "k", 1)},
	{"Take, refused", 1, goCall((*dipwell.Limiter).Take, "empty", "k", 1)},
	{"Take, first", 1, goCall((*dipwell.Limiter).Take, "user", "take", 1)},
	{"Take of a window", 1, goCall((*dipwell.Limiter).Take, "window", "take", 1)},
	{"Check", 1, goCall((*dipwell.Limiter).Check, "user", "k", 1)},
	{"TakeUpTo", 1, goCall((*dipwell.Limiter).TakeUpTo, "user", "k", 1)},
	{"TakeUpTo, less", 1, goCall((*dipwell.Limiter).TakeUpTo, "window", "k", 2000)}, // of no key that is held
	{"Reserve", 1, goCall((*dipwell.Limiter).Reserve, "user", "k", 1)},
	{"Charge", 1, goCall((*dipwell.Limiter).Charge, "user", "k", 1)},
	{"Charge, first", 1, goCall((*dipwell.Limiter).Charge, "user", "charge", 1)},
	{"Refund", 1, goCall((*dipwell.Limiter).Refund, "user", "k", 1)},
	{"Reset", 1, func(ctx context.Context, s session, i int) error {
		_, err := s.Reset(ctx, "user", keyFor("k", i))
		return err
	}},
	{"Cancel", 3, func(ctx context.Context, s session, i int) error {
		d, err := s.Reserve(ctx, "empty", keyFor("cancel", i), 11)
		if err == nil {
			err = s.Cancel(ctx, d.Reservation)
		}
		return err
	}},
	{"TakeAll", 2, goTakeAll("user", "tenant")},
	{"TakeAll, refused", 2, goTakeAll("user", "empty")},
	{"batch of takes", 20, goBatch(func(l *dipwell.Limiter, i, j int) []store.Op {
		return []store.Op{op(l, "user", keyFor("k", 20*i+j), store.VerbTake)}
	})},
	{"batch of takes, refused", 20, goBatch(func(l *dipwell.Limiter, i, j int) []store.Op {
		return []store.Op{op(l, "empty", keyFor("k", 20*i+j), store.VerbTake)}
	})},
	{"batch of takes, first", 20, goBatch(func(l *dipwell.Limiter, i, j int) []store.Op {
		return []store.Op{op(l, "user", keyFor("batch", 20*i+j), store.VerbTake)}
	})},
	{"batch of groups", 40, goBatch(func(l *dipwell.Limiter, i, j int) []store.Op {
		key := keyFor("k", 20*i+j)
		return []store.Op{op(l, "user", key, store.VerbTake), op(l, "tenant", key, store.VerbTake)}
	})},
	{"batch of verbs", 20, goBatch(func(l *dipwell.Limiter, i, j int) []store.Op {
		return []store.Op{op(l, "user", keyFor("k", 20*i+j), store.Verb(j%5+1))}
	})},
	{"Hold and Settle", 2, goHold("user", "k", settle)},
	{"Hold and Settle, first", 3, goHold("user", "hold", settle)},
	{"Hold and Settle of a slot", 2, goHold("slots", "k", settle)},
	{"Hold and Settle of two limits", 4, func(ctx context.Context, s session, i int) error {
		id := rand.Text()
		_, err := s.Hold(ctx, time.Minute, id, dipwell.Take{Limit: "user", Key: keyFor("k", i), Cost: 1}, dipwell.Take{Limit: "tenant", Key: keyFor("k", i), Cost: 1})
		if err == nil {
			_, err = s.Settle(ctx, id, 1, 0)
		}
		return err
	}},
	{"Hold and Holds", 2, goHold("user", "holds", func(ctx context.Context, s session, id string) error {
		_, err := s.Holds(ctx, "user", "k1")
		return err
	})},
	{"Hold and Extend", 2, goHold("user", "extend", func(ctx context.Context, s session, id string) error {
		_, err := s.Extend(ctx, id, time.Minute)
		return err
	})},
	{"Take of a path", 2, goCall((*dipwell.Limiter).Take, "member", "k", 1)},
	{"Take of shards", 8, goCall((*dipwell.Limiter).Take, "sharded", "k", 1)},
	{"Take of shards, first", 8, goCall((*dipwell.Limiter).Take, "sharded", "take", 1)},
	{"Check of shards", 8, goCall((*dipwell.Limiter).Check, "sharded", "k", 1)},
	{"Take under an override", 1, goCall((*dipwell.Limiter).Take, "over", "k", 1)},
	{"Take beside overrides, first", 1, goCall((*dipwell.Limiter).Take, "over", "take", 1)},
	{"Hold and Settle beside overrides, first", 3, goHold("over", "hold", settle)},
	{"batch of takes under overrides", 20, goBatch(func(l *dipwell.Limiter, i, j int) []store.Op {
		return []store.Op{op(l, "over", keyFor("k", 20*i+j), store.VerbTake)}
	})},
	{"batch of takes beside overrides, first", 20, goBatch(func(l *dipwell.Limiter, i, j int) []store.Op {
		return []store.Op{op(l, "over", keyFor("batch", 20*i+j), store.VerbTake)}
	})},
	{"Keys under overrides", 3, func(ctx context.Context, s session, i int) error {
		_, err := s.store.Abilities().Keys(ctx, s.Limit("over"), "k", keyFor("k", i), 10)
		return err
	}},
	{"Keys", 10, func(ctx context.Context, s session, i int) error {
		_, err := s.store.Abilities().Keys(ctx, s.Limit("user"), "k", keyFor("k", i), 10)
		return err
	}},
	{"take", 1, sqlCall("take('user', $1)")},
	{"take, refused", 1, sqlCall("take('empty', $1)")},
	{"take, first", 1, sqlCall("take('user', $2)")},
	{"take of a window", 1, sqlCall("take('window', $2)")},
	{"check", 1, sqlCall("check('user', $1)")},
	{"take_up_to", 1, sqlCall("take_up_to('user', $1)")},
	{"reserve", 1, sqlCall("reserve('user', $1)")},
	{"charge", 1, sqlCall("charge('user', $1)")},
	{"refund", 1, sqlCall("refund('user', $1)")},
	{"reset", 1, sqlCall("reset('user', $1)")},
	{"take_all", 2, sqlCall("take_all('{user,tenant}', array[$1, $1])")},
	{"take_all, refused", 2, sqlCall("take_all('{user,empty}', array[$1, $1])")},
	{"take_all, first", 2, sqlCall("take_all('{user,tenant}', array[$2, $2])")},
	{"take_all, named twice", 2, sqlCall("take_all('{user,tenant,user}', array[$1, $1, $1])")},
	{"hold and settle", 2, sqlCall("settle((dipwell.hold('user', $1, ttl => '1m')).hold)")},
	{"hold and settle of a slot", 2, sqlCall("settle((dipwell.hold('slots', $1, ttl => '1m')).hold)")},
	{"take under an override", 1, sqlCall("take('over', $1)")},
	{"override", 2, sqlCall("override('over', $1, burst => 2000)")},
	{"take of a path", 2, sqlCall("take('member', $1)")},
	{"take of shards", 8, sqlCall("take('sharded', $1)")},
	{"cancel", 3, func(ctx context.Context, s session, i int) error {
		_, err := s.conn.Exec(ctx, "do $$ begin perform dipwell.cancel((dipwell.reserve('empty', 'sql"+fmt.Sprint(i)+"', 11)).reservation); end $$")
		return err
	}},
}

func goCall(do func(*dipwell.Limiter, context.Context, string, string, int64) (dipwell.Decision, error), limit, key string, cost int64) func(context.Context, session, int) error {
	return func(ctx context.Context, s session, i int) error {
		_, err := do(s.Limiter, ctx, limit, keyFor(key, i), cost)
		return err
	}
}

func goTakeAll(limits ...string) func(context.Context, session, int) error {
	return func(ctx context.Context, s session, i int) error {
		var takes []dipwell.Take
		for _, name := range limits {
			takes = append(takes, dipwell.Take{Limit: name, Key: keyFor("k", i), Cost: 1})
		}
		_, err := s.TakeAll(ctx, takes...)
		return err
	}
}

// goHold makes a hold and calls then with its id.
func goHold(limit, key string, then func(ctx context.Context, s session, id string) error) func(context.Context, session, int) error {
	return func(ctx context.Context, s session, i int) error {
		id := rand.Text()
		d, err := s.Hold(ctx, time.Minute, id, dipwell.Take{Limit: limit, Key: keyFor(key, i), Cost: 1})
		if err == nil && !d.Allowed {
			err = errors.New("the hold was refused")
		}
		return errors.Join(err, then(ctx, s, id))
	}
}

func settle(ctx context.Context, s session, id string) error {
	_, err := s.Settle(ctx, id, 1)
	return err
}

func goBatch(ops func(l *dipwell.Limiter, i, j int) []store.Op) func(context.Context, session, int) error {
	return func(ctx context.Context, s session, i int) error {
		var b store.Batch
		for j := range 20 {
			g := store.Group{Ops: ops(s.Limiter, i, j)}
			_, _ = rand.Read(g.ID[:]) // the keys of a reserve are used again if the server reports late
			b.Groups = append(b.Groups, g)
		}
		err := s.store.Apply(ctx, &b)
		for i := range b.Groups {
			err = errors.Join(err, b.Groups[i].Err)
		}
		return err
	}
}

// keyFor returns a key with a row, or a new one.
func keyFor(name string, i int) string {
	if name == "k" {
		i = 1 + i%400
	}
	return fmt.Sprint(name, i)
}

func op(l *dipwell.Limiter, limit, key string, verb store.Verb) store.Op {
	return store.Op{Def: l.Limit(limit), Key: key, Verb: verb, Cost: 1}
}

func sqlCall(call string) func(context.Context, session, int) error {
	return func(ctx context.Context, s session, i int) error {
		_, err := s.conn.Exec(ctx, "select $1::text, $2::text, a.* from dipwell."+call+" a", keyFor("k", i), keyFor("sql", i))
		return err
	}
}

// TestPages checks that the number of pages a call reads is bounded by a
// constant, for any number of rows, any planner statistics, and sessions that
// planned while the table was empty. It counts pages, so the speed of the
// machine does not matter. It has its own server, because an open transaction
// in any database delays the pruning of dead rows.
func TestPages(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string][]string{
		"new":              {},
		"analyzed empty":   {"vacuum analyze dipwell.buckets", "vacuum analyze dipwell.reservations", "vacuum analyze dipwell.hold_parts", "delete from dipwell.key_overrides", "vacuum analyze dipwell.key_overrides"},
		"truncated":        {"insert into dipwell.buckets select 0, 0, 0, 0, i from generate_series(1, 20000) i", "analyze dipwell.buckets", "truncate dipwell.buckets, dipwell.reservations, dipwell.hold_parts"},
		"rewritten, swept": {"vacuum full analyze dipwell.buckets", "select dipwell.sweep()"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := ownServer(t, "fsync=off", "autovacuum=off", "jit=off")
			pagesAfter(t, connect(t, server.DSN("postgres")), prepare)
		})
	}
}

func pagesAfter(t *testing.T, pool *pgxpool.Pool, prepare []string) {
	rows := 100_000
	if os.Getenv("DIPWELL_LONG") != "" {
		rows = 1_000_000
	}
	must(t, pool, `alter table dipwell.buckets set (autovacuum_enabled = off); alter table dipwell.reservations set (autovacuum_enabled = off); alter table dipwell.hold_parts set (autovacuum_enabled = off);
		alter table dipwell.key_overrides set (autovacuum_enabled = off);
		select dipwell.define(name, 1, interval '1 hour', burst => 1000, max_debt => 1000) from unnest('{user,tenant}'::text[]) name;
		select dipwell.define('empty', 1, interval '1 hour', burst => 10, max_debt => 1000000);
		select dipwell.define('window', 1000, interval '1 day', algorithm => 'fixed_window');
		select dipwell.define('slots', burst => 1000, algorithm => 'concurrency');
		select dipwell.define('team', 1, interval '1 hour', burst => 1000000, shared => true);
		select dipwell.define('member', 1, interval '1 hour', burst => 1000, parent => 'team');
		select dipwell.define('sharded', 1000, interval '1 hour', burst => 1000, shards => 4);
		select dipwell.define('over', 1, interval '1 hour', burst => 1000);
		select dipwell.override('over', 'k' || i, burst => 2000) from generate_series(0, 40) i;
		create table override as select * from dipwell.key_overrides where key = 'k0'`)
	for _, sql := range prepare {
		must(t, pool, sql)
	}
	before := make([]session, len(pagedCalls)) // sessions that planned on the empty table
	for i, c := range pagedCalls {
		before[i] = newSession(t, pool)
		for k := range 8 { // from the sixth execution the server may use a generic plan
			if err := c.call(t.Context(), before[i], 1+k); err != nil {
				t.Fatal(c.name, err)
			}
		}
	}
	must(t, pool, "delete from dipwell.buckets")
	must(t, pool, "delete from dipwell.reservations")
	must(t, pool, "delete from dipwell.hold_parts")
	if _, err := pool.Exec(t.Context(), `insert into dipwell.buckets (used, ts, limit_id, version, key)
		select case l.name when 'empty' then l.cap + 1000000 * l.unit when 'slots' then 0 else l.unit end, dipwell_internal.now_us(), l.id,
			coalesce((select dipwell_internal.override_number(o.id) from override o where o.limit_id = l.id), l.version),
			case l.name when 'sharded' then 'k' || i / 4 || chr(1) || lpad((i % 4)::text, 2, '0') else 'k' || i end
		from dipwell.limits l, generate_series(1, $1 / 4) i on conflict do nothing`, rows); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `insert into dipwell.key_overrides
		select x.* from override o, generate_series(0, $1 / 4) i, jsonb_populate_record(null::dipwell.key_overrides, to_jsonb(o) || jsonb_build_object('key', 'k' || i)) x
		on conflict do nothing`, rows); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `insert into dipwell.hold_parts (expires, due, till, ttl, units, unit, tokens, number, mark, limit_id, part, parts, takes, live, free, keep, reset, settled, id, key)
		select n, n, n, 60000000, l.unit, l.unit, 1, 0, 0, l.id, 1, 1, 1, true, false, false, false, false, l.name || i, 'held' || i
		from dipwell.limits l, generate_series(1, $1 / 8) i, (select dipwell_internal.now_us() + 86400000000 as n) c where l.name in ('user', 'slots')`, rows); err != nil {
		t.Fatal(err)
	}
	for i, c := range pagedCalls {
		if n := pagesPerCall(t, newSession(t, pool), c.call, rows); n > float64(maxPages*c.buckets) {
			t.Errorf("%s, %d rows, a new session: %.0f pages", c.name, rows, n)
		}
		if n := pagesPerCall(t, before[i], c.call, rows+1000); n > float64(maxPages*c.buckets) {
			t.Errorf("%s, %d rows, a session that knew the empty table: %.0f pages", c.name, rows, n)
		}
	}
}

func newSession(t *testing.T, pool *pgxpool.Pool) session {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	store := newStore(t, conn, pgstore.Config{Poll: -1})
	l, err := dipwell.New(store)
	if err != nil {
		t.Fatal(err)
	}
	return session{l, store, conn}
}

// pagesPerCall returns the average number of pages that a call reads. A session
// reports its statistics at most once a second; the calls are repeated until it
// does.
func pagesPerCall(t *testing.T, s session, call func(context.Context, session, int) error, from int) float64 {
	t.Helper()
	const calls = 20
	defer func() { _ = s.conn.Close(t.Context()) }()
	touched := func() (scans, pages int64) {
		if err := s.conn.QueryRow(t.Context(), `select sum(pg_stat_get_xact_numscans(c.oid)), sum(pg_stat_get_xact_blocks_fetched(c.oid))
			from pg_class c left join pg_index i on i.indexrelid = c.oid
			where coalesce(i.indrelid, c.oid) in ('dipwell.key_overrides'::regclass, 'dipwell.buckets'::regclass, 'dipwell.reservations'::regclass, 'dipwell.hold_parts'::regclass)`).Scan(&scans, &pages); err != nil {
			t.Fatal(err)
		}
		return scans, pages
	}
	for round := range 10 {
		scans, before := touched()
		for i := range calls {
			if err := call(t.Context(), s, from+calls*round+i); err != nil {
				t.Fatal(err)
			}
		}
		if n, after := touched(); n >= scans+calls {
			return float64(after-before) / calls
		}
	}
	t.Fatal("the server reported each time")
	return 0
}
