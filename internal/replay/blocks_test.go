package replay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// A refusal begins a block, which lasts from then on, however often the key asks.
func TestBlocks(t *testing.T) {
	log := `time,user
2026-03-14 09:00:00,a
2026-03-14 09:00:00.1,a
2026-03-14 09:00:02,a
2026-03-14 09:00:03,b
2026-03-14 09:00:31,a
2026-03-14 10:00:00.1,a
`
	got, rep := decisions(t, inMemory([]byte(log)), Options{Limits: limits(t, "login=2/1s,burst=1,block=1h"), By: "user"})
	want := `{"line":2,"t_us":1773478800000000,"limit":"login","key":"a","allowed":true,"remaining":0,"retry_after_us":null}
{"line":3,"t_us":1773478800100000,"limit":"login","key":"a","allowed":false,"remaining":0,"retry_after_us":3600000000}
{"line":4,"t_us":1773478802000000,"limit":"login","key":"a","allowed":false,"remaining":1,"retry_after_us":3598100000}
{"line":5,"t_us":1773478803000000,"limit":"login","key":"b","allowed":true,"remaining":0,"retry_after_us":null}
{"line":6,"t_us":1773478831000000,"limit":"login","key":"a","allowed":false,"remaining":1,"retry_after_us":3569100000}
{"line":7,"t_us":1773482400100000,"limit":"login","key":"a","allowed":true,"remaining":0,"retry_after_us":null}
`
	if got != want {
		t.Error(firstDifference(got, want))
	}
	if l := rep.Limits[0]; l.Refused != 3 || l.LongestWait != 3600e6 {
		t.Errorf("%+v", l)
	}
}

// The decisions of limits with blocks are those of a Limiter that is asked at the same
// times, also if keys are forgotten.
func TestBlocksEqualTheLimiter(t *testing.T) {
	ls := limits(t, "all=90/1m,burst=40,shared=true", "user=6/1m,parent=all,burst=3,block=90s", "quota=20/10m,algorithm=fixed_window,block=5m", "free=9/1m,burst=4")
	r := rand.New(rand.NewPCG(1, 2))
	var log strings.Builder
	log.WriteString("time,user,n\n")
	type request struct {
		at   time.Time
		user string
		n    int64
	}
	var list []request
	at := time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)
	for i := range 4000 {
		at = at.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
		q := request{at, fmt.Sprint("u", i/80-r.IntN(4)), 1 + r.Int64N(3)}
		list = append(list, q)
		fmt.Fprintf(&log, "%s,%s,%d\n", at.Format(time.RFC3339Nano), q.user, q.n)
	}
	for _, all := range []bool{false, true} {
		o := Options{Limits: ls, By: "user", Cost: "n", All: all}
		text, _ := decisions(t, inMemory([]byte(log.String())), o)
		o.MaxKeys = 8
		again, rep := decisions(t, inMemory([]byte(log.String())), o)
		if again != text {
			t.Errorf("all %v: with forgotten keys, the decisions differ: %s", all, firstDifference(again, text))
		}
		if rep.Forgotten == 0 {
			t.Errorf("all %v: no key was forgotten", all)
		}
		var now int64
		s, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		now = list[0].at.UnixMicro()
		l, err := dipwell.New(s, ls...)
		if err != nil {
			t.Fatal(err)
		}
		got, blocked := parseDecisions(t, text), 0
		for i, q := range list {
			now = q.at.UnixMicro()
			groups := [][]dipwell.Take{{{Limit: "user", Key: q.user, Cost: q.n}}, {{Limit: "quota", Key: q.user, Cost: q.n}}, {{Limit: "free", Key: q.user, Cost: q.n}}}
			if all {
				groups = [][]dipwell.Take{{groups[0][0], groups[1][0], groups[2][0]}}
			}
			for _, takes := range groups {
				d, err := l.TakeAll(context.Background(), takes...)
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range d.Limits {
					g := got[0]
					for at := range got[:4] {
						if got[at].Limit == x.Limit {
							g = got[at]
						}
					}
					retry := int64(0)
					if g.Retry != nil {
						retry = *g.Retry
					}
					if g.Allowed != d.Allowed || g.Remaining != x.Remaining || retry != x.RetryAfter.Microseconds() {
						t.Fatalf("all %v, request %d %+v, %s: %+v; the limiter: %v %+v", all, i, q, x.Limit, g, d.Allowed, x)
					}
					if x.Definition.Mode == store.Blocked {
						blocked++
					}
				}
			}
			got = got[4:]
		}
		if len(got) != 0 || blocked < 100 {
			t.Errorf("all %v: %d decisions are left, %d were of blocked keys", all, len(got), blocked)
		}
	}
}

// A block that has ended is not kept for ever.
func TestEndedBlocksAreForgotten(t *testing.T) {
	l, err := newLineup(&Options{Limits: limits(t, "login=2/1s,burst=1,block=1m"), By: "user"})
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(l, &Options{MaxKeys: 100})
	for i := range int64(20_000) {
		if err := e.decide(&record{T: 1_773_478_800e6 + i*400e3, Key: fmt.Append(nil, "k", i/2), Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	blocks := 0
	for _, row := range e.tables[0].rows {
		if row.Override != nil {
			blocks++
		}
	}
	if table := e.tables[0]; blocks < 75 || blocks > 400 || len(table.keys) > 400 || table.forgotten == 0 {
		t.Errorf("%d blocks and %d keys are kept", blocks, len(table.keys))
	}
}

// The page shows blocks too.
func TestPlayBlocks(t *testing.T) {
	run, err := Play(PlaySettings{Limit: "x=1/1s,burst=2,block=10s", Verb: "take", Cost: 1, Span: "13s", Pattern: "steady", Every: "500ms"})
	if err != nil {
		t.Fatal(err)
	}
	if c := run.Calls[3]; run.Allowed != 6 || c.Allowed || c.Retry != 10e6 {
		t.Errorf("%d of %d calls allowed, the fourth %+v", run.Allowed, len(run.Calls), c)
	}
}
