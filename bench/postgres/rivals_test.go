package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"testing"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/internal/pgtest"
)

// The rivals must take a token if there is one, and refuse if there is none.
func TestRivalsLimit(t *testing.T) {
	b, ctx := testBench(t), context.Background()
	r, err := b.newRivals(ctx, rivalsDB, "unlogged", 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	want := [4]bool{true, true, false, false}
	take := func(c contender) (ok [4]bool) {
		s, err := c.open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for i := range ok {
			if ok[i], err = s.Take(ctx, load.Key(0)); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		return ok
	}
	if got := take(r.cron()); got != want {
		t.Errorf("(a) with two tokens: %v", got)
	}
	withoutRefill := contender{name: procName, open: r.oneStatement("select proc.take($1, 0, 2)", serializable)}
	if got := take(withoutRefill); got != want {
		t.Errorf("(b) with two tokens: %v", got)
	}
	for _, c := range []contender{r.tx(), r.counter()} { // from a billion tokens
		if got := take(c); got != [4]bool{true, true, true, true} {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if n, err := query(ctx, r.dsn, "select n from counter.buckets"); n != "4" || err != nil {
		t.Errorf("the counter is at %s, %v", n, err)
	}
}

// Tests the arithmetic of design (c), which is in Go.
func TestRefilled(t *testing.T) {
	for _, c := range []struct {
		tokens  float64
		since   int64
		want    float64
		allowed bool
	}{{2, 0, 1, true}, {1, 0, 0, true}, {0.5, 0, 0.5, false}, {0, 10_000, 2, true}, {burst, 1e6, burst - 1, true}, {1, -1e6, 0, true}} {
		row := binary.BigEndian.AppendUint64(nil, math.Float64bits(c.tokens))
		row = binary.BigEndian.AppendUint64(row, 1e15)
		if got, allowed := refilled(row, 1e15+c.since); got != c.want || allowed != c.allowed {
			t.Errorf("%v tokens after %d µs: %v, %v", c.tokens, c.since, got, allowed)
		}
	}
}

// A refill adds tokens, at most up to the burst.
func TestRefill(t *testing.T) {
	b, ctx := testBench(t), context.Background()
	for _, c := range []struct{ tokens, want int }{{0, 300}, {burst - 1, burst}, {burst, burst}} {
		r, err := b.newRivals(ctx, rivalsDB, "logged", 1, c.tokens)
		if err != nil {
			t.Fatal(err)
		}
		err = withConn(ctx, r.dsn, func(c *conn) error { return c.once(ctx, sqlFile("cron_refill.sql")) })
		if err != nil {
			t.Fatal(err)
		}
		if got, err := query(ctx, r.dsn, "select tokens from cron.buckets"); err != nil || got != strconv.Itoa(c.want) {
			t.Errorf("%d tokens after a refill: %s, %v; want %d", c.tokens, got, err, c.want)
		}
	}
}

// The recorded statement is the only one that a call sends, and it charges.
func TestRecordedStatement(t *testing.T) {
	b, ctx := testBench(t), context.Background()
	w, err := b.newSchema(ctx, fastDB, "unlogged")
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	s, err := w.statement().open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	written := func() string {
		ts, err := query(ctx, w.dsn, "select b.ts from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id where l.name = '"+apiLimit+"' and b.key = '"+load.Key(0)+"'")
		if err != nil {
			t.Fatal(err)
		}
		return ts
	}
	before := written()
	if ok, err := s.Take(ctx, load.Key(0)); !ok || err != nil {
		t.Errorf("the statement admits: %v, %v", ok, err)
	}
	if after := written(); after == before {
		t.Errorf("the statement left the row of %s as it was", after)
	}
}

func testBench(t *testing.T) *bench {
	s, err := pgtest.New()
	if errors.Is(err, pgtest.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &bench{keys: 10, lanes: 1, admin: s.DSN("postgres")}
}
