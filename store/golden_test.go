package store_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/testdata/golden"
)

//go:generate go test -run TestGolden -update .

var update = flag.Bool("update", false, "write testdata/golden anew")

// A goldenRule is a rule in the form of SQL and Lua.
type goldenRule struct {
	Unit      int64 `json:"unit"`
	Every     int64 `json:"every"`
	Add       int64 `json:"add"`
	Cap       int64 `json:"cap"`
	Origin    int64 `json:"origin"`
	Burst     int64 `json:"burst"`
	Debt      int64 `json:"debt"`
	Most      int64 `json:"most"`
	MaxCharge int64 `json:"max_charge"`
	MaxUsed   int64 `json:"max_used"`
	Leaky     bool  `json:"leaky"`
	Sliding   bool  `json:"sliding,omitempty"`
}

func goldenOf(r store.Rule) goldenRule {
	return goldenRule{r.Unit, r.Every, r.Add, r.Cap, r.Origin, r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed, r.Leaky, r.Sliding}
}

func (g goldenRule) rule() store.Rule {
	r := store.Rule{Unit: g.Unit, Every: g.Every, Add: g.Add, Cap: g.Cap, Origin: g.Origin, Burst: g.Burst, Debt: g.Debt,
		Most: g.Most, MaxCharge: g.MaxCharge, MaxUsed: g.MaxUsed, Leaky: g.Leaky, Sliding: g.Sliding}
	r.Enough = algebra.QuoUp(r.MaxUsed, r.Add)
	return r
}

// applyVector is a line of apply.jsonl: one step of a row, and its answer.
type applyVector struct {
	Rule goldenRule `json:"rule"`
	Used int64      `json:"used"`
	TS   int64      `json:"ts"`
	Now  int64      `json:"now"`
	Verb string     `json:"verb"`
	Cost int64      `json:"cost"`
	Want struct {
		Allowed   bool  `json:"allowed"`
		Never     bool  `json:"never"`
		Granted   int64 `json:"granted"`
		Used      int64 `json:"used"`
		TS        int64 `json:"ts"`
		Retry     int64 `json:"retry"`
		Delay     int64 `json:"delay"`
		Remaining int64 `json:"remaining"`
		Reset     int64 `json:"reset"`
	} `json:"want"`
}

func (v *applyVector) fill() {
	r := v.Rule.rule()
	o := r.Apply(store.State{Used: v.Used, TS: v.TS}, v.Now, verbOf(v.Verb), v.Cost)
	w := &v.Want
	w.Allowed, w.Never, w.Granted, w.Used, w.TS, w.Retry, w.Delay = o.Allowed, o.Never, o.Granted, o.After, o.TS, o.Retry, o.Delay
	w.Remaining, w.Reset = r.Remaining(o.After, o.TS), r.TimeToFull(o.After, o.TS, v.Now)
}

func verbOf(name string) store.Verb {
	for v := store.VerbTake; v <= store.VerbReset; v++ {
		if v.String() == name {
			return v
		}
	}
	panic(name)
}

func applyVectors(t *testing.T) (lines []any) {
	rnd := rand.New(rand.NewPCG(1, 1))
	near := func(n int64) int64 { return n + rnd.Int64N(5) - 2 }
	clamp := func(n, most int64) int64 { return max(0, min(n, most)) }
	for _, l := range golden.Limits {
		r := limittest.Definition(l).Rule
		for range 190 {
			v := &applyVector{Rule: goldenOf(r), TS: 1767225600e6 + rnd.Int64N(200e6)}
			pickUsed := []int64{0, near(r.Unit), r.Cap, near(r.Cap), near(r.Cap - r.Unit), near(r.Cap + r.Debt), rnd.Int64N(r.Cap + r.Debt + 1), r.MaxUsed}
			v.Used = clamp(pickUsed[rnd.IntN(len(pickUsed))], r.MaxUsed)
			ticks := min(v.Used/r.Add+1, store.MaxInt/r.Every/4)
			pickNow := []int64{0, 0, near(r.Every), near(ticks * r.Every), rnd.Int64N(ticks*r.Every + 1), -1 - rnd.Int64N(1e9), r.Every - v.TS%r.Every, rnd.Int64N(2e6)}
			if v.Now = v.TS + pickNow[rnd.IntN(len(pickNow))]; rnd.IntN(12) == 0 {
				v.TS, v.Now = rnd.Int64N(20e6), -rnd.Int64N(30e6) // before the origin, and before the epoch
				if rnd.IntN(2) == 0 {
					v.TS = v.Now - rnd.Int64N(100e6)
				}
			}
			v.Verb = store.Verb(rnd.IntN(7)).String()
			pickCost := []int64{0, 1, 1, 2, near(r.Burst), near(r.Most), 1 + rnd.Int64N(r.Burst+1), store.MaxInt, store.MaxInt - 1}
			v.Cost = clamp(pickCost[rnd.IntN(len(pickCost))], store.MaxInt)
			v.fill()
			lines = append(lines, v)
		}
	}
	return lines
}

// slidingVectors are lines of sliding.jsonl, in the form of apply.jsonl.
func slidingVectors(t *testing.T) (lines []any) {
	rnd := rand.New(rand.NewPCG(4, 4))
	for _, l := range golden.Sliding {
		r := limittest.Definition(l).Rule
		tokens := func() int64 {
			return []int64{0, 1, rnd.Int64N(r.Cap + 1), r.Cap, r.Cap - 1, rnd.Int64N(r.MaxUsed + 1), r.MaxUsed}[rnd.IntN(7)]
		}
		for range 250 {
			v := &applyVector{Rule: goldenOf(r), Used: algebra.OfHalves(tokens(), tokens()), TS: 1767225600e6 + rnd.Int64N(2*r.Every), Verb: store.Verb(rnd.IntN(7)).String(), Cost: tokens()}
			if v.Verb == "reserve" { // it has none
				v.Verb = "take"
			}
			begin, _ := r.Window(v.TS)
			thousandth := (rnd.Int64N(1000)*r.Every + 999) / 1000
			v.Now = []int64{v.TS, begin + thousandth, begin + thousandth - 1, begin + r.Every, begin + r.Every + thousandth, begin + 2*r.Every - 1, begin + 2*r.Every, v.TS - rnd.Int64N(r.Every)}[rnd.IntN(8)]
			v.fill()
			lines = append(lines, v)
		}
	}
	return lines
}

// carryVector is a line of carry.jsonl: a row that is converted through
// versions.
type carryVector struct {
	Versions []goldenVersion `json:"versions"`
	Used     int64           `json:"used"`
	TS       int64           `json:"ts"`
	Version  int             `json:"version"` // from 1
	WantUsed int64           `json:"want_used"`
	WantTS   int64           `json:"want_ts"`
}

func (v *carryVector) fill() {
	d := definitionOf(v.Versions)
	s, _ := d.Carry(store.State{Used: v.Used, TS: v.TS, Version: uint32(v.Version)}, "k", v.TS)
	v.WantUsed, v.WantTS = s.Used, s.TS
}

func policyOf(s string) store.ChangePolicy {
	for p := store.Keep; p <= store.StartOver; p++ {
		if p.String() == s {
			return p
		}
	}
	panic(s)
}

func carryVectors(t *testing.T) (lines []any) {
	rnd := rand.New(rand.NewPCG(2, 2))
	for range 400 {
		v := &carryVector{}
		at := int64(1767225600e6)
		for range 2 + rnd.IntN(3) {
			at += rnd.Int64N(400e6)
			rule := goldenOf(limittest.Definition(golden.Limits[rnd.IntN(len(golden.Limits))]).Rule)
			v.Versions = append(v.Versions, goldenVersion{rule, at, store.ChangePolicy(rnd.IntN(3)).String()})
		}
		v.Version = 1 + rnd.IntN(len(v.Versions)-1)
		r := v.Versions[v.Version-1].Rule
		v.Used = rnd.Int64N(r.Cap + r.Debt + 1)
		v.TS = v.Versions[v.Version-1].Since + rnd.Int64N(300e6)
		v.fill()
		lines = append(lines, v)
	}
	return lines
}

// originVector is a line of origin.jsonl: the origin of a key's windows.
type originVector struct {
	Name   string `json:"name"`
	Key    string `json:"key"`
	Period int64  `json:"period"`
	Origin int64  `json:"origin"`
}

func originVectors(t *testing.T) (lines []any) {
	keys := []string{"", "a", "b", "user:7", "ключ", "鍵🔑", strings.Repeat("x", 512), "e\u0301", "{a}b", "a\nb"}
	for _, name := range []string{"login", "a", "ab", strings.Repeat("n", 128), "a:b c"} {
		for _, key := range keys {
			for _, p := range []int64{1, 1e6, 60e6, 3600e6, 7 * 86400e6, 28 * 86400e6, 365 * 86400e6, 7_000_001} {
				lines = append(lines, &originVector{name, key, p, terms.Origin(terms.PhaseOf(name, key), p)})
			}
		}
	}
	return lines
}

// calendarVector is a line of calendar.jsonl: the window that contains a time.
type calendarVector struct {
	Per   string `json:"per"`
	Start string `json:"start"`
	Now   int64  `json:"now"`
	From  int64  `json:"from"`
	To    int64  `json:"to"`
}

func calendarVectors(t *testing.T) (lines []any) {
	rnd := rand.New(rand.NewPCG(3, 3))
	zones := []string{"UTC", "Europe/Rome", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Africa/Casablanca", "America/St_Johns", "Asia/Kathmandu", "Pacific/Chatham", "Europe/Dublin"}
	for _, zone := range zones {
		for _, per := range []string{"1d", "1w", "2w", "1mo", "3mo", "6mo", "1y"} {
			clocks := []string{"00:00", "02:30", "06:00", "23:59"}
			period, _ := period.Parse(per)
			switch {
			case per == "1mo":
				clocks = append(clocks, "17 00:00", "31 02:30", "29 23:59")
			case period < 0:
				clocks = append(clocks, "05-17 00:00", "02-29 02:30", "12-31 23:59", "08-31 06:00")
			}
			for _, clock := range clocks {
				r := limittest.Definition(store.Limit{Name: "c", Algorithm: store.FixedWindow, Rate: 1, Period: period, Start: clock + " " + zone}).Rule
				for i := range 4 {
					now := int64(1577836800e6) + rnd.Int64N(int64(20*365.25*86400e6))
					if i%2 == 1 { // on the boundary, or just before it
						start, _ := r.Window(now)
						now = start - rnd.Int64N(2)
					}
					v := &calendarVector{Per: per, Start: clock + " " + zone, Now: now}
					v.From, v.To = r.Window(now)
					lines = append(lines, v)
				}
			}
		}
	}
	return lines
}

// The checked-in vectors are what the code computes. `go generate` writes them
// again, and a reviewer sees the difference.
func TestGolden(t *testing.T) {
	for name, lines := range map[string]func(*testing.T) []any{
		"apply.jsonl": applyVectors, "carry.jsonl": carryVectors, "origin.jsonl": originVectors, "calendar.jsonl": calendarVectors,
		"sliding.jsonl": slidingVectors, "giveback.jsonl": giveVectors, "calls.jsonl": callVectors,
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			enc := json.NewEncoder(&out)
			for _, l := range lines(t) {
				if err := enc.Encode(l); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join("..", "testdata", "golden", name)
			if *update {
				if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got, want := strings.Split(out.String(), "\n"), strings.Split(string(file), "\n")
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					t.Fatalf("%s:%d\n  file %s\n  now  %s", path, i+1, want[i], got[i])
				}
			}
			if len(got) != len(want) {
				t.Fatalf("%s has %d lines, want %d", path, len(want), len(got))
			}
		})
	}
}

// The vectors agree with exact arithmetic, and all of their numbers are exact
// as a double.
func TestGoldenIsExact(t *testing.T) {
	for _, l := range applyVectors(t) {
		v := l.(*applyVector)
		if r := v.Rule.rule(); v.Verb != "charge" || v.Cost <= r.MaxCharge {
			applied(t, &r, store.State{Used: v.Used, TS: v.TS}, v.Now, verbOf(v.Verb), v.Cost)
		}
		for _, n := range []int64{v.Used, v.Want.Used, v.Want.Granted, v.Want.Remaining, v.Rule.MaxUsed, v.Rule.Cap, v.Rule.Debt, v.Rule.Most} {
			if n < 0 || n > store.MaxInt {
				t.Fatalf("%d is not between 0 and 2^53-1: %+v", n, v)
			}
		}
	}
}
