package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/testdata/golden"
)

// TestExpressions checks that expressions about a row, with columns and with numbers as
// operands, have the values that Go computes.
func TestExpressions(t *testing.T) {
	pool, err := pgxpool.New(context.Background(), pgtest.Database(t, "empty", func(string) error { return nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	n := rand.New(rand.NewPCG(limittest.NewSeed(t), 1))
	var rules []store.Rule
	for _, l := range golden.Limits {
		if r := limittest.Definition(l).Rule; r.Every > 0 {
			rules = append(rules, r)
		}
	}
	for len(rules) < 80 {
		l := store.Limit{Name: "any", Algorithm: store.Algorithm(n.IntN(3)), Rate: 1 + n.Int64N(1<<n.IntN(53)), Period: time.Duration(1000) << n.IntN(43), Burst: n.Int64N(1 << n.IntN(53))} //nolint:gosec // an algorithm
		if d, err := store.NewDefinition(l); err == nil {
			rules = append(rules, d.Rule)
		}
	}
	var rows []string
	var wants []string
	for range 3000 {
		r := &rules[n.IntN(len(rules))]
		row, want := drawn(n, r)
		rows, wants = append(rows, row), append(wants, want)
	}
	found, err := pool.Query(context.Background(), strings.Join(rows, " union all\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	i := 0
	for ; found.Next(); i++ {
		var got string
		if err := found.Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != wants[i] {
			t.Fatalf("%s, not %s: %s", got, wants[i], rows[i])
		}
	}
	if found.Err() != nil || i != len(wants) {
		t.Fatalf("%d rows of %d: %v", i, len(wants), found.Err())
	}
}

// drawn returns a query for all expressions about a row of a rule, and their values.
func drawn(n *rand.Rand, r *store.Rule) (query, want string) {
	one := func(of ...int64) int64 { return of[n.IntN(len(of))] }
	near := func(x int64) int64 { return min(max(x+n.Int64N(5)-2, 0), store.MaxInt) }
	enough := algebra.QuoUp(r.MaxUsed, r.Add)
	used := min(one(0, near(r.Unit), r.Cap, near(r.Cap), near(r.Cap-r.Unit), n.Int64N(r.Cap+r.Debt+1), r.MaxUsed), r.MaxUsed, store.MaxInt-r.Add)
	units := min(algebra.UnitsOf(one(0, 1, 2, near(r.Burst), 1+n.Int64N(r.Burst+1)), r.Unit), r.Cap)
	ts := 1767225600e6 + n.Int64N(200e6)
	now := ts + one(0, near(r.Every), n.Int64N(min(used/r.Add+1, store.MaxInt/r.Every/4)*r.Every+1), -1-n.Int64N(1e9), n.Int64N(2e6))
	if n.IntN(12) == 0 {
		ts, now = n.Int64N(20e6), -n.Int64N(30e6)
	}
	origin, low := n.Int64N(r.Every), n.Int64N(r.MaxUsed+1)

	grid := strconv.FormatInt(gridOf(origin, r.Every), 10)
	operand := grid
	if n.IntN(2) == 0 {
		operand = "q.grid"
	}
	ticks := ticksSQL(r, "q.n", operand)
	exprs := []string{
		ticks, ticksOnceSQL(r, "q.n", operand), leftSQL(r, ticks),
		leftAfterSQL(ticks, "q.add", "q.enough"), fitsSQL(r, ticks, fmt.Sprintf("%d - q.units", r.Cap)),
		lowSQL(leftSQL(r, ticks)),
	}
	query = fmt.Sprintf("select concat_ws(' ', (%s)::text) from (select %d::bigint as used, %d::bigint as ts, %d::bigint as low) b cross join (select %d::bigint as n, %s::bigint as grid, %d::bigint as units, %d::bigint as add, %d::bigint as enough) q",
		strings.Join(exprs, ")::text, ("), used, ts, low, now, grid, units, r.Add, enough)

	passed := algebra.TicksUpTo(ts, max(now, ts), origin, r.Every)
	left := algebra.LeftAfter(used, passed, r.Add, enough)
	fits := left <= r.Cap-units
	return query, fmt.Sprintf("%d %d %d %d %t %d", passed, passed, left, left, fits, low-max(low-left, 0))
}
