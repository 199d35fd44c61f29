package redisstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

var verbs = []string{"take", "check", "take_up_to", "reserve", "charge", "refund", "reset"}

// goldenRule is a rule in the form of the vectors.
type goldenRule struct {
	Unit, Every, Add, Cap, Origin, Burst, Debt, Most int64
	MaxCharge                                        int64 `json:"max_charge"`
	MaxUsed                                          int64 `json:"max_used"`
	Leaky                                            bool
}

func (r *goldenRule) rule() store.Rule {
	out := store.Rule{Unit: r.Unit, Every: r.Every, Add: r.Add, Cap: r.Cap, Origin: r.Origin, Burst: r.Burst, Debt: r.Debt,
		Most: r.Most, MaxCharge: r.MaxCharge, MaxUsed: r.MaxUsed, Leaky: r.Leaky}
	out.Enough = algebra.QuoUp(out.MaxUsed, out.Add)
	return out
}

// vector is a line of testdata/golden/apply.jsonl.
type vector struct {
	Rule                goldenRule
	Used, TS, Now, Cost int64
	Verb                string
	Want                struct {
		Allowed, Never                                    bool
		Granted, Used, TS, Retry, Delay, Remaining, Reset int64
	}
}

// TestGolden checks the rows that scripts leave, and the answers computed from
// their replies, against the golden vectors.
func TestGolden(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../testdata/golden/apply.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	ctx, db := context.Background(), client(t)
	var clock atomic.Int64
	s := newStore(t, db, redisstore.Config{Clock: clock.Load, Poll: -1})
	n := 0
	for line := range bytes.Lines(b) {
		var v vector
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		n++
		if v.Used == 0 && max(v.TS, 0) > v.Now {
			continue // Redis has no full rows, so that such a row has no time
		}
		d := limittest.Definition(store.Limit{Name: fmt.Sprint("golden", n), Rate: 1, Period: time.Second})
		d.Rule = v.Rule.rule()
		row := s.InstallDefinition(d, "k")
		found := fmt.Sprintf("%d %d 1", v.Used, v.TS)
		if err := db.Set(ctx, row, found, 0).Err(); err != nil {
			t.Fatal(err)
		}
		clock.Store(v.Now)
		batch := store.Batch{Groups: []store.Group{{ID: store.Reservation{byte(n), byte(n >> 8), 1},
			Ops: []store.Op{{Def: d, Key: "k", Verb: store.Verb(slices.Index(verbs, v.Verb)), Cost: v.Cost}}}}}
		if err := s.Apply(ctx, &batch); err != nil || batch.Groups[0].Err != nil {
			t.Fatalf("line %d: %v, %v\n%s", n, err, batch.Groups[0].Err, line)
		}
		a, w := batch.Groups[0].Ops[0].Answer, v.Want
		if a.Allowed != w.Allowed || a.Never != w.Never || a.Granted != w.Granted || a.Retry != w.Retry || a.Delay != w.Delay || a.Remaining != w.Remaining || a.Reset != w.Reset {
			t.Errorf("line %d: answered %+v\n%s", n, a, line)
		}
		want := ""
		switch before := d.Rule.Used(store.State{Used: v.Used, TS: v.TS}, v.Now); {
		case v.Verb == "reset":
		case w.Used == before: // nothing was charged
			want = found
		case w.Used > 0:
			want = fmt.Sprintf("%d %d 1", w.Used, w.TS)
			if w.Delay > 0 && v.Verb != "check" { // it has a record
				want += " 0 0"
			}
		}
		got := db.Get(ctx, row).Val()
		if words := strings.Fields(got); len(words) > 5 {
			got = strings.Join(words[:5], " ") // without its lows
		}
		if got != want {
			t.Errorf("line %d: the row is %q, not %q\n%s", n, got, want, line)
		}
	}
	if n < 400 {
		t.Errorf("only %d vectors", n)
	}
}
