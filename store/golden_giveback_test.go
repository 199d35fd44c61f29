package store_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/testdata/golden"
)

// giveVector is a line of giveback.jsonl: a row and its records, a call, and
// the row and records afterwards.
type giveVector struct {
	Versions []goldenVersion `json:"versions"`
	Row      goldenRow       `json:"row"`
	Records  []goldenRecord  `json:"records"` // in the order of their numbers
	Now      int64           `json:"now"`
	// "settle" for Definition.Advance; "give_back" of record Number with Mark; or a
	// verb with Cost. A verb first advances a row that has lows, and stores nothing
	// if it writes nothing. With Ends it makes a record, and a list that it begins
	// has Mark.
	Do     string `json:"do"`
	Cost   int64  `json:"cost"`
	Number int64  `json:"number"`
	Mark   int64  `json:"mark"`
	Ends   int64  `json:"ends"`
	Want   struct {
		Allowed bool           `json:"allowed"`
		Row     goldenRow      `json:"row"`
		Records []goldenRecord `json:"records"`
	} `json:"want"`
}

type goldenVersion struct {
	Rule   goldenRule `json:"rule"`
	Since  int64      `json:"since"`
	Policy string     `json:"policy"`
}

type goldenRow struct {
	Used    int64      `json:"used"`
	TS      int64      `json:"ts"`
	Version uint32     `json:"version"` // from 1; 0: no row
	Mark    int64      `json:"mark"`
	Next    int64      `json:"next"`
	Lows    [][2]int64 `json:"lows"` // number, used; null: none
}

type goldenRecord struct {
	Number  int64  `json:"number"`
	Mark    int64  `json:"mark"`
	Units   int64  `json:"units"`
	Unit    int64  `json:"unit"`
	Slack   int64  `json:"slack"`
	Due     int64  `json:"due"`
	Ends    int64  `json:"ends"`
	Rest    bool   `json:"rest"`
	Hold    string `json:"hold,omitempty"`
	Expires int64  `json:"expires,omitempty"`
}

func goldenRowOf(s store.State) goldenRow {
	r := goldenRow{Used: s.Used, TS: s.TS, Version: s.Version}
	if s.Lows != nil {
		r.Mark, r.Next = s.Lows.Mark, s.Lows.Next
		for _, e := range s.Lows.Entries {
			r.Lows = append(r.Lows, [2]int64{e.Number, e.Used})
		}
	}
	return r
}

func (r *goldenRow) state() store.State {
	s := store.State{Used: r.Used, TS: r.TS, Version: r.Version}
	if len(r.Lows) > 0 {
		s.Lows = &store.Lows{Mark: r.Mark, Next: r.Next}
		for _, e := range r.Lows {
			s.Lows.Entries = append(s.Lows.Entries, store.Low{Number: e[0], Used: e[1]})
		}
	}
	return s
}

func goldenRecordsOf(rs []store.Record) []goldenRecord {
	out := []goldenRecord{}
	for _, r := range rs {
		out = append(out, goldenRecord(r))
	}
	return out
}

func recordsOf(rs []goldenRecord) (out []store.Record) {
	for _, r := range rs {
		out = append(out, store.Record(r))
	}
	return out
}

// definitionOf returns a limit with some versions, the last of which is
// current.
func definitionOf(versions []goldenVersion) *store.Definition {
	d := &store.Definition{Limit: store.Limit{Name: "golden"}}
	for i, x := range versions {
		n := &store.Version{Number: uint32(i + 1), Since: x.Since, Rule: x.Rule.rule(), Policy: policyOf(x.Policy)}
		if i < len(versions)-1 {
			d.Past = append(d.Past, n)
		} else {
			d.Number, d.Since, d.Rule, d.Policy = n.Number, n.Since, n.Rule, n.Policy
		}
	}
	return d
}

func (v *giveVector) fill(t *testing.T) {
	d, row, rs, err := definitionOf(v.Versions), v.Row.state(), recordsOf(v.Records), error(nil)
	switch v.Do {
	case "settle":
		row, rs, err = d.Advance(row, "k", v.Now, rs)
	case "give_back":
		row, rs, err = d.GiveBack(row, "k", v.Now, rs, v.Number, v.Mark)
	default:
		row, rs, err = v.step(d, row, rs)
	}
	if err != nil {
		t.Fatal(err)
	}
	if row.Used == 0 && row.Lows != nil {
		t.Fatalf("a full row with a list: %+v", v)
	}
	v.Want.Row, v.Want.Records = goldenRowOf(row), goldenRecordsOf(rs)
}

func (v *giveVector) step(d *store.Definition, row store.State, rs []store.Record) (store.State, []store.Record, error) {
	op, next, settled, err := store.Op{Def: d, Key: "k", Verb: verbOf(v.Do), Cost: v.Cost}, row, slices.Clone(rs), error(nil)
	if row.Lows != nil {
		if next, settled, err = d.Advance(row, "k", v.Now, settled); err != nil {
			return row, rs, err
		}
	}
	next, write, err := op.Step(v.Now, next, false)
	if v.Want.Allowed = op.Allowed; err != nil || !write {
		return row, rs, err
	}
	if v.Ends > 0 && op.Granted > 0 {
		var id store.Reservation
		binary.BigEndian.PutUint64(id[8:], uint64(v.Mark-v.Now))
		v.Ends = max(v.Ends, v.Now+op.Delay)
		settled = append(settled, op.Record(&next, id, v.Now, v.Ends))
	}
	return next, settled, nil
}

// giveVectors returns the steps of random histories of one key.
func giveVectors(t *testing.T) (lines []any) {
	rnd := rand.New(rand.NewPCG(4, 4))
	for range 80 {
		lines = append(lines, giveHistory(t, rnd, 12+rnd.IntN(10), 2, 70)...)
	}
	for range 2 { // with more records than a row has lows
		lines = append(lines, giveHistory(t, rnd, 60, 40, 1)...)
	}
	return lines
}

// giveHistory makes steps, the first of which only take, and returns those
// after the first few.
func giveHistory(t *testing.T, rnd *rand.Rand, steps, taking, changes int) (lines []any) {
	limits := slices.DeleteFunc(slices.Clone(golden.Limits), func(l store.Limit) bool {
		return changes == 1 && limittest.Definition(l).Rule.Burst < 50
	})
	now, row, rs := int64(1767225600e6), goldenRow{}, []goldenRecord{}
	var versions []goldenVersion
	define := func() {
		versions = append(versions, goldenVersion{goldenOf(limittest.Definition(limits[rnd.IntN(len(limits))]).Rule), now, store.ChangePolicy(rnd.IntN(3)).String()})
	}
	define()
	for i := range steps {
		r := versions[len(versions)-1].Rule
		if rnd.IntN(3) > 0 && (changes > 1 || i > taking) {
			now += 1 + rnd.Int64N(max(1, min(store.MaxInt/r.Every, 3*r.Unit/r.Add+3)*r.Every))
		}
		if i > taking && rnd.IntN(1000) < changes {
			define()
			r = versions[len(versions)-1].Rule
		}
		v := &giveVector{Versions: slices.Clone(versions), Row: row, Records: rs, Now: now, Mark: 1 + rnd.Int64N(1<<48-1)}
		v.draw(rnd, &r, i < taking, changes == 1)
		v.fill(t)
		if row, rs = v.Want.Row, v.Want.Records; row.Used == 0 {
			row = goldenRow{}
		}
		if i >= taking {
			lines = append(lines, v)
		}
	}
	return lines
}

func (v *giveVector) draw(rnd *rand.Rand, r *goldenRule, take, small bool) {
	v.Cost = 1 + rnd.Int64N(min(r.Burst, 1<<20)+2)
	if small {
		v.Cost = 1 + rnd.Int64N(2)
	}
	span := min(1<<40, 8*(r.Unit/r.Add+1)*r.Every)
	switch n := rnd.IntN(14); {
	case take || n < 4:
		v.Do, v.Ends = "reserve", v.Now+1+rnd.Int64N(span)
		if small {
			v.Ends = v.Now + 1<<40
		}
	case n == 4:
		v.Do = "take"
	case n == 5:
		v.Do, v.Cost = "charge", min(v.Cost, r.MaxCharge)
		if rnd.IntN(4) == 0 {
			v.Cost = r.MaxCharge
		}
	case n == 6:
		v.Do = "refund"
	case n == 7:
		v.Do, v.Cost = "settle", 0
	default:
		v.Do, v.Cost = "give_back", 0
		live := slices.DeleteFunc(slices.Clone(v.Records), func(x goldenRecord) bool { return x.Rest || x.Ends <= v.Now })
		if len(live) == 0 {
			v.Do = "take"
			v.Cost = 1
			return
		}
		x := live[rnd.IntN(len(live))]
		v.Number, v.Mark = x.Number, x.Mark
	}
}
