package replay

import (
	"github.com/dipwell/dipwell"
)

// Report is what a replay found. Times are in µs since the Unix epoch, waits
// in µs; what did not happen is null.
type Report struct {
	Log       string    `json:"log"`
	Format    string    `json:"format"`
	By        string    `json:"by"`
	Cost      string    `json:"cost"`
	All       bool      `json:"all"`
	Lines     int64     `json:"lines"`
	Requests  int64     `json:"requests"` // lines that count
	Malformed int64     `json:"malformed"`
	BadLines  []BadLine `json:"malformed_lines"` // the first few
	Disorder  int64     `json:"out_of_order"`    // lines that are earlier than the counted line before them
	First     *int64    `json:"first_us"`
	Last      *int64    `json:"last_us"`
	Keys      int64     `json:"keys"`           // at most; see Forgotten
	Forgotten int64     `json:"keys_forgotten"` // idle keys whose counts made room for others
	Limits    []Limit   `json:"limits"`

	tracks [][]*track
}

// BadLine is a line that does not count.
type BadLine struct {
	Line   int64  `json:"line"`
	Reason string `json:"reason"`
	Text   string `json:"text"` // its beginning, quoted
}

// Limit is what a limit would have done.
type Limit struct {
	Limit        string `json:"limit"`
	Warning      string `json:"warning,omitempty"`
	Shadow       bool   `json:"shadow,omitempty"`
	Granted      int64  `json:"granted"`
	Refused      int64  `json:"refused"`          // in shadow mode: would have been
	Spared       int64  `json:"refused_by_other"` // granted here, and refused by another limit
	Never        int64  `json:"never"`            // of the refused: costs that no wait would help
	GrantedCost  int64  `json:"granted_cost"`
	RefusedCost  int64  `json:"refused_cost"`
	LongestWait  int64  `json:"longest_wait_us"`
	Delayed      int64  `json:"delayed"`
	LongestDelay int64  `json:"longest_delay_us"`
	FirstRefusal *int64 `json:"first_refusal_us"`
	LastRefusal  *int64 `json:"last_refusal_us"`
	KeysRefused  int64  `json:"keys_refused"` // among those whose counts are kept
	Missed       int64  `json:"missed"`       // the most refusals that a key shown may lack
	Worst        []Key  `json:"worst"`

	name string
	bins bins
	cap  int64
}

// Key is what became of a key's requests at a limit.
type Key struct {
	Key          string `json:"key"` // "" is the limit's shared bucket
	Granted      int64  `json:"granted"`
	Refused      int64  `json:"refused"`
	Spared       int64  `json:"refused_by_other"`
	LongestWait  int64  `json:"longest_wait_us"`
	FirstRefusal int64  `json:"first_refusal_us"`
	LastRefusal  int64  `json:"last_refusal_us"`
}

func (r *run) report() *Report {
	t := r.engine.table
	rep := &Report{
		Log: r.in.Name, Format: r.log.format, By: r.o.By, Cost: r.o.Cost, All: r.o.All,
		Lines: r.log.lines - r.log.headers, Malformed: r.log.malformed, BadLines: append([]BadLine{}, r.log.shown...), Disorder: r.log.disorder,
		Keys: int64(len(t.keys)) + t.forgotten, Forgotten: t.forgotten, tracks: r.tracks,
	}
	rep.Requests = rep.Lines - rep.Malformed
	if rep.Requests > 0 {
		rep.First, rep.Last = &r.engine.first, &r.engine.last
	}
	for i, d := range r.defs {
		rep.Limits = append(rep.Limits, r.limit(i, d))
	}
	return rep
}

func (r *run) limit(i int, d *dipwell.Definition) Limit {
	s, t := &r.engine.sums[i], r.engine.table
	l := Limit{
		Limit: d.String(), Warning: d.Warning, Shadow: d.Mode == dipwell.Shadow,
		Granted: s.granted, Refused: s.refused, Spared: s.spared, Never: s.never,
		GrantedCost: int64(s.grantedCost), RefusedCost: int64(s.refusedCost), LongestWait: s.longestWait,
		Delayed: s.delayed, LongestDelay: s.longestDelay, Missed: t.missed[i],
		name: d.Name, bins: s.bins, cap: d.Rule.Burst,
	}
	l.Worst = []Key{}
	if s.refused > 0 {
		l.FirstRefusal, l.LastRefusal = &s.first, &s.last
	}
	for id := range t.keys {
		if t.cnts[id*t.limits+i].refused > 0 {
			l.KeysRefused++
		}
	}
	for _, id := range t.worst(i, r.o.Worst, false) {
		c := &t.cnts[int(id)*t.limits+i]
		l.Worst = append(l.Worst, Key{t.keys[id], c.granted, c.refused, c.spared, c.longestWait, c.first, c.last})
	}
	return l
}
