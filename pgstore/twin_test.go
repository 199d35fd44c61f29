package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
	vectors "github.com/dipwell/dipwell/testdata/golden"
)

const compileSQL = `select r.unit, r.every, r.add, r.cap, r.origin, r.burst, r.debt, r.most, r.max_charge, r.max_used, r.leaky, r.spread,
    r.months, r.days, r.clock, r.zone
from dipwell_internal.compile(jsonb_populate_record(null::dipwell.limits, jsonb_build_object('name', $1::text, 'algorithm', $2::text, 'rate', $3::bigint,
    'burst', $4::bigint, 'max_debt', $5::bigint, 'max_charge', $6::bigint, 'start', $7::text, 'on_change', 'keep', 'mode', 'enforce',
    'lease_us', $9::bigint, 'shards', $10::bigint, 'adaptive', nullif($11::text, ''))), $8::bigint) r`

// TestCompileTwin checks that SQL compiles every limit to the same numbers as
// Go, or rejects it with the same message.
func TestCompileTwin(t *testing.T) {
	pool := newPool(t)
	count := rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 1e6), rapid.Int64Range(1, store.MaxInt))
	optional := rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(-1)), count)
	period := rapid.OneOf(
		rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, 10 * time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour,
			30 * 24 * time.Hour, store.Month, 3 * store.Month, 5 * store.Month, 12 * store.Month, 24 * store.Month, 10 * 12 * store.Month}),
		rapid.Map(rapid.Int64Range(1, 1e15), func(us int64) time.Duration { return time.Duration(us) * time.Microsecond }))
	rapid.Check(t, func(t *rapid.T) {
		l := store.Limit{
			Name:      rapid.SampledFrom([]string{"login", "a b", ""}).Draw(t, "name"),
			Algorithm: store.Algorithm(rapid.IntRange(0, 3).Draw(t, "algorithm")),
			Rate:      count.Draw(t, "rate"),
			Period:    period.Draw(t, "period"),
			Burst:     optional.Draw(t, "burst"),
			MaxDebt:   rapid.OneOf(optional, rapid.Just(int64(-2))).Draw(t, "debt"),
			MaxCharge: max(0, optional.Draw(t, "charge")),
			Start: rapid.SampledFrom([]string{"", "", "0s", "1h30m", "90d", "06:00 Europe/Rome", "23:59:59 UTC", "24:00 UTC", "noon", "06:00 Mars",
				"17 00:00 UTC", "31 06:00 Europe/Rome", "0 00:00 UTC", "32 00:00 UTC", "05-17 00:00 UTC", "2-29 12:30 UTC", "02-30 00:00 UTC", "13-1 00:00 UTC",
				"17 00:00", "17 00:00 Mars", "2w", "14 days", "1.5 hours", "a b c"}).Draw(t, "start"),
		}
		if rapid.Bool().Draw(t, "small") {
			l.Burst %= 100
		}
		if rapid.Bool().Draw(t, "sharded") {
			l.Shards = rapid.Int64Range(0, 65).Draw(t, "shards")
			if rapid.Bool().Draw(t, "fit") {
				l.MaxDebt, l.Burst = 0, max(l.Burst, 2*l.Shards)
			}
		}
		if rapid.Bool().Draw(t, "leased") {
			l.Lease = time.Duration(rapid.OneOf(rapid.Int64Range(1, 2e6), rapid.Int64Range(10_000, 100_000)).Draw(t, "lease")) * time.Microsecond
			if rapid.Bool().Draw(t, "bucket") {
				l.Algorithm, l.Start = store.TokenBucket, ""
			}
		}
		if rapid.IntRange(0, 3).Draw(t, "adaptive") == 0 {
			ratio := rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, 1001))
			l.Adaptive = store.Adaptive{
				Floor:    l.Rate / ratio.Draw(t, "floor"),
				Latency:  rapid.SampledFrom([]time.Duration{0, time.Microsecond, time.Second, 2 * time.Hour}).Draw(t, "latency"),
				Quantile: rapid.SampledFrom([]float64{0, 0.4, 0.5, 0.999999}).Draw(t, "quantile"),
				Errors:   rapid.SampledFrom([]float64{0, 0.000001, 0.5, 0.6}).Draw(t, "errors"),
				Window:   rapid.SampledFrom([]time.Duration{0, 0, 99 * time.Millisecond, 100 * time.Millisecond, time.Hour}).Draw(t, "window"),
			}
			if rapid.Bool().Draw(t, "bucket") {
				l.Algorithm, l.Start, l.Lease, l.Shards, l.MaxDebt = store.TokenBucket, "", 0, 0, store.NoDebt
			}
		}
		compareCompile(t, pool, l)
	})
}

func compareCompile(t rapid.TB, pool *pgxpool.Pool, l store.Limit) {
	var want store.Rule
	d, wantErr := store.NewDefinition(l)
	if wantErr == nil {
		want = d.Rule
	}
	var got store.Rule
	var cal terms.CalendarSpec
	period := int64(l.Period)
	if period > 0 {
		period = l.Period.Microseconds()
	}
	err := pool.QueryRow(context.Background(), compileSQL, l.Name, l.Algorithm.String(), l.Rate,
		setting(l.Burst), setting(l.MaxDebt), setting(l.MaxCharge), l.Start, period, l.Lease.Microseconds(), setting(l.Shards), l.Adaptive.String()).Scan(
		&got.Unit, &got.Every, &got.Add, &got.Cap, &got.Origin, &got.Burst, &got.Debt, &got.Most, &got.MaxCharge, &got.MaxUsed, &got.Leaky, &got.Spread,
		&cal.Months, &cal.Days, &cal.Clock, &cal.Zone)
	var pg *pgconn.PgError
	switch {
	case wantErr == nil && err == nil:
		if g, w := fmt.Sprint(got.Unit, got.Every, got.Add, got.Cap, got.Origin, got.Burst, got.Debt, got.Most, got.MaxCharge, got.MaxUsed, got.Leaky, got.Spread, cal),
			fmt.Sprint(want.Unit, want.Every, want.Add, want.Cap, want.Origin, want.Burst, want.Debt, want.Most, want.MaxCharge, want.MaxUsed, want.Leaky, want.Spread, want.Calendar.Spec()); g != w {
			t.Fatalf("%+v: SQL %s, Go %s", l, g, w)
		}
	case wantErr != nil && (l.Lease != 0 || l.Adaptive != store.Adaptive{}): // only Go defines such a limit
	case wantErr == nil || !errors.As(err, &pg):
		t.Fatalf("%+v: SQL %v, Go %v", l, err, wantErr)
	case pg.Message != wantErr.Error() && !strings.Contains(wantErr.Error(), "max_debt: "):
		t.Fatalf("%+v: SQL says %s, Go says %v", l, pg.Message, wantErr)
	}
}

const compilePlanSQL = `with d as (select jsonb_populate_record(null::dipwell.limits, jsonb_build_object('name', $1::text, 'algorithm', $2::text, 'rate', $3::bigint,
    'per', dipwell_internal.format_per($8::bigint), 'burst', $4::bigint, 'max_debt', $5::bigint, 'max_charge', $6::bigint, 'start', $7::text, 'on_change', 'keep',
    'mode', 'enforce')) as l)
select r.unit, r.every, r.add, r.cap, r.origin, r.burst, r.debt, r.most, r.max_charge, r.max_used, r.leaky, r.spread
from d cross join lateral dipwell_internal.compile(l, $8::bigint) base
cross join lateral dipwell_internal.compile_variant(l, base, 1, 'pro', $9::bigint, $10::bigint, $11::bigint, $12::bigint) r`

// TestPlanTwin checks that SQL compiles every plan to the same numbers as Go, or rejects
// it with the same message.
func TestPlanTwin(t *testing.T) {
	pool := newPool(t)
	count := rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 1e6), rapid.Int64Range(1, store.MaxInt))
	optional := rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(0)), rapid.Just(int64(-1)), count)
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.SampledFrom(vectors.Limits).Draw(t, "limit")
		p := store.Plan{
			Name:    "pro",
			Rate:    max(0, optional.Draw(t, "rate")),
			Period:  rapid.SampledFrom([]time.Duration{0, 0, 0, l.Period, time.Microsecond, time.Second, 7 * time.Second, time.Hour, 30 * 24 * time.Hour}).Draw(t, "period"),
			Burst:   optional.Draw(t, "burst"),
			MaxDebt: rapid.OneOf(optional, rapid.Just(int64(store.UnlimitedDebt))).Draw(t, "debt"),
		}
		l.Plans = store.NewPlans(p)
		comparePlan(t, pool, l, p)
	})
}

func comparePlan(t rapid.TB, pool *pgxpool.Pool, l store.Limit, p store.Plan) {
	var want, got store.Rule
	d, wantErr := store.NewDefinition(l)
	if wantErr == nil {
		want = d.WithPlan("pro").Rule
	}
	var rate, period *int64
	if p.Rate != 0 {
		rate = &p.Rate
	}
	if us := p.Period.Microseconds(); us != 0 {
		period = &us
	}
	err := pool.QueryRow(context.Background(), compilePlanSQL, l.Name, l.Algorithm.String(), l.Rate,
		setting(l.Burst), setting(l.MaxDebt), setting(l.MaxCharge), l.Start, l.Period.Microseconds(), rate, period, setting(p.Burst), setting(p.MaxDebt)).Scan(
		&got.Unit, &got.Every, &got.Add, &got.Cap, &got.Origin, &got.Burst, &got.Debt, &got.Most, &got.MaxCharge, &got.MaxUsed, &got.Leaky, &got.Spread)
	var pg *pgconn.PgError
	switch {
	case wantErr == nil && err == nil:
		if g, w := fmt.Sprint(got.Unit, got.Every, got.Add, got.Cap, got.Origin, got.Burst, got.Debt, got.Most, got.MaxCharge, got.MaxUsed, got.Leaky, got.Spread),
			fmt.Sprint(want.Unit, want.Every, want.Add, want.Cap, want.Origin, want.Burst, want.Debt, want.Most, want.MaxCharge, want.MaxUsed, want.Leaky, want.Spread); g != w {
			t.Fatalf("%+v: SQL %s, Go %s", l, g, w)
		}
	case wantErr != nil && (l.Lease != 0 || l.Adaptive != store.Adaptive{}): // only Go defines such a limit
	case wantErr == nil || !errors.As(err, &pg):
		t.Fatalf("%+v: SQL %v, Go %v", l, err, wantErr)
	case pg.Message != wantErr.Error() && !strings.Contains(wantErr.Error(), "max_debt: "):
		t.Fatalf("%+v: SQL says %s, Go says %v", l, pg.Message, wantErr)
	}
}

// setting converts a field whose zero is the default to a column whose null is.
func setting(n int64) *int64 {
	switch n {
	case 0:
		return nil
	case store.NoBurst:
		n = 0
	case store.UnlimitedDebt:
		n = -1
	}
	return &n
}

// TestZones checks that Go and SQL compute the same day boundaries in every
// zone, from 2020 to 2040: for a time of day skipped in spring, one repeated in
// autumn, and midnight. Days on which the server has other time zone data are
// skipped.
func TestZones(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	rows, err := pool.Query(ctx, "select name from pg_timezone_names where name !~ '^(posix|right|posixrules|localtime|Factory)' order by name")
	if err != nil {
		t.Fatal(err)
	}
	zones, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(zones) < 300 {
		t.Fatalf("%d zones, %v", len(zones), err)
	}
	from := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	to := time.Date(2041, 1, 1, 0, 0, 0, 0, time.UTC)
	compared, apart := 0, map[string]bool{}
	for _, zone := range zones {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			continue
		}
		changes := changesOf(loc, from, to)
		for _, clock := range []string{"00:00", "02:30", "01:15:30"} {
			def, err := store.NewDefinition(store.Limit{Name: "day", Algorithm: store.FixedWindow, Rate: 1, Period: 24 * time.Hour, Start: clock + " " + zone})
			if err != nil {
				t.Fatal(err)
			}
			rule := &def.Rule
			var days, want []int64
			for _, at := range changes {
				for day := -1; day <= 1; day++ {
					start, _ := rule.Window(at.AddDate(0, 0, day).UnixMicro())
					y, m, d := time.UnixMicro(start).In(loc).Date()
					days, want = append(days, time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix()/86400), append(want, start)
				}
			}
			got, err := boundaries(ctx, pool, rule.Calendar.Spec(), days)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if got[i] != want[i] && otherClocks(ctx, t, pool, loc, got[i], want[i]) {
					apart[zone] = true
				} else if got[i] != want[i] {
					t.Errorf("%s %s: SQL has %v, Go %v", clock, zone, time.UnixMicro(got[i]).In(loc), time.UnixMicro(want[i]).In(loc))
					break
				}
			}
			compared += len(want)
		}
	}
	if compared < 10000 || len(apart) > len(zones)/20 {
		t.Errorf("%d boundaries were compared, and in %d zones the server knows other clocks", compared, len(apart))
	}
}

// otherClocks reports whether the server has another offset for a zone than
// this program around some times, in µs.
func otherClocks(ctx context.Context, t testing.TB, pool *pgxpool.Pool, loc *time.Location, instants ...int64) bool {
	t.Helper()
	for _, at := range instants {
		for x := at/1e6 - 7200; x <= at/1e6+7200; x += 1800 {
			var ahead int
			if err := pool.QueryRow(ctx, "select dipwell_internal.zone_offset($1, $2)", loc.String(), x).Scan(&ahead); err != nil {
				t.Fatal(err)
			}
			if _, here := time.Unix(x, 0).In(loc).Zone(); here != ahead {
				return true
			}
		}
	}
	return false
}

// changesOf returns the times at which a zone's offset changes, and one more
// per year.
func changesOf(loc *time.Location, from, to time.Time) (out []time.Time) {
	for t := from; t.Before(to); t = t.AddDate(1, 0, 0) {
		out = append(out, t)
	}
	for t := from.In(loc); ; {
		_, end := t.ZoneBounds()
		if end.IsZero() || !end.After(t) || end.After(to) { // does not move past the 366th day of a late year
			return out
		}
		out, t = append(out, end), end
	}
}

// boundaries returns the start of each of these days according to SQL.
func boundaries(ctx context.Context, pool *pgxpool.Pool, cal terms.CalendarSpec, days []int64) ([]int64, error) {
	rows, err := pool.Query(ctx, `with r as (select row(0, 0, 0, '', 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, false, false, false, $1::bigint, $2::bigint, $3::bigint, $4::text, '', '', null)::dipwell.versions as r)
		select dipwell_internal.calendar_boundary(r, k) from r, unnest($5::bigint[]) with ordinality u(k, i) order by i`,
		cal.Months, cal.Days, cal.Clock, cal.Zone, days)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
