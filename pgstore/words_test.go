package pgstore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// TestKeyOfAnotherType checks that a key that is not text is an error that says what to write.
func TestKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('signup', 5, interval '1 minute')")
	for key, want := range map[string]string{
		"7":                             "key: has type integer, but a key is text; write user_id::text",
		"null::bigint":                  "key: has type bigint, but a key is text; write user_id::text",
		"gen_random_uuid()":             "key: has type uuid, but a key is text; write user_id::text",
		"inet '192.0.2.1'":              "key: has type inet, but a key is text; write host(address)",
		"key => 7":                      "key: has type integer, but a key is text; write user_id::text",
		"key => 7, cost => 2":           "key: has type integer, but a key is text; write user_id::text",
		"key => timestamptz 'epoch'":    "key: has type timestamp with time zone, but a key is text; write user_id::text",
		"jsonb '{\"user\": 7}'->'user'": "key: has type jsonb, but a key is text; write user_id::text",
	} {
		calls := []string{"take('signup', %s)", "check('signup', %s)", "hold('signup', %s, cost => 1, ttl => interval '1 minute')", "override('signup', %s, burst => 9)"}
		if key == "key => 7, cost => 2" {
			calls = calls[:2]
		}
		for _, call := range calls {
			sql := "select dipwell." + fmt.Sprintf(call, key)
			_, err := pool.Exec(t.Context(), sql)
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != "22023" || pg.Message != want || pg.ConstraintName != "key" {
				t.Errorf("%s: %v; want %s", sql, err, want)
			}
		}
	}
}

// TestPartsOfKey checks that the key of a part without a value is an error for a limit
// without parents too, which does not look at the parts of its keys.
func TestPartsOfKey(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('signup', 5, interval '1 minute'), dipwell.define('all', 5, interval '1 minute', shared => true)")
	for _, parts := range []string{"''", "null", "'acme', ''", "'acme', null", "null, 'u7'"} {
		for _, limit := range []string{"signup", "all"} {
			_, err := pool.Exec(t.Context(), fmt.Sprintf("select dipwell.take('%s', dipwell.key(%s))", limit, parts))
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Message != "key: is empty" {
				t.Errorf("%s: key(%s): %v", limit, parts, err)
			}
		}
	}
	var key string
	if err := pool.QueryRow(t.Context(), "select dipwell.key('acme', 'a/b', '50%')").Scan(&key); err != nil || key != "acme/a%2Fb/50%25" {
		t.Error(key, err)
	}
}

// TestKeyOfUnknownType checks that a key that can be text is text, in a literal and in
// parameters of the types that drivers send: unknown (node-postgres, psycopg 3), varchar
// (JDBC), text and name. (psycopg 2 writes literals.)
func TestKeyOfUnknownType(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('signup', 99, interval '1 minute'); select dipwell.define('all', 99, interval '1 minute', shared => true)")
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	query := func(sql string, oid uint32, params ...string) {
		t.Helper()
		var values [][]byte
		var types []uint32
		for _, p := range params {
			values, types = append(values, []byte(p)), append(types, oid)
		}
		if res := conn.Conn().PgConn().ExecParams(t.Context(), "select allowed from dipwell."+sql, values, types, nil, nil).Read(); res.Err != nil {
			t.Errorf("%s, parameters of type %d: %v", sql, oid, res.Err)
		} else if got := string(res.Rows[0][0]); got != "t" {
			t.Errorf("%s, parameters of type %d: allowed is %s", sql, oid, got)
		}
	}
	for _, sql := range []string{
		"take('signup', 'x')", "take('signup', 'x', 1)", "take('signup', 'x', '1')", "take('signup', key => 'x')", "take('signup', key => 'x', plan => null)",
		"take('signup', 'x'::varchar)", "take('signup', 'x'::name)", "take('signup', 7::text)", "take('signup', (select 'x'))", "take('signup', case when true then 'x' end)",
		"take('all')", "take('all', null)", "take('all', null, 1)", "take('all', cost => 1)", "take(limit_name => 'all')",
		"check('signup', 'x')", "check('all', null)", "hold('signup', 'x', 1, '1 minute')", "hold('all', null, 1, ttl => '1 minute')",
	} {
		query(sql, 0)
	}
	for _, oid := range []uint32{0, pgtype.TextOID, pgtype.VarcharOID, pgtype.NameOID, pgtype.UnknownOID} {
		query("take('signup', $1)", oid, "y")
		query("take($1, $2)", oid, "signup", "y")
		query("check($1, $2)", oid, "signup", "y")
	}
	query("take($1, $2, $3)", 0, "signup", "y", "1")
	query("check($1, $2, $3, floor => $4)", 0, "signup", "y", "1", "1")
	query("hold($1, $2, $3, $4)", 0, "signup", "y", "1", "1 minute")
	must(t, pool, "select dipwell.override('signup', 'x', burst => 9); select dipwell.override('all', null, burst => 9); select dipwell.override('all', burst => 9)")
	var keys string
	if err := pool.QueryRow(t.Context(), "select string_agg(concat(limit_name, ' ', key), ', ' order by limit_name, key) from dipwell.status").Scan(&keys); err != nil || keys != "all , signup 7, signup x, signup y" {
		t.Errorf("keys %q, %v", keys, err)
	}
}

// TestDefineUnknownAlgorithm checks that define names the algorithms, and the one meant.
func TestDefineUnknownAlgorithm(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	const known = " is not one of token_bucket, fixed_window, interval, leaky_bucket, concurrency, sliding_window"
	for word, want := range map[string]string{
		"fixed-window": "limit day: algorithm: \"fixed-window\"" + known + "; did you mean fixed_window?",
		"Token Bucket": "limit day: algorithm: \"Token Bucket\"" + known + "; did you mean token_bucket?",
		"gcra":         "limit day: algorithm: \"gcra\"" + known,
		"":             "limit day: algorithm: \"\"" + known,
	} {
		_, err := pool.Exec(t.Context(), "select dipwell.define('day', 5, interval '1 day', algorithm => '"+word+"')")
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Message != want || pg.ConstraintName != "algorithm" {
			t.Errorf("%q: %v; want %s", word, err, want)
		}
	}
}
