package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/period"
)

// Bounds on the plans of a limit.
const (
	maxPlans    = 100 // most plans of a limit
	maxPlanName = 64  // bytes
)

// A Plan is a named variant of a limit, which an override gives to a key, or the caller names
// for one call. The zero value of a field means the setting of the base limit, as it is written
// there.
type Plan struct {
	// Name is 1 to 64 letters, digits and the characters _ . -
	Name string
	// Rate is how many tokens come back each Period, 1 to MaxInt.
	Rate int64
	// Period is the time in which Rate tokens come back, as in Limit. Period is possible only
	// for buckets; plans of windows and intervals keep that of the base.
	Period time.Duration
	// Burst is as in Limit; NoBurst means 0. If both the plan and the base leave it out,
	// it is the Rate of the plan. A plan of a bucket counts in the ticks of the base: a
	// burst that does not fit there is an error that names the largest that does.
	Burst int64
	// MaxDebt is as in Limit; NoDebt means 0. If both the plan and the base leave it out, it
	// is one burst of the plan.
	MaxDebt int64
	// Mode is Shadow, Unlimited, Blocked, or Enforced; 0 means that of the base. Rows of keys
	// under Unlimited and Blocked stay under the base, so these plans have no numbers.
	Mode Mode

	// OverrideOnly is set if only an override gives the plan: callers may not name it.
	OverrideOnly bool
	// Children is set if a call of a child that names a plan of the same name is decided under
	// this plan here. A call of the limit itself that names it is an error. In configuration
	// files it is callable: children.
	Children bool
}

// Plans is a list of plans, comparable like a Limit. The zero Plans has none.
type Plans struct {
	text string // the plans in the form that String returns
}

// NewPlans returns a list of plans, sorted by name. NewDefinition checks them: at most 100,
// each with a name of its own, and with settings that compile with those of the limit.
//
//	store.Limit{Name: "api", Rate: 60, Period: time.Minute, Plans: store.NewPlans(
//		store.Plan{Name: "pro", Rate: 600},
//		store.Plan{Name: "staff", Mode: store.Unlimited},
//	)}
func NewPlans(plans ...Plan) Plans {
	sorted := slices.SortedStableFunc(slices.Values(plans), func(a, b Plan) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	for i := range sorted {
		if i > 0 {
			b.WriteByte('|')
		}
		sorted[i].write(&b)
	}
	return Plans{b.String()}
}

// All returns the plans, sorted by name. If NewDefinition would refuse the list,
// some plans may be missing.
func (p Plans) All() []Plan {
	plans, _ := p.parse()
	return plans
}

// named returns the plan with a given name.
func (p Plans) named(name string) (plan Plan, ok bool) {
	for _, plan = range p.All() {
		if plan.Name == name {
			return plan, true
		}
	}
	return Plan{}, false
}

// parse returns the plans up to the first one that cannot be read, and the error of that one.
func (p Plans) parse() (out []Plan, err error) {
	if p.text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(p.text, "|") {
		plan, err := parsePlan(part)
		if err != nil {
			return out, err
		}
		out = append(out, plan)
	}
	return out, nil
}

// String writes the plans as Limit.Set reads them: "pro:rate=600;burst=1000|staff:mode=unlimited".
func (p Plans) String() string { return p.text }

// planSettings convert the fields of a Plan from and to text, in the order in which they are
// written. A zero field, which means the base's setting, is not written.
var planSettings = []setting[Plan]{
	field("rate", func(p *Plan) *int64 { return &p.Rate }, parseRate, numberText),
	field("per", func(p *Plan) *time.Duration { return &p.Period }, parsePer, period.Format),
	field("burst", func(p *Plan) *int64 { return &p.Burst }, countOr(NoBurst), countText),
	field("max_debt", func(p *Plan) *int64 { return &p.MaxDebt }, parseDebt, debtText),
	field("mode", func(p *Plan) *Mode { return &p.Mode }, oneOf[Mode](planModes), func(m Mode) string { return nameOf(planModes, int(m)) }),
	{name: "callable", set: func(p *Plan, v string) error {
		i, err := oneOf[uint8](callers)(v)
		p.OverrideOnly, p.Children = i == 1, i == 2
		return err
	}, value: func(p *Plan) (string, bool) {
		if p.Children {
			return callers[2], true
		}
		return callers[1], p.OverrideOnly
	}},
}

// callers are the values of the setting callable.
var callers = []string{"true", "false", "children"}

// separators replaces the characters that separate names and settings of plans by another
// one that is not allowed in names, so that such a name is still refused.
var separators = strings.NewReplacer("|", "?", ":", "?")

// write appends the plan in the form of Plans.String: "pro:rate=600;burst=1000".
func (p *Plan) write(b *strings.Builder) {
	_, _ = separators.WriteString(b, p.Name)
	settings := explicit(planSettings, p)
	if p.Name == "" || len(settings) > 0 { // a lone plan without name and settings must not become the empty text, which means no plans
		b.WriteByte(':')
	}
	b.WriteString(strings.Join(settings, ";"))
}

// parsePlan reads what Plan.write writes. The error names the plan and the setting.
func parsePlan(text string) (p Plan, err error) {
	var settings string
	p.Name, settings, _ = strings.Cut(text, ":")
	if wrong := checkPlanName(p.Name); wrong != "" {
		return p, errors.New(wrong)
	}
	if settings == "" {
		return p, nil
	}
	var seen []string
	for part := range strings.SplitSeq(settings, ";") {
		name, value, _ := strings.Cut(part, "=")
		switch {
		case slices.Contains(seen, name):
			return p, fmt.Errorf("plan %s: %s: is given twice", p.Name, name)
		case name == "mode" && value == "":
			return p, fmt.Errorf("plan %s: mode: is empty", p.Name)
		}
		seen = append(seen, name)
		if err = p.Set(name, value); err != nil {
			return p, fmt.Errorf("plan %s: %w", p.Name, err)
		}
	}
	return p, nil
}

// Set changes one setting, spelled as in a configuration file: rate, per, burst,
// max_debt, mode or callable. The error names the setting.
func (p *Plan) Set(setting, value string) error {
	if err := change(planSettings, p, setting, value); err != nil {
		return fmt.Errorf("%s: %w", setting, err)
	}
	return nil
}

// parsePlans reads what Plans.String writes, in any order.
func parsePlans(text string) (Plans, error) {
	plans, err := Plans{text}.parse()
	return NewPlans(plans...), err
}

// checkPlanName returns what is wrong with the name of a plan, or "".
func checkPlanName(name string) string {
	switch {
	case name == "":
		return "a plan without a name"
	case len(name) > maxPlanName:
		return fmt.Sprintf("the name of plan %s has %d bytes; at most %d", name, len(name), maxPlanName)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return fmt.Sprintf("the name of plan %q has other characters than letters, digits and _ . -", name)
		}
	}
	return ""
}

// with returns the limit with the settings of a plan in place of its own.
func (l Limit) with(p *Plan) Limit {
	l.Rate, l.Period = cmp.Or(p.Rate, l.Rate), cmp.Or(p.Period, l.Period)
	l.Burst, l.MaxDebt = cmp.Or(p.Burst, l.Burst), cmp.Or(p.MaxDebt, l.MaxDebt)
	switch p.Mode {
	case Enforced:
		l.Mode = Enforce
	case Shadow, Unlimited, Blocked:
		l.Mode = p.Mode
	}
	return l
}
