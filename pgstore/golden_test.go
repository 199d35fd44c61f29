package pgstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

// golden reads a file of vectors as a JSON array.
func golden(t *testing.T, name string) []json.RawMessage {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "testdata", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	var lines []json.RawMessage
	for line := range bytes.Lines(b) {
		lines = append(lines, bytes.TrimSpace(line))
	}
	return lines
}

// ruleOf is an SQL expression for a rule in a JSON object.
const ruleOf = `jsonb_populate_record(row(0, 0, 0, 'keep', 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, false, false, false, 0, 0, 0, '', '', '', null)::dipwell.versions, `

// mismatches runs a query over all vectors and reports each whose result
// differs in SQL.
func mismatches(t *testing.T, pool *pgxpool.Pool, vectors []json.RawMessage, query string) {
	t.Helper()
	all, err := json.Marshal(vectors)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(context.Background(), "with v as (select i, x from jsonb_array_elements($1::jsonb) with ordinality v(x, i)) "+query, string(all))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	shown := 0
	for rows.Next() {
		var i int
		var got string
		if err = rows.Scan(&i, &got); err != nil {
			t.Fatal(err)
		}
		if shown++; shown <= 5 {
			t.Errorf("line %d: SQL has %s\n%s", i, got, vectors[i-1])
		}
	}
	if err = rows.Err(); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 400 {
		t.Errorf("only %d vectors", len(vectors))
	}
}

// TestGolden checks the algebra in PL/pgSQL against the golden vectors.
func TestGolden(t *testing.T) {
	pool := newPool(t)
	t.Run("apply", func(t *testing.T) {
		mismatches(t, pool, golden(t, "apply.jsonl"), `
select i, got::text from v
cross join lateral (select `+ruleOf+`x->'rule') as r, (x->>'now')::bigint as n) a
cross join lateral dipwell_internal.step(r, (x->>'used')::bigint, (x->>'ts')::bigint, n,
    array_position(array['take', 'check', 'take_up_to', 'reserve', 'charge', 'refund', 'reset'], x->>'verb') - 1, (x->>'cost')::bigint, null, 0) s
cross join lateral (select jsonb_build_object('allowed', s.allowed, 'never', s.never, 'granted', s.granted, 'used', s.after, 'ts', s.t,
    'retry', s.retry, 'delay', s.delay, 'remaining', greatest(0, ((r).cap - s.after) / (r).unit),
    'reset', case s.after when 0 then 0 else dipwell_internal.wait(r, s.after, s.t, n) end) as got) g
where got is distinct from x->'want' order by i`)
	})
	t.Run("sliding", func(t *testing.T) {
		mismatches(t, pool, golden(t, "sliding.jsonl"), `
select i, got::text from v
cross join lateral (select `+ruleOf+`x->'rule') as r, (x->>'now')::bigint as n) a
cross join lateral dipwell_internal.step(r, (x->>'used')::bigint, (x->>'ts')::bigint, n,
    array_position(array['take', 'check', 'take_up_to', 'reserve', 'charge', 'refund', 'reset'], x->>'verb') - 1, (x->>'cost')::bigint, null, 0) s
cross join lateral (select jsonb_build_object('allowed', s.allowed, 'never', s.never, 'granted', s.granted, 'used', s.after, 'ts', s.t,
    'retry', s.retry, 'delay', s.delay, 'remaining', greatest(0, (r).cap - dipwell_internal.counted(r, s.after, s.t, false)),
    'reset', case s.after when 0 then 0 else dipwell_internal.wait(r, s.after, s.t, n) end) as got) g
where got is distinct from x->'want' order by i`)
	})
	t.Run("carry", func(t *testing.T) {
		vectors := golden(t, "carry.jsonl")
		must(t, pool, "alter table dipwell.versions drop constraint versions_limit_id_fkey")
		all, err := json.Marshal(vectors)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = pool.Exec(context.Background(), `insert into dipwell.versions
select (`+ruleOf+`y->'rule' || jsonb_build_object('limit_id', i, 'number', n, 'since', y->'since', 'policy', y->'policy', 'settings', '{}'))).*
from jsonb_array_elements($1::jsonb) with ordinality v(x, i), jsonb_array_elements(x->'versions') with ordinality w(y, n)`, string(all)); err != nil {
			t.Fatal(err)
		}
		mismatches(t, pool, vectors, `
select i, concat(c.used, ' at ', c.ts) from v
cross join lateral (select jsonb_array_length(x->'versions') as present, (x->>'version')::int as version) p
cross join lateral (select jsonb_populate_record(null::dipwell.limits, jsonb_build_object('id', i, 'name', 'carry', 'version', present)) as l) l
cross join lateral dipwell_internal.carry(l, null, 'k', version, present, 0, (x->>'used')::bigint, (x->>'ts')::bigint) c
where c.used is distinct from (x->>'want_used')::bigint or c.ts is distinct from (x->>'want_ts')::bigint order by i`)
	})
	t.Run("origin", func(t *testing.T) {
		mismatches(t, pool, golden(t, "origin.jsonl"), `
select i, origin::text from v
cross join lateral (select (dipwell_internal.spread(`+ruleOf+`jsonb_build_object('spread', true, 'every', x->'period')), x->>'name', x->>'key')).origin) o
where origin is distinct from (x->>'origin')::bigint order by i`)
	})
	t.Run("calendar", func(t *testing.T) {
		vectors := golden(t, "calendar.jsonl")
		for i := range vectors {
			vectors[i] = withCalendar(t, vectors[i])
		}
		mismatches(t, pool, vectors, `
select i, concat(starts, ' to ', ends) from v
cross join lateral (select `+ruleOf+`x->'rule') as r) a
cross join lateral dipwell_internal.tick(r, (x->>'now')::bigint) k
cross join lateral (select dipwell_internal.calendar_boundary(r, k) as starts, dipwell_internal.calendar_boundary(r, k + 1) as ends) b
where starts is distinct from (x->>'from')::bigint or ends is distinct from (x->>'to')::bigint order by i`)
	})
}

// withCalendar adds the SQL form of a calendar to a vector.
func withCalendar(t *testing.T, vector json.RawMessage) json.RawMessage {
	t.Helper()
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(vector))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	period, err := period.Parse(v["per"].(string))
	if err != nil {
		t.Fatal(err)
	}
	r := limittest.Definition(store.Limit{Name: "c", Algorithm: store.FixedWindow, Rate: 1, Period: period, Start: v["start"].(string)}).Rule
	c := r.Calendar.Spec()
	v["rule"] = map[string]any{"every": 0, "months": c.Months, "days": c.Days, "clock": c.Clock, "zone": c.Zone}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
