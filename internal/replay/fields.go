package replay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
)

// value is a field of a line. A parser sets the values of the fields in fields.list.
type value struct {
	text []byte
	err  error  // why the field has no text
	key  []byte // key made of an address
}

// field is a field of the log that an option names.
type field struct {
	option, name string
	address      bool
}

// fields are the fields that are read from each line, and what is made of them.
type fields struct {
	list  []field
	by    []int // indexes in list of the fields in By; empty: all limits are shared
	path  bool  // the key is a path, so '/' and '%' inside its parts are escaped
	cost  int   // index in list, or -1
	fixed int64 // cost of every line, if cost is -1
	where []condition
	plans []planRule
	names []string // names of plans; a record has the index + 1

	proxies front.Proxies
	key     []byte // buffer
}

// condition is FIELD=VALUE or FIELD~PATTERN.
type condition struct {
	field   int
	value   string
	pattern *regexp.Regexp
}

// A planRule says which plan requests name.
type planRule struct {
	field     int        // index of the field whose value is the name of the plan
	condition *condition // or a condition: requests that meet it name the plan
	plan      uint16
}

// newFields reads the options By, Cost, Where and Plan for the limits of a replay.
func newFields(o *Options, l *lineup) (*fields, error) {
	f := &fields{cost: -1, names: l.plans, proxies: o.TrustedProxies}
	parts := strings.Split(o.By, "+")
	f.path = l.paths || len(parts) > 1
	for _, name := range parts {
		if name == "" || name == "none" && len(parts) > 1 {
			return nil, badOption("by", "%q is not a field, or fields with + between them", o.By)
		}
		if l.keys {
			f.by = append(f.by, f.index("by", name))
		}
	}
	if c := o.Cost[0]; c != '-' && (c < '0' || c > '9') {
		f.cost = f.index("cost", o.Cost)
	} else if cost, err := parseCost([]byte(o.Cost)); err == nil && o.Cost != "-" {
		f.fixed = cost
	} else {
		return nil, badOption("cost", "%q is neither a field nor a whole number from 0 to 2^53-1", o.Cost)
	}
	for _, text := range o.Where {
		c, err := f.condition("where", text)
		if err != nil {
			return nil, err
		}
		f.where = append(f.where, *c)
	}
	for _, text := range o.Plan {
		if err := f.plan(text); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// index returns the index of a field, which it adds to the list. The field is an address if
// its name is ip, or ip=NAME.
func (f *fields) index(option, name string) int {
	name, address := strings.CutPrefix(name, "ip=")
	address = address || name == "ip"
	if i := slices.IndexFunc(f.list, func(x field) bool { return x.name == name && x.address == address }); i >= 0 {
		return i
	}
	f.list = append(f.list, field{option, name, address})
	return len(f.list) - 1
}

func (f *fields) condition(option, text string) (*condition, error) {
	at := strings.IndexAny(text, "=~")
	if at < 1 {
		return nil, badOption(option, "%q is neither FIELD=VALUE nor FIELD~PATTERN", text)
	}
	c := &condition{field: f.index(option, text[:at]), value: text[at+1:]}
	if text[at] == '~' {
		var err error
		if c.pattern, err = regexp.Compile(c.value); err != nil {
			return nil, badOption(option, "%q: %v", text, err)
		}
	}
	return c, nil
}

// plan reads FIELD, FIELD=VALUE:PLAN or FIELD~PATTERN:PLAN. In FIELD=PLAN the value is
// also the name of the plan.
func (f *fields) plan(text string) (err error) {
	if name := strings.TrimPrefix(text, "field="); name != "" && !strings.ContainsAny(name, "=~") {
		f.plans = append(f.plans, planRule{field: f.index("plan", name)})
		return nil
	}
	var r planRule
	condition, plan, ok := text, "", false
	if at := strings.LastIndexByte(text, ':'); at >= 0 {
		condition, plan, ok = text[:at], text[at+1:], true
	}
	if r.condition, err = f.condition("plan", condition); err != nil {
		return err
	}
	if !ok {
		plan = r.condition.value
	}
	if r.plan, ok = f.planIndex(plan); !ok {
		return badOption("plan", "%s: no limit has a plan %q; they have %s", text, plan, cmp.Or(strings.Join(f.names, ", "), "none"))
	}
	f.plans = append(f.plans, r)
	return nil
}

// planIndex returns what a record stores for a plan: its index + 1.
func (f *fields) planIndex(name string) (uint16, bool) {
	i, ok := slices.BinarySearch(f.names, name)
	return uint16(i + 1), ok
}

// fill sets the key, plan and cost of a record. fill returns errFiltered if the line does
// not match Options.Where, or another malformed if the line must be left out.
func (f *fields) fill(rec *record, values []value) (err error) {
	for i := range values {
		if v := &values[i]; f.list[i].address && v.err == nil {
			v.err = f.client(v, f.list[i].name)
		}
	}
	for i := range f.where {
		if !f.where[i].matches(values) {
			return errFiltered
		}
	}
	if rec.Key, err = f.keyOf(values); err != nil {
		return err
	}
	rec.Cost = f.fixed
	if f.cost >= 0 {
		v := &values[f.cost]
		if v.err != nil {
			return v.err
		}
		if rec.Cost, err = parseCost(bytes.TrimSpace(v.text)); err != nil {
			return err
		}
	}
	rec.Plan, err = f.planOf(values)
	return err
}

// matches reports whether a line meets the condition. A line in which the field
// is missing or cannot be read does not meet it.
func (c *condition) matches(values []value) bool {
	v := &values[c.field]
	switch {
	case v.err != nil:
		return false
	case c.pattern != nil:
		return c.pattern.Match(v.text)
	}
	return string(v.text) == c.value
}

func (f *fields) keyOf(values []value) ([]byte, error) {
	if len(f.by) == 0 {
		return nil, nil
	}
	f.key = f.key[:0]
	for i, at := range f.by {
		v := &values[at]
		if v.err != nil {
			return nil, v.err
		}
		if i > 0 {
			f.key = append(f.key, '/')
		}
		from := len(f.key)
		if f.key = append(f.key, v.text...); f.list[at].address {
			f.key = append(f.key[:from], v.key...)
		}
		if f.path && bytes.ContainsAny(f.key[from:], "/%") {
			f.key = append(f.key[:from], dipwell.Key(string(f.key[from:]))...)
		}
	}
	return f.key, checkKey(f.key)
}

// client reads a value as an address, or a list of addresses, and sets the key of the client.
// Without trusted proxies the client is the first of a list.
func (f *fields) client(v *value, name string) error {
	a, err := front.ParseAddr(firstOf(v.text))
	if len(f.proxies) > 0 {
		a, err = f.proxies.Client(netip.Addr{}, []string{string(v.text)})
	}
	if err != nil || !a.IsValid() {
		list := ""
		if bytes.IndexByte(v.text, ',') >= 0 {
			list = "; it may be a list of addresses"
		}
		return malformed(fmt.Sprintf("its %s %s is not an address%s", name, excerpt(v.text), list))
	}
	if v.key = append(v.key[:0], front.AddrKey(a)...); len(f.where)+len(f.plans) > 0 {
		v.text = []byte(a.String())
	}
	return nil
}

// firstOf returns the first element of a list in a log.
func firstOf(list []byte) string {
	first, _, _ := bytes.Cut(list, []byte{','})
	return string(bytes.TrimSpace(first))
}

// planOf returns the index of the plan that a line names, or 0.
func (f *fields) planOf(values []value) (uint16, error) {
	for i := range f.plans {
		r := &f.plans[i]
		if r.condition != nil {
			if r.condition.matches(values) {
				return r.plan, nil
			}
			continue
		}
		v := &values[r.field]
		if text := string(v.text); v.err == nil && text != "" && text != "-" {
			plan, ok := f.planIndex(text)
			if !ok {
				return 0, malformed(fmt.Sprintf("no limit has a plan %.80q", text))
			}
			return plan, nil
		}
		if v.err != nil && !errors.Is(v.err, errNull) {
			return 0, v.err
		}
	}
	return 0, nil
}
