package redisstore_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/testdata/golden"
)

// giveVector is a line of giveback.jsonl. Its members are explained in
// golden_giveback_test.go of package store.
type giveVector struct {
	Versions []struct {
		Rule   goldenRule
		Since  int64
		Policy string
	}
	Row                           giveRow
	Records                       []giveRecord
	Now, Cost, Number, Mark, Ends int64
	Do                            string
	Want                          struct {
		Allowed bool
		Row     giveRow
		Records []giveRecord
	}
}

type giveRow struct {
	Used, TS   int64
	Version    uint32
	Mark, Next int64
	Lows       [][2]int64
}

type giveRecord struct {
	Number, Mark, Units, Unit, Slack int64
	Due, Ends                        int64
	Rest                             bool
}

// give is a vector in Redis.
type give struct {
	*testing.T
	*giveVector
	db    redis.UniversalClient
	s     *redisstore.Store
	def   *store.Definition
	names [2]string // of the row and the hash of its records
}

// TestGoldenGiveBack checks the rows, lists and records that scripts leave
// against the golden vectors.
func TestGoldenGiveBack(t *testing.T) {
	t.Parallel()
	db := client(t)
	var clock atomic.Int64
	prefix := fmt.Sprint("give", prefixes.Add(1))
	s := newStore(t, db, redisstore.Config{Clock: clock.Load, Poll: -1, Prefix: prefix})
	n, done := 0, 0
	for line := range bytes.Lines(golden.GiveBack) {
		v := new(giveVector)
		if err := json.Unmarshal(line, v); err != nil {
			t.Fatal(err)
		}
		n++
		name := fmt.Sprint("golden", n)
		g := &give{t, v, db, s, v.definition(name), [2]string{}}
		for i, kind := range []string{":", ".records:"} {
			g.names[i] = prefix + kind + name + ":{k}"
		}
		s.InstallDefinition(g.def, "k")
		clock.Store(v.Now)
		g.store()
		if v.notInRedis() {
			continue
		}
		done++
		if allowed := g.do(); allowed != v.Want.Allowed && v.Do != "give_back" {
			t.Errorf("allowed: %v", allowed)
		}
		g.compare()
		if t.Failed() {
			t.Fatalf("line %d: %s", n, line)
		}
	}
	if t.Logf("%d of %d vectors", done, n); done < 600 {
		t.Errorf("only %d of %d vectors", done, n)
	}
}

// notInRedis reports whether a vector cannot occur in Redis: a call that only
// settles; a take of a leaky bucket without a record; a cancellation of what a reset has ended. Also, what the list does not
// know gives nothing back, and the row is not read.
func (v *giveVector) notInRedis() bool {
	return v.Do == "settle" || v.Do == "take" && v.Versions[len(v.Versions)-1].Rule.Leaky || v.Do == "give_back" && (v.Mark != v.Row.Mark || v.Row.Lows == nil || v.reset())
}

// reset reports whether a change after the row's version ends its records.
func (v *giveVector) reset() bool {
	for _, x := range v.Versions[v.Row.Version:] {
		if x.Policy == "reset" {
			return true
		}
	}
	return false
}

func (v *giveVector) definition(name string) *store.Definition {
	d := limittest.Definition(store.Limit{Name: name, Rate: 1, Period: time.Second})
	for i, x := range v.Versions {
		n := &store.Version{Number: uint32(i + 1), Since: x.Since, Rule: x.Rule.rule()}
		var l store.Limit
		_ = l.Set("on_change", x.Policy)
		n.Policy = l.OnChange
		if d.Number, d.Since, d.Rule, d.Policy = n.Number, n.Since, n.Rule, n.Policy; i < len(v.Versions)-1 {
			d.Past = append(d.Past, n)
		}
	}
	return d
}

// joinWords formats values with spaces between them.
func joinWords(list ...any) string {
	return strings.Join(strings.Fields(strings.NewReplacer("[", " ", "]", " ").Replace(fmt.Sprintln(list...))), " ")
}

func idOf(number, mark int64) (id store.Reservation) {
	binary.BigEndian.PutUint64(id[:], uint64(number))
	binary.BigEndian.PutUint64(id[8:], uint64(mark))
	return id
}

// store writes the row and its records as the scripts expect them.
func (g *give) store() {
	r := &g.Row
	if r.Version == 0 {
		return
	}
	row := fmt.Sprintf("%d %d %d", r.Used, r.TS, r.Version)
	pipe := g.db.Pipeline()
	if r.Lows != nil {
		row = joinWords(row, 0, 0, r.Mark, r.Next, r.Lows)
		for _, x := range g.Records {
			if x.Mark == r.Mark {
				g.storeRecord(pipe, &x)
			}
		}
	}
	pipe.Set(g.Context(), g.names[0], row, 0)
	if _, err := pipe.Exec(g.Context()); err != nil {
		g.Fatal(err)
	}
}

func (g *give) storeRecord(pipe redis.Pipeliner, x *giveRecord) {
	id, slack := idOf(x.Number, x.Mark).String(), x.Slack
	if x.Rest {
		slack = -2
	}
	d, _ := json.Marshal([]map[string]any{{"limit": g.def.Name, "key": "k", "units": x.Units, "version": g.def.Number}})
	pipe.Set(g.Context(), strings.Replace(g.names[0], ":"+g.def.Name+":{k}", ".reservation:"+id, 1), d, 0)
	pipe.HSet(g.Context(), g.names[1], id, joinWords(x.Number, x.Mark, slack, x.Units, x.Due, x.Ends, x.Unit, 0))
}

// do makes the call of a vector. A reservation that ends later than its part
// gets a second part, of a limit with just that delay.
func (g *give) do() bool {
	group := store.Group{Cancel: g.Do == "give_back", ID: idOf(g.Number, g.Mark)}
	if !group.Cancel {
		op := store.Op{Def: g.def, Key: "k", Cost: g.Cost}
		for op.Verb.String() != g.Do {
			op.Verb++
		}
		group.ID = idOf(1<<40, g.Mark-g.Now)
		group.Ops = append(group.Ops, op)
	}
	if g.Ends > g.Now {
		late := limittest.Definition(store.Limit{Name: g.def.Name + "late", Rate: 1, Period: time.Second})
		late.Rule = store.Rule{Unit: g.Ends - g.Now, Every: 1, Add: 1, Debt: g.Ends - g.Now, Most: 1, MaxUsed: store.MaxInt}
		late.Rule.Enough = algebra.QuoUp(late.Rule.MaxUsed, late.Rule.Add)
		g.s.InstallDefinition(late, "k")
		group.Ops = append(group.Ops, store.Op{Def: late, Key: "k", Verb: store.VerbReserve, Cost: 1})
	}
	b := store.Batch{Groups: []store.Group{group}}
	if err := g.s.Apply(g.Context(), &b); err != nil || b.Groups[0].Err != nil {
		g.Fatalf("%v, %v\n%+v", err, b.Groups[0].Err, g.giveVector)
	}
	return b.Groups[0].Allowed
}

// compare checks what the call has left: the row, its list, and the records of
// the list that can still be cancelled or give something back.
func (g *give) compare() {
	want := &g.Want.Row
	row := ""
	if want.Used > 0 {
		row = fmt.Sprintf("%d %d %d", want.Used, want.TS, want.Version)
	}
	fields := map[string]string{}
	if want.Lows != nil {
		row = joinWords(row, "0 0", want.Mark, want.Next, want.Lows)
		fields = g.db.HGetAll(g.Context(), g.names[1]).Val()
	}
	if got := g.db.Get(g.Context(), g.names[0]).Val(); got != row {
		g.Errorf("the row is %q, not %q", got, row)
	}
	if want.Lows == nil {
		return
	}
	var got, wanted []string
	spent := g.deletedRecords()
	for _, text := range fields {
		f := strings.Fields(text)
		if f[1] == fmt.Sprint(want.Mark) && (f[2] != "-2" || g.Do == "give_back" && !spent[f[0]]) {
			got = append(got, text)
		}
	}
	for _, x := range g.Want.Records {
		slack := x.Slack
		if x.Rest {
			slack = -2
		}
		if x.Mark == want.Mark && (!x.Rest || g.Do == "give_back" && !spent[fmt.Sprint(x.Number)]) {
			wanted = append(wanted, joinWords(x.Number, x.Mark, slack, x.Units, x.Due, x.Ends, x.Unit, 0))
		}
	}
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		g.Errorf("the records are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

// deletedRecords returns the cancelled records that the vector keeps although
// nothing can come back of them, because newer records have all that is left.
// Redis deletes them earlier.
func (g *give) deletedRecords() map[string]bool {
	numbers, low, newer := map[string]bool{}, -1, int64(0)
	for _, x := range slices.Backward(g.Want.Records) {
		if !x.Rest || x.Mark != g.Want.Row.Mark {
			continue
		}
		at := -1
		for i, e := range g.Want.Row.Lows {
			if e[0] <= x.Number {
				at = i
			}
		}
		if at != low {
			low, newer = at, 0
		}
		if at < 0 || newer >= g.Want.Row.Lows[at][1] {
			numbers[fmt.Sprint(x.Number)] = true
		} else {
			newer += x.Units
		}
	}
	return numbers
}

// TestCancelledRecordsAreForgotten checks that cancelled reservations of a
// bucket on which somebody always waits are deleted once nothing can come back
// of them, and that as much comes back of the others as in a store that keeps
// them all.
func TestCancelledRecordsAreForgotten(t *testing.T) {
	t.Parallel()
	db := client(t)
	for _, burst := range []int64{1, 3, 10, 40} { // what waiting reservations can spare
		t.Run(fmt.Sprint("burst ", burst), func(t *testing.T) {
			const most = 200
			random := rand.New(rand.NewPCG(limittest.NewSeed(t), uint64(burst)))
			prefix := fmt.Sprint("forgotten", prefixes.Add(1))
			now := int64(1_800_000_000_000_000)
			clock := func() int64 { return now }
			limit := store.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: burst, MaxDebt: 20}
			memory, err := memstore.New(memstore.Config{Clock: clock})
			if err != nil {
				t.Fatal(err)
			}
			defer memory.Close()
			both := []*dipwell.Limiter{limiter(t, newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1, Clock: clock}), limit), limiter(t, memory, limit)}
			var waiting [][2]store.Reservation
			cancelled, due := 0, int64(0) // of the newest reservation, which is never cancelled
			for step := range rounds(1000) {
				var answers [2]string
				cost, at := random.Int64N(3)+1, random.IntN(max(1, len(waiting)))
				cancel := at < len(waiting)-1 && random.IntN(3) > 0
				var made [2]store.Reservation
				for i, l := range both {
					if cancel {
						answers[i] = fmt.Sprint(l.Cancel(t.Context(), waiting[at][i]))
					} else {
						d, err := l.Reserve(t.Context(), "a", "k", cost)
						if made[i] = d.Reservation; d.Allowed {
							due = now + d.Delay.Microseconds()
						}
						answers[i] = fmt.Sprint(d.Allowed, d.Delay, d.Remaining, d.RetryAfter, d.ResetAfter, err)
					}
				}
				if answers[0] != answers[1] {
					t.Fatalf("step %d: %s, and in memory %s", step, answers[0], answers[1])
				}
				switch {
				case cancel:
					waiting = slices.Delete(waiting, at, at+1)
					if answers[0] == "<nil>" {
						cancelled++
					}
				case made[0] != store.Reservation{}:
					waiting = append(waiting, made)
				default: // the queue is full
					now += random.Int64N(max(1, due-now))
					waiting = waiting[max(0, len(waiting)-15):]
				}
			}
			records := db.HLen(t.Context(), prefix+".records:a:{k}").Val()
			if records > most || cancelled < 200 {
				t.Errorf("%d records after %d cancellations; at most %d", records, cancelled, most)
			}
		})
	}
}
