package replay

import (
	"strings"

	"github.com/dipwell/dipwell"
)

// Report is the result of a replay. Times are in µs since the Unix epoch, waits in
// µs. A time is nil if there was no such event.
type Report struct {
	Log       string    `json:"log"`
	Format    string    `json:"format"`
	By        string    `json:"by"`
	Cost      string    `json:"cost"`
	All       bool      `json:"all"`
	Lines     int64     `json:"lines"`
	Requests  int64     `json:"requests"` // lines that are neither malformed nor filtered
	Malformed int64     `json:"malformed"`
	Filtered  int64     `json:"filtered"` // lines that do not meet Where
	Where     []string  `json:"where,omitempty"`
	Plan      []string  `json:"plan,omitempty"`
	BadLines  []BadLine `json:"malformed_lines"` // the first 10
	Disorder  int64     `json:"out_of_order"`    // requests that are earlier than the request before
	First     *int64    `json:"first_us"`
	Last      *int64    `json:"last_us"`
	Keys      int64     `json:"keys"`           // may be too high by at most Forgotten
	Forgotten int64     `json:"keys_forgotten"` // keys whose counts were dropped while idle; they count as new when they return
	Limits    []Limit   `json:"limits"`

	NotJudged []NotJudged `json:"not_judged,omitempty"`
}

// BadLine is a malformed line.
type BadLine struct {
	Line   int64  `json:"line"`
	Reason string `json:"reason"`
	Text   string `json:"text"` // beginning of the line, quoted
}

// Limit is the result of one limit.
type Limit struct {
	Limit          string `json:"limit"`
	ParentOf       string `json:"parent_of,omitempty"` // the limit that is asked; this one is a parent decided with it
	Warning        string `json:"warning,omitempty"`
	Shadow         bool   `json:"shadow,omitempty"`
	Granted        int64  `json:"granted"`
	Refused        int64  `json:"refused"`          // number of refused requests; in shadow mode: those that would have been refused
	RefusedByOther int64  `json:"refused_by_other"` // allowed by this limit, refused by another
	Never          int64  `json:"never"`            // part of Refused: the cost is more than the limit can ever hold
	GrantedCost    int64  `json:"granted_cost"`
	RefusedCost    int64  `json:"refused_cost"`
	LongestWait    int64  `json:"longest_wait_us"`
	Delayed        int64  `json:"delayed"`
	LongestDelay   int64  `json:"longest_delay_us"`
	FirstRefusal   *int64 `json:"first_refusal_us"`
	LastRefusal    *int64 `json:"last_refusal_us"`
	KeysRefused    int64  `json:"keys_refused"` // counted among the keys that were not forgotten
	Missed         int64  `json:"missed"`       // the count of a key in Worst may be too low by this much
	Worst          []Key  `json:"worst"`

	Plans []PlanResult `json:"plans,omitempty"` // with Options.Plan

	bins bins
}

// PlanResult is the result of the requests that named one plan.
type PlanResult struct {
	Plan    string `json:"plan"` // "" for no plan, or one that the limit does not have
	Granted int64  `json:"granted"`
	Refused int64  `json:"refused"` // refused by this limit or another
}

func (p *PlanResult) add(v verdict) {
	if v == granted {
		p.Granted++
	} else {
		p.Refused++
	}
}

// Key is the result of one key at a limit.
type Key struct {
	Key string `json:"key"` // "" is the limit's shared bucket
	counts
}

type counts struct {
	Granted        int64 `json:"granted"`
	Refused        int64 `json:"refused"`
	RefusedByOther int64 `json:"refused_by_other"`
	LongestWait    int64 `json:"longest_wait_us"`
	FirstRefusal   int64 `json:"first_refusal_us"`
	LastRefusal    int64 `json:"last_refusal_us"`
}

// Unread returns an error if the log has lines, but none that could be replayed: its format
// or one of the fields is probably wrong.
func (r *Report) Unread() error {
	if r.Malformed == 0 || r.Malformed < r.Lines {
		return nil
	}
	bad, hint := r.BadLines[0], ""
	text := r.Format == "json" || r.Format == "csv" || r.Format == "w3c"
	switch {
	case bad.Reason == string(errBadTime), bad.Reason == string(errEra):
		hint = "; times are " + timeForms
	case text && strings.HasPrefix(bad.Reason, "there is no ip "):
		hint = "; ip may be named " + strings.Join(aliases["ip"], ", ") + ", or --by ip=NAME"
	}
	if !text && r.Format != "grok" {
		hint += "; if the log is in another format, a grok pattern can read it: " + examplePattern
	}
	return badOption("log", "no line of %s can be read in %s format; line %d: %s%s", r.Log, r.Format, bad.Line, bad.Reason, hint)
}

func (r *run) report() *Report {
	rep := &Report{
		Log: r.in.Name, Format: r.log.format, By: r.o.By, Cost: r.o.Cost, All: r.o.All,
		Lines: r.log.count - r.log.headers, Malformed: r.log.malformed, BadLines: append([]BadLine{}, r.log.shown...), Disorder: r.log.disorder,
		Filtered: r.log.filtered, Where: r.o.Where, Plan: r.o.Plan, NotJudged: r.lineup.left,
	}
	for _, t := range r.engine.tables {
		if rep.Forgotten += t.forgotten; t.up == 0 {
			rep.Keys = int64(len(t.keys)) + t.forgotten
		}
	}
	rep.Requests = rep.Lines - rep.Malformed - rep.Filtered
	if rep.Requests > 0 {
		rep.First, rep.Last = &r.engine.first, &r.engine.last
	}
	for i := range r.engine.limits {
		rep.Limits = append(rep.Limits, r.limit(&r.engine.limits[i]))
	}
	return rep
}

func (r *run) limit(j *judged) Limit {
	l, t, d, i := j.result, j.table, j.def, j.at
	l.Limit, l.Warning, l.Shadow, l.Missed, l.Worst = d.String(), d.Warning, d.Mode == dipwell.Shadow, t.missed[i], []Key{}
	if j.of != nil {
		l.ParentOf = j.of.Name
	}
	for plan, p := range j.byPlan {
		if p.Plan = j.plans[plan].Plan; p.Plan == "" && plan > 0 { // a plan that belongs to another limit
			l.Plans[0].Granted += p.Granted
			l.Plans[0].Refused += p.Refused
		} else {
			l.Plans = append(l.Plans, p)
		}
	}
	refused := t.refused(i)
	l.KeysRefused = int64(len(refused))
	l.Worst = append(l.Worst, refused[:min(r.o.Worst, len(refused))]...)
	return l
}
