package recipes

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

var nine = time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)

// TestAlgebraRules computes the rules in docs/explanation/algebra.md.
func TestAlgebraRules(t *testing.T) {
	out := row("limit", "every (µs)", "add", "unit", "cap") + rule(5)
	for _, text := range []string{
		"demo=5/10s",
		"login=5/1m,burst=20",
		"api=100/1s,burst=200",
		"traffic=1073741824/1d",
		"day=1000/1d,algorithm=fixed_window,start=0s",
		"steps=5/10s,burst=20,algorithm=interval,start=0s",
	} {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		d, err := store.NewDefinition(l)
		if err != nil {
			t.Fatal(err)
		}
		r := &d.Rule
		out += row("`"+text+"`", commas(r.Every), commas(r.Add), commas(r.Unit), commas(r.Cap))
	}
	checkTable(t, "explanation/algebra.md", "rules", out)
}

// TestAlgebraCalls computes the calls in docs/explanation/algebra.md: what a row
// holds before and after each.
func TestAlgebraCalls(t *testing.T) {
	d, err := store.NewDefinition(dipwell.Limit{Name: "demo", Rate: 5, Period: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := &d.Rule
	out := row("call", "used at that instant", "used after", "ts after", "remaining", "answer") + rule(6)
	var s store.State
	for _, c := range []struct {
		at   time.Duration
		verb store.Verb
		n    int64
	}{
		{0, store.VerbTake, 3},
		{3 * time.Second, store.VerbTake, 2},
		{4 * time.Second, store.VerbTake, 3},
		{6 * time.Second, store.VerbTake, 3},
		{5 * time.Second, store.VerbCheck, 1}, // the clock was set back
		{8 * time.Second, store.VerbReserve, 2},
		{9 * time.Second, store.VerbCharge, 1},
		{10 * time.Second, store.VerbRefund, 1},
		{30 * time.Second, store.VerbCheck, 5},
	} {
		now := nine.Add(c.at).UnixMicro()
		before := r.Used(s, now)
		o := store.Op{Def: d, Verb: c.verb, Cost: c.n}
		next, write, err := o.Step(now, s, false)
		if err != nil {
			t.Fatal(err)
		}
		answer := "allowed"
		switch {
		case !o.Allowed:
			answer = "refused, retry after " + micros(o.Retry)
		case o.Delay > 0:
			answer += ", delay " + micros(o.Delay)
		}
		if write {
			s = next
		}
		out += row(fmt.Sprintf("%s %v %d", nine.Add(c.at).Format("15:04:05"), c.verb, c.n), commas(before),
			commas(s.Used), time.UnixMicro(s.TS).UTC().Format("15:04:05"), strconv.FormatInt(o.Remaining, 10), answer)
	}
	checkTable(t, "explanation/algebra.md", "calls", out)
}

func micros(us int64) string { return (time.Duration(us) * time.Microsecond).String() }

// commas writes a number with a comma after each thousand.
func commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
