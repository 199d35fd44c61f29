package replay

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// A lineup is the limits of a replay, each followed by its parents.
type lineup struct {
	registry *store.Registry // with all limits of the options
	limits   []target
	groups   [][2]int // ranges of limits that decide a request together, all or nothing
	plans    []string // sorted names of plans of the limits that the replay asks
	keys     bool     // some limit has a bucket for each key
	paths    bool     // keys are paths
	left     []NotJudged
}

// A target is a limit that the replay asks, or a parent of one.
type target struct {
	def   *store.Definition
	plans []*store.Definition // by record.Plan
	of    *store.Definition   // for a parent: the limit that is asked, and this one with it
	up    int                 // by how many parts its keys are shorter than those of the log, or noKey
	times int64               // how often a request takes its cost: with Options.All, several limits may have the same parent
}

// noKey is the value of up for a limit that is shared.
const noKey = -1

// NotJudged is a limit that Options.Ask did not name and that a replay cannot decide,
// with the reason.
type NotJudged struct {
	Limit  string `json:"limit"`
	Reason string `json:"reason"`
}

// newLineup checks the limits of the options, and returns those that the replay asks. The
// error is a *dipwell.FieldError.
func newLineup(o *Options) (*lineup, error) {
	limits := new(store.Registry)
	defs := make([]*store.Definition, 0, len(o.Limits))
	for i, l := range o.Limits {
		if slices.ContainsFunc(o.Limits[:i], func(x dipwell.Limit) bool { return x.Name == l.Name }) {
			return nil, badOption("limit", "%s is given twice", l.Name)
		}
		l.Shards = 0 // replay the sum of the rows as one
		d, err := store.NewDefinition(l)
		if err != nil {
			return nil, err
		}
		defs = append(defs, d)
	}
	if errs := store.CheckTogether(o.Limits); len(errs) > 0 {
		return nil, errs[0]
	}
	limits.Install(defs)
	names := o.Ask
	for _, l := range o.Limits {
		if len(o.Ask) == 0 && limits.CheckDrop(l.Name) == nil { // the limit is no other limit's parent
			names = append(names, l.Name)
		}
	}
	l := &lineup{registry: limits}
	for i, name := range names {
		d := limits.Lookup(name)
		if d == nil || slices.Contains(names[:i], name) {
			return nil, badOption("limit", "%s is given twice, or is not there", name)
		}
		bad := l.ask(limits, d, o)
		if bad != nil && len(names) > 1 && len(o.Ask) == 0 {
			l.left = append(l.left, NotJudged{name, bad.Reason})
		} else if bad != nil {
			return nil, bad
		}
	}
	if asked := len(names) - len(l.left); asked < 1 || asked > store.MaxTakes || o.All && len(l.limits) > store.MaxTakes {
		return nil, badOption("limit", "%d limits would decide; it must be 1 to %d, with their parents if all decide together%s", asked, store.MaxTakes, l.reasons())
	}
	if o.All {
		l.groups = [][2]int{{0, len(l.limits)}}
	}
	slices.Sort(l.plans)
	l.plans = slices.Compact(l.plans)
	for i := range l.limits {
		l.limits[i].compile(l.plans)
	}
	return l, nil
}

func badOption(field, format string, args ...any) *dipwell.FieldError {
	return &dipwell.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

func (l *lineup) reasons() string {
	var b strings.Builder
	for _, n := range l.left[:min(len(l.left), 3)] {
		b.WriteString("; " + n.Reason)
	}
	return b.String()
}

// ask adds a limit and its parents.
func (l *lineup) ask(limits *store.Registry, d *store.Definition, o *Options) *dipwell.FieldError {
	if d.Algorithm == dipwell.Concurrency {
		return badOption("limit", "%s is a concurrency limit: its tokens come back when holds end, which a log does not say", d.Name)
	}
	chain := []target{{def: d, times: 1}}
	for top := d; top.Parent != ""; {
		top = limits.Lookup(top.Parent)
		chain = append(chain, target{def: top, of: d, up: len(chain), times: 1})
	}
	if top := &chain[len(chain)-1]; top.def.Shared {
		top.up = noKey
	}
	if bad := l.checkBy(d, chain, o.By); bad != nil {
		return bad
	}
	for _, p := range d.Plans.All() {
		l.plans = append(l.plans, p.Name)
	}
	from := len(l.limits)
	for _, level := range chain {
		same := slices.IndexFunc(l.limits, func(x target) bool { return o.All && x.def == level.def })
		if same >= 0 {
			l.limits[same].times++
		} else {
			l.limits = append(l.limits, level)
		}
	}
	l.groups = append(l.groups, [2]int{from, len(l.limits)})
	return nil
}

// checkBy returns an error if the first limit of chain has keys other than those that by
// makes.
func (l *lineup) checkBy(d *store.Definition, chain []target, by string) *dipwell.FieldError {
	if d.Shared {
		return nil
	}
	if by == "none" {
		return badOption("by", "limit %s has a bucket for each key; none is for limits with shared: true", d.Name)
	}
	if d.Paths {
		has, parts := strings.Count(by, "+")+1, len(chain)-1+int(chain[len(chain)-1].def.KeyParts())
		if has != parts {
			fields := append([]string{"tenant", "user", "path"}, slices.Repeat([]string{"x"}, 16)...)
			return badOption("by", "limit %s has keys of %s, as in %s, and %s makes %d", d.Name, count(int64(parts), "part"), strings.Join(fields[:parts], "+"), by, has)
		}
		l.paths = true
	}
	l.keys = true
	return nil
}

// compile fills plans, at the index + 1 of each plan's name.
func (l *target) compile(names []string) {
	l.plans = []*store.Definition{l.def}
	for _, name := range names {
		d := l.def.WithPlan(name)
		switch {
		case l.of != nil && l.of.WithPlan(name) == nil: // the limit that is asked has no such plan
			d = l.def
		case l.of != nil:
			d = l.def.ForChild(name)
		case d == nil || d.Children: // the plan belongs to another limit, or is for children
			d = l.def
		}
		l.plans = append(l.plans, d)
	}
}
