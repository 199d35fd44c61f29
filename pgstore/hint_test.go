package pgstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// hints are the values of dipwell.read_first, and one that is never set.
var hints = []string{"", "r", "rrrrrrrr", "refused", "n", "new", "shards", "scattered", "scattered........", "scattered.x", "else"}

// hintedCalls are decided by different statements of dipwell.take.
var hintedCalls = []struct {
	name, args string
	write      int // rows; -1: not checked
}{
	{"charged", "'bucket', 'half'", 1},
	{"refused", "'bucket', 'drained'", 0},
	{"refused for its cost", "'bucket', 'half', 5", 0},
	{"new", "'bucket', 'new'", 1},
	{"new, all of it", "'bucket', 'new', 9", 1},
	{"never", "'bucket', 'new', 10", 0},
	{"the shared bucket", "'bucket'", 1},
	{"a window", "'window', 'half'", 1},
	{"a refused window", "'window', 'drained'", 0},
	{"a new window", "'window', 'new'", 1},
	{"many units a tick", "'fast', 'half'", 1},
	{"a calendar", "'day', 'new'", -1},
	{"shadow", "'shadow', 'drained'", 0},
	{"another version", "'older', 'half'", -1},
	{"a reservation", "'bucket', 'waits'", -1},
	{"cost 0", "'bucket', 'half', 0", 0},
	{"cost -1", "'bucket', 'half', -1", 0},
	{"no cost", "'bucket', 'half', null", 0},
	{"an empty key", "'bucket', ''", 0},
	{"an empty key, the shared bucket drained", "'shared', ''", 0},
	{"a long key", "'bucket', repeat('k', 513)", 0},
	{"no limit", "'nothing', 'half'", 0},
	{"null for a limit", "null, 'half'", 0},
}

// TestHints checks that dipwell.take gives the same answers and writes the same
// rows, each once, whatever hint the session's previous calls left.
func TestHints(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, `select dipwell.define('bucket', 1, interval '1 day', burst => 9), dipwell.define('older', 1, interval '1 day', burst => 8),
		dipwell.define('window', 9, interval '1 day', algorithm => 'fixed_window', start => '0s'),
		dipwell.define('fast', 999983, interval '1 second', burst => 9000000),
		dipwell.define('day', 9, interval '1 day', algorithm => 'fixed_window', start => '06:00 Europe/Rome'),
		dipwell.define('shared', 1, interval '1 day'),
		dipwell.define('shadow', 1, interval '1 day', burst => 9, mode => 'shadow')`)
	must(t, pool, "select dipwell.take(l, 'half', 5), dipwell.take(l, 'drained', 8), dipwell.take(l, 'drained', 1) from unnest('{bucket,older,window,fast,shadow}'::text[]) l")
	must(t, pool, "select dipwell.define('older', 1, interval '1 day', burst => 9), dipwell.reserve('bucket', 'waits', 12), dipwell.take('shared')")
	for _, c := range hintedCalls {
		var want string
		var when []time.Time
		for i, hint := range hints {
			inTx(t, pool, func(tx pgx.Tx) {
				got, at := callThrice(t, tx, hint, c.args, c.write)
				if i == 0 {
					want, when = got, at
				}
				if got != want {
					t.Errorf("%s after %q: %s, not %s", c.name, hint, got, want)
				}
				for i := range at {
					if off := at[i].Sub(when[i]).Abs(); len(at) != len(when) || off > time.Minute {
						t.Errorf("%s after %q: at %v, not %v", c.name, hint, at, when)
						break
					}
				}
			})
		}
	}
}

// callThrice makes a call three times. It returns the answers and the rows
// afterwards, and the times in the answers.
func callThrice(t *testing.T, tx pgx.Tx, hint, args string, write int) (out string, at []time.Time) {
	t.Helper()
	must(t, tx, "select set_config('dipwell.read_first', '"+hint+"', true)")
	for range 3 {
		in, again := rowWrites(t, tx)
		var allowed bool
		var answer string
		var retry, reset *time.Time
		err := pgx.BeginFunc(t.Context(), tx, func(inner pgx.Tx) error {
			return inner.QueryRow(t.Context(), `select allowed, row(allowed, remaining, granted, delay, never, reservation)::text,
				clock_timestamp() + retry_after, clock_timestamp() + reset_after from dipwell.take(`+args+")").Scan(&allowed, &answer, &retry, &reset)
		})
		out += fmt.Sprint(answer, err)
		if retry == nil {
			retry = new(time.Time)
		}
		if reset == nil {
			reset = new(time.Time)
		}
		at = append(at, *retry, *reset)
		wrote := 0
		if allowed {
			wrote = write
		}
		if in2, again2 := rowWrites(t, tx); write >= 0 && in2-in+again2-again != wrote {
			t.Errorf("%s after %q: %d rows inserted and %d written again", args, hint, in2-in, again2-again)
		}
	}
	var rows string
	if err := tx.QueryRow(context.Background(), "select coalesce(string_agg(row(b.limit_id, b.key, b.used / l.unit, b.version)::text, ' ' order by b.limit_id, b.key), '') from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return out + rows, at
}

// TestHintsChange checks that a session notes refusals and new keys, and clears
// the note at the next charge.
func TestHintsChange(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('x', 1, interval '1 day', burst => 100), dipwell.define('day', 100, interval '1 day', algorithm => 'fixed_window', start => '0s'), dipwell.take('x', 'full', 100), dipwell.take('x', 'k'), dipwell.take('day', 'k')")
	inTx(t, pool, func(tx pgx.Tx) {
		must(t, tx, "select set_config('dipwell.read_first', '', false)")
		for i, c := range []struct{ args, hint string }{
			{"'x', 'k'", ""}, {"'x', 'full'", "r"}, {"'x', 'full'", "rr"}, {"'x', 'k'", ""},
			{"'x', 'a'", "n"}, {"'x', 'b'", "new"}, {"'x', 'c'", "new"}, {"'x', 'full'", "r"}, {"'x', 'd'", "n"}, {"'x', 'e'", "new"}, {"'x', 'k'", ""},
			{"'day', 'k'", "r"}, {"'day', 'k'", "r"}, {"'x', 'k'", ""},
			{"'x', 'full'", "r"}, {"'x', 'full'", "rr"}, {"'x', 'full'", "rrr"}, {"'x', 'full'", "rrrr"},
		} {
			var hint string
			if err := tx.QueryRow(t.Context(), "select current_setting('dipwell.read_first') from dipwell.take("+c.args+")").Scan(&hint); err != nil || hint != c.hint {
				t.Errorf("%d: after %s: %q, not %q, %v", i, c.args, hint, c.hint, err)
			}
		}
		must(t, tx, "select dipwell.take('x', 'full') from generate_series(1, 9)")
		var hint string
		if err := tx.QueryRow(t.Context(), "select current_setting('dipwell.read_first')").Scan(&hint); err != nil || hint != "refused" {
			t.Errorf("after many refusals: %q, %v", hint, err)
		}
	})
}
