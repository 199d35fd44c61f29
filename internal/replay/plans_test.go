package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

// tree has limits as in a file: two of users, within tenants, within everybody, and a
// limit without parents.
func tree(t testing.TB) []dipwell.Limit {
	ls := limits(t, "all=40/1m,burst=60,shared=true", "tenant=12/1m,parent=all,burst=20", "user=6/1m,parent=tenant,burst=8", "day=30/1h,parent=tenant", "page=5/10s,algorithm=fixed_window,start=0s")
	ls[2].Plans = dipwell.NewPlans(dipwell.Plan{Name: "pro", Rate: 12, Burst: 30}, dipwell.Plan{Name: "staff", Mode: dipwell.Unlimited, OverrideOnly: true}, dipwell.Plan{Name: "banned", Mode: dipwell.Blocked})
	ls[4].Plans = dipwell.NewPlans(dipwell.Plan{Name: "pro", Rate: 9})
	return ls
}

type request struct {
	Time         int64 `json:"time"`
	Tenant, User string
	Tier         *string
	N            int64
}

// requests returns a log of requests, in JSON lines, in order.
func requests(n int) (list []request, log string) {
	r := rand.New(rand.NewPCG(5, 6))
	at := time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC).UnixMicro()
	var b strings.Builder
	for range n {
		at += r.Int64N(900_000)
		q := request{Time: at, Tenant: []string{"acme", "a/b", "50%"}[r.IntN(3)], User: []string{"ann", "bob", "c/d"}[r.IntN(3)], N: 1 + r.Int64N(3)}
		if tier := []string{"", "-", "pro", "banned", "none"}[r.IntN(5)]; tier != "none" {
			q.Tier = &tier
		}
		list = append(list, q)
		line, _ := json.Marshal(q)
		b.Write(append(line, '\n'))
	}
	return list, b.String()
}

// decided is a line of Decisions.
type decided struct {
	Line      int
	Limit     string
	Key       *string
	Plan      string
	Allowed   bool
	Remaining int64
	Retry     *int64 `json:"retry_after_us"`
}

func parseDecisions(t *testing.T, text string) (out []decided) {
	t.Helper()
	for line := range strings.Lines(text) {
		var d decided
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(line, err)
		}
		out = append(out, d)
	}
	return out
}

// The decisions of a log by limits with plans and parents are those of a Limiter that
// is asked at the same times.
func TestPlansAndParentsEqualTheLimiter(t *testing.T) {
	list, log := requests(3000)
	for _, all := range []bool{false, true} {
		o := Options{Limits: tree(t), By: "Tenant+User", Cost: "N", Plan: []string{"Tier"}, All: all}
		if !all { // a call of two children cannot choose two plans of their parent
			o.Limits[1].Plans = dipwell.NewPlans(dipwell.Plan{Name: "pro", Rate: 30, Burst: 45, Children: true}, dipwell.Plan{Name: "banned", Rate: 1})
		}
		text, rep := decisions(t, inMemory([]byte(log)), o)
		sorted := o
		sorted.SortRecords = 7
		if again, _ := decisions(t, Stream("pipe", strings.NewReader(log)), sorted); again != text {
			t.Errorf("all %v: sorted, the decisions differ: %s", all, firstDifference(again, text))
		}
		got := parseDecisions(t, text)
		var now int64
		var limiters []*dipwell.Limiter // for each limit one, if they are judged alone
		for range 3 {
			s, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			now = list[0].Time
			l, err := dipwell.New(s, o.Limits...)
			if err != nil {
				t.Fatal(err)
			}
			limiters = append(limiters, l)
		}
		ask := func(l *dipwell.Limiter, takes ...dipwell.Take) []dipwell.Decision {
			d, err := l.TakeAll(context.Background(), takes...)
			if err != nil {
				t.Fatal(err)
			}
			for i := range d.Limits {
				d.Limits[i].Allowed = d.Allowed
			}
			return d.Limits
		}
		for i, q := range list {
			now = q.Time
			key := dipwell.Key(q.Tenant, q.User)
			takes := []dipwell.Take{{Limit: "user", Key: key, Cost: q.N}, {Limit: "day", Key: key, Cost: q.N}, {Limit: "page", Key: key, Cost: q.N}}
			if q.Tier != nil && *q.Tier != "" && *q.Tier != "-" {
				if takes[0].Plan = *q.Tier; *q.Tier == "pro" {
					takes[2].Plan = *q.Tier
				}
			}
			var want []dipwell.Decision
			if all {
				ds := ask(limiters[0], takes...)
				want = []dipwell.Decision{ds[0], ds[3], ds[4], ds[1], ds[2]}
			} else {
				for k, take := range takes {
					want = append(want, ask(limiters[k], take)...)
				}
			}
			for k, w := range want {
				g := got[i*len(want)+k]
				key := ""
				if g.Key != nil {
					key = *g.Key
				}
				var retry *int64
				if us := w.RetryAfter.Microseconds(); !w.Allowed && !w.Never {
					retry = &us
				}
				if wantKey := strings.TrimPrefix(w.Key, dipwell.Shared); g.Line != i+1 || g.Limit != w.Limit || key != wantKey || g.Plan != w.Plan || g.Allowed != w.Allowed ||
					g.Remaining != w.Remaining || !reflect.DeepEqual(g.Retry, retry) {
					t.Fatalf("all %v, line %d: got %+v (%q), want %+v", all, i+1, g, key, w)
				}
			}
		}
		if rep.Requests != 3000 || len(rep.Limits) != len(got)/3000 || rep.Limits[1].ParentOf != "user" || len(rep.Limits[0].Plans) != 4 {
			t.Errorf("all %v: %+v", all, rep)
		}
	}
}

func TestWhere(t *testing.T) {
	combined := string(read(t, exampleLog))
	count := func(o Options, log string) (requests, filtered, malformed int64) {
		o.Limits = limits(t, "page=12/1m,burst=15,plans=slow:rate=1")
		rep, err := Run(context.Background(), inMemory([]byte(log)), o)
		if err != nil {
			t.Fatal(o.Where, err)
		}
		if rep.Requests+rep.Filtered+rep.Malformed != rep.Lines {
			t.Errorf("%v: %+v", o.Where, rep)
		}
		return rep.Requests, rep.Filtered, rep.Malformed
	}
	want := int64(strings.Count(combined, "\n198.51.100.23 "))
	if n, filtered, malformed := count(Options{Where: []string{"ip=198.51.100.23"}}, combined); n != want || filtered != 186-want || malformed != 1 {
		t.Errorf("%d requests, %d filtered, %d malformed; want %d requests", n, filtered, malformed, want)
	}
	if n, _, _ := count(Options{Where: []string{"ip~^198[.]51[.]100[.]23$", "status=999"}}, combined); n != 0 {
		t.Errorf("%d requests", n)
	}
	lines := `{"time":1773478800,"ip":"192.0.2.1","path":"/api/x","level":"info"}
{"time":1773478801,"ip":"192.0.2.1","path":null}
{"time":1773478802,"ip":"192.0.2.1"}
{"time":1773478803,"path":"/static"}
{"time":1773478804,"path":"/api/y"}
{"time":1773478805,"path":[1],"ip":"192.0.2.1"}
`
	if n, filtered, malformed := count(Options{Where: []string{"path~^/api/"}}, lines); n != 1 || filtered != 4 || malformed != 1 {
		t.Errorf("%d requests, %d filtered, %d malformed", n, filtered, malformed)
	}
	// A line counts whatever else in it is broken.
	broken := "192.0.2.1 - - [14/Mar/2026:09:00:00 +0000] \"GET /\" 200 1 \"-\" \"open\n"
	if n, filtered, malformed := count(Options{Where: []string{"ip=192.0.2.1"}, Plan: []string{"agent~bot:slow"}}, broken); n != 1 || filtered+malformed != 0 {
		t.Errorf("%d requests, %d filtered, %d malformed", n, filtered, malformed)
	}
	csv := "time;ip;path\n1773478800;192.0.2.1;/api\n1773478800;192.0.2.1;/x\n"
	if n, filtered, _ := count(Options{Where: []string{"path=/api"}}, csv); n != 1 || filtered != 1 {
		t.Errorf("%d requests, %d filtered", n, filtered)
	}
}

// The plan of a request: by the value of a field, by conditions, and without.
func TestPlanOfARequest(t *testing.T) {
	log := `{"time":1773478800,"user":"ann","tier":"pro"}
{"time":1773478800,"user":"ann","tier":"gold"}
{"time":1773478800,"user":"ann","tier":null}
{"time":1773478800,"user":"ann","tier":""}
{"time":1773478800,"user":"ann"}
{"time":1773478800,"user":"root","tier":"-"}
`
	for _, c := range []struct {
		plan []string
		want string // of the lines that count, the plan
		bad  string
	}{
		{[]string{"tier"}, "pro   ", `line 2: no limit has a plan "gold"; line 5: there is no tier in it`},
		{[]string{"field=tier"}, "pro   ", `line 2: no limit has a plan "gold"; line 5: there is no tier in it`},
		{[]string{"tier=pro"}, "pro     ", ""},
		{[]string{"user=root:staff", "tier=gold:pro"}, " pro    staff", ""},
		{[]string{"tier~.:pro", "shoe~.:staff"}, "pro pro    pro", ""},
		{[]string{"user~^a:pro", "user~.:staff"}, "pro pro pro pro pro staff", ""},
	} {
		o := Options{Limits: tree(t), Ask: []string{"user"}, By: "user+user", Plan: c.plan}
		text, rep := decisions(t, inMemory([]byte(log)), o)
		var plans, bad []string
		for _, d := range parseDecisions(t, text) {
			if d.Limit == "user" {
				plans = append(plans, d.Plan)
			}
		}
		for _, b := range rep.BadLines {
			bad = append(bad, fmt.Sprintf("line %d: %s", b.Line, b.Reason))
		}
		if got := strings.Join(plans, " "); got != c.want || strings.Join(bad, "; ") != c.bad {
			t.Errorf("%q: %q, %q; want %q", c.plan, got, bad, c.want)
		}
	}
}

func TestLineupIsChecked(t *testing.T) {
	log := inMemory([]byte("time,tenant,user\n2026-03-14T09:00:00Z,acme,ann\n"))
	jobs := dipwell.Limit{Name: "jobs", Algorithm: dipwell.Concurrency, Burst: 3}
	for _, c := range []struct {
		o    Options
		want string // of the error; or after "left ", of Report.NotJudged
	}{
		{Options{Limits: tree(t), By: "user"}, "left user: limit user has keys of 2 parts, as in tenant+user, and user makes 1"},
		{Options{Limits: tree(t), By: "user", Ask: []string{"user"}}, "by: limit user has keys of 2 parts, as in tenant+user, and user makes 1"},
		{Options{Limits: tree(t), By: "tenant", Ask: []string{"tenant"}}, ""},
		{Options{Limits: tree(t), By: "none", Ask: []string{"all"}}, ""},
		{Options{Limits: tree(t), By: "none", Ask: []string{"tenant"}}, "by: limit tenant has a bucket for each key; none is for limits with shared: true"},
		{Options{Limits: tree(t)[:1], By: "tenant"}, ""},
		{Options{Limits: tree(t)[4:], By: "none"}, "by: limit page has a bucket for each key; none is for limits with shared: true"},
		{Options{Limits: append(tree(t)[4:], tree(t)[0]), By: "none"}, "left page: limit page has a bucket for each key"},
		{Options{Limits: tree(t), By: "tenant", Ask: []string{"nobody"}}, "limit: nobody is given twice, or is not there"},
		{Options{Limits: append(tree(t), jobs), By: "tenant+user"}, "left jobs: jobs is a concurrency limit"},
		{Options{Limits: []dipwell.Limit{jobs}, By: "tenant"}, "limit: jobs is a concurrency limit"},
		{Options{Limits: tree(t)[1:], By: "tenant"}, "parent: there is no limit all"},
		{Options{Limits: tree(t), By: "tenant+"}, `by: "tenant+" is not a field`},
		{Options{Limits: tree(t), By: "tenant+none"}, `by: "tenant+none" is not a field`},
		{Options{Limits: tree(t), By: "tenant+shoe"}, `by: there is no column "shoe"`},
		{Options{Limits: tree(t), By: "tenant+user", Where: []string{"user"}}, `where: "user" is neither FIELD=VALUE nor FIELD~PATTERN`},
		{Options{Limits: tree(t), By: "tenant+user", Where: []string{"=x"}}, `where: "=x" is neither`},
		{Options{Limits: tree(t), By: "tenant+user", Where: []string{"user~("}}, `where: "user~(": error parsing regexp`},
		{Options{Limits: tree(t), By: "tenant+user", Where: []string{"shoe=1"}}, `where: there is no column "shoe"`},
		{Options{Limits: tree(t), By: "tenant+user", Plan: []string{"shoe"}}, `plan: there is no column "shoe"`},
		{Options{Limits: tree(t), By: "tenant+user", Plan: []string{"user=ann:gold"}}, `plan: user=ann:gold: no limit has a plan "gold"; they have banned, pro, staff`},
		{Options{Limits: tree(t), By: "tenant+user", Plan: []string{""}}, `plan: "" is neither`},
		{Options{Limits: tree(t), By: "tenant", Ask: []string{"tenant"}, Plan: []string{"tenant=acme:pro"}}, `no limit has a plan "pro"; they have none`},
	} {
		rep, err := Run(context.Background(), log, c.o)
		left, isLeft := strings.CutPrefix(c.want, "left ")
		switch {
		case isLeft || c.want == "":
			got := ""
			if err == nil && len(rep.NotJudged) > 0 {
				got = rep.NotJudged[0].Limit + ": " + rep.NotJudged[0].Reason
			}
			if err != nil || !strings.HasPrefix(got, left) {
				t.Errorf("by %s, ask %v: %v, not replayed %q; want %s", c.o.By, c.o.Ask, err, got, c.want)
			}
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("by %s, ask %v: got %v, want %s", c.o.By, c.o.Ask, err, c.want)
		}
	}
}
