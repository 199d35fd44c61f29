package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

// overrides answers with a page of overrides, or with that of one key.
func (a *api) overrides(w http.ResponseWriter, r *http.Request, q *query) error {
	name, n := r.PathValue("name"), cmp.Or(q.n, pageSize)
	one, err := q.one()
	if err != nil {
		return err
	}
	if one {
		o, err := a.overrideOf(r.Context(), name, q.key)
		if o = o.Of(q.kind); err == nil && o == nil {
			err = errNoOverride
		}
		if err != nil {
			return err
		}
		return answerJSON(w, jsonOverride(name, o), nil)
	}
	list, err := a.limiter.Overrides(r.Context(), name, q.prefix, q.after, n)
	if err != nil {
		return err
	}
	page, last := []Override{}, ""
	for i := range list {
		for _, o := range allListed(&list[i], q.kind) {
			page = append(page, jsonOverride(name, &o))
		}
		last = list[i].Key
	}
	return writePage(w, "overrides", page, len(list) == n, last)
}

// GET /v1/overrides looks at so many limits, and so many keys of each.
const overridesLimits, overridesKeys = 1000, 200

// LimitOverrides is how many keys of a limit have overrides that do not block, and are blocked.
type LimitOverrides struct {
	Limit     string `json:"limit"`
	Overrides int    `json:"overrides"`
	Blocked   int    `json:"blocked"`
	More      bool   `json:"more,omitempty"` // whether there may be others
}

// everyOverride answers GET /v1/overrides: how many overrides each limit has, and the temporary
// ones that end first.
func (a *api) everyOverride(w http.ResponseWriter, r *http.Request, q *query) error {
	asked := topQuery{n: cmp.Or(q.n, topKeys), may: mayList(r.Context()), overrides: strconv.FormatUint(a.tops.changes.Load(), 10)}
	answer, err := a.tops.get(r.Context(), asked, func() (any, error) {
		limits, ends := []LimitOverrides{}, []Override{}
		next, err := eachLimit(a.limitsOf(r.Context()), overridesLimits, func(def *store.Definition) (bool, error) {
			list, err := a.limiter.Overrides(r.Context(), def.Name, "", "", overridesKeys)
			one := LimitOverrides{Limit: def.Name, More: len(list) == overridesKeys}
			for i := range list {
				if def.WithOverride(&list[i]).Mode == store.Blocked {
					one.Blocked++
				}
				for o := &list[i]; o != nil; o = o.Under {
					if o.Kind() == store.TemporaryOverride {
						ends = append(ends, jsonOverride(def.Name, o))
					}
				}
			}
			if one.Overrides = len(list) - one.Blocked; len(list) > 0 {
				limits = append(limits, one)
			}
			return true, err
		})
		slices.SortFunc(ends, func(a, b Override) int { return a.Until.Compare(*b.Until) })
		return map[string]any{"limits": limits, "ends": ends[:min(asked.n, len(ends))], "next": Nullable(next)}, err
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, answer)
}

// allListed returns those of an override and the one under it that belong in a list of this
// kind, each without the one under it. A list of any kind leaves out blocks, of which there
// may be very many.
func allListed(o *dipwell.Override, kind store.OverrideKind) (all []dipwell.Override) {
	for ; o != nil; o = o.Under {
		if o.Kind() == kind || kind == store.AnyOverride && o.Kind() != store.AutomaticOverride {
			one := *o
			one.Under = nil
			all = append(all, one)
		}
	}
	return all
}

// overrideOf returns the override of a key, or nil if it has none.
func (s *Server) overrideOf(ctx context.Context, limit, key string) (*dipwell.Override, error) {
	if key == dipwell.Shared {
		key = ""
	}
	listed := key
	if key != "" && s.hashKey != nil {
		listed = s.hashKey(limit, key)
	}
	// Among the keys that begin with listed, listed itself comes first.
	list, err := s.limiter.Overrides(ctx, limit, listed, "", 1)
	if err != nil || len(list) == 0 || list[0].Key != listed {
		return nil, err
	}
	list[0].Key = key
	return &list[0], nil
}

// putOverride answers PUT /v1/limits/{name}/overrides. If the call gives a length of time,
// the override ends that long after the present time of the store's clock.
func (a *api) putOverride(w http.ResponseWriter, r *http.Request, x *exchange) error {
	name := r.PathValue("name")
	o, lasts, err := readOverride(r, x)
	if err == nil && lasts > 0 {
		o.Until, err = a.can.Now(r.Context())
		o.Until += lasts.Microseconds()
	}
	if err == nil {
		o, err = a.limiter.SetOverride(r.Context(), name, o)
	}
	if f, ok := errors.AsType[*dipwell.FieldError](err); ok && f.Field == "until" && lasts > 0 {
		err = bad("for", f.Reason)
	}
	if err != nil {
		return unchanged(name, err)
	}
	a.tops.changes.Add(1)
	a.record(r, store.AuditEntry{Action: didOverride, Limit: name, Key: o.Key, What: describe(&o), Note: o.Note})
	return answerJSON(w, jsonOverride(name, &o), nil)
}

// describe describes an override, and those that it replaced and lies over, in words.
func describe(o *dipwell.Override) string {
	j := jsonOverride("", o)
	text := j.Words(" per ")
	if j.Replaced != nil {
		text += ", in place of " + j.Replaced.Words(" per ")
	}
	if j.Under != nil {
		text += ", over " + j.Under.Words(" per ")
	}
	return text
}

// Words returns what an override sets, for people. per stands between a rate and its period.
func (o *Override) Words(per string) string {
	var parts []string
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(o.Kind == store.AutomaticOverride.String(), "block")
	add(o.Plan != "", "plan %s", o.Plan)
	add(o.Rate != 0 && o.Per == "", "rate %d", o.Rate)
	add(o.Rate != 0 && o.Per != "", "rate %d%s%s", o.Rate, per, o.Per)
	add(o.Rate == 0 && o.Per != "", "per %s", o.Per)
	if o.Burst != nil {
		add(true, "burst %d", *o.Burst)
	}
	add(o.Start != "", "start %s", o.Start)
	if o.Until != nil {
		add(true, "until %s", o.Until.Format(time.RFC3339Nano))
	}
	return strings.Join(parts, " ")
}

func kindOf(name string) (store.OverrideKind, error) {
	for _, k := range []store.OverrideKind{store.StandingOverride, store.TemporaryOverride, store.AutomaticOverride} {
		if k.String() == name {
			return k, nil
		}
	}
	return 0, bad("kind", "is not one of standing, temporary, automatic")
}

func (a *api) deleteOverride(w http.ResponseWriter, r *http.Request, q *query) error {
	name := r.PathValue("name")
	key, err := q.bucket()
	var ended *dipwell.Override
	if err == nil {
		ended, err = a.limiter.EndOverride(r.Context(), name, key, q.kind)
	}
	if err == nil && ended == nil {
		err = errNoOverride
	}
	if err != nil {
		return unchanged(name, err)
	}
	a.tops.changes.Add(1)
	a.record(r, store.AuditEntry{Action: didEndOverride, Limit: name, Key: key, What: describe(ended), Note: q.note})
	w.WriteHeader(http.StatusNoContent)
	return nil
}

var errNoOverride = errors.New("the key has no override")

// overrideCall is the body of putOverride.
type overrideCall struct {
	dipwell.Override
	numbers store.Plan    // the members rate, per and burst
	lasts   time.Duration // the member for
}

// overrideMembers are the names of the members, used in errors.
const overrideMembers = "key, plan, rate, per, burst, start, for, until, note"

func (q *overrideCall) set(name, value string) (err error) {
	switch name {
	case "key":
		q.Key, err = value, checkPlain(value)
	case "plan":
		if q.Plan = value; value == "" {
			err = bad(name, "is empty")
		}
	case "start":
		if q.Start = value; value == "" {
			err = bad(name, "is empty")
		}
	case "note":
		q.Note = value
	case "rate", "per", "burst":
		if err = q.numbers.Set(name, value); err != nil {
			err = bad(name, strings.TrimPrefix(err.Error(), name+": "))
		}
	case "for":
		if q.lasts, err = parseSpan(name, value); err == nil && q.lasts <= 0 {
			err = bad(name, "must be longer than 0")
		}
	case "until":
		t, e := time.Parse(time.RFC3339Nano, value)
		if q.Until = t.UnixMicro(); e != nil {
			err = bad(name, "must be a time such as 2030-01-31T18:00:00Z")
		} else if q.Until <= 0 { // 0 would mean no end
			err = bad(name, "is not in the future")
		}
	default:
		err = bad(name[:min(len(name), 64)], "unknown; known are "+overrideMembers)
	}
	return err
}

// readOverride parses the body of putOverride: an override, and how long it lasts.
func readOverride(r *http.Request, x *exchange) (o dipwell.Override, lasts time.Duration, err error) {
	q := overrideCall{Override: dipwell.Override{Key: dipwell.Shared}}
	seen := names{}
	set := func(name, value string) error {
		if err := seen.once(name); err != nil {
			return err
		}
		return q.set(name, value)
	}
	err = x.parse(r, func(name string, v gjson.Result) error {
		value, err := overrideValue(name, v)
		if err == nil {
			err = set(name, value)
		}
		return err
	}, set)
	if err == nil && seen["for"] && seen["until"] {
		err = bad("for", "is given together with until; give one of them")
	}
	o = q.Override
	o.Rate, o.Period, o.Burst = q.numbers.Rate, q.numbers.Period, q.numbers.Burst
	return o, q.lasts, err
}

func overrideValue(name string, v gjson.Result) (string, error) {
	switch name {
	case "key":
		return keyOfJSON(name, v)
	case "rate", "burst":
		if v.Type == gjson.String {
			return "", bad(name, "must be a whole number")
		}
		return scalarOf(name, v)
	case "plan", "per", "start", "for", "until", "note":
		return textOf(name, v)
	}
	return "", nil // set returns an error for an unknown name, whatever its value
}

type Override struct {
	Limit string     `json:"limit"`
	Key   Nullable   `json:"key"`
	Plan  string     `json:"plan,omitempty"`
	Rate  int64      `json:"rate,omitempty"`
	Per   string     `json:"per,omitempty"`
	Burst *int64     `json:"burst,omitempty"`
	Start string     `json:"start,omitempty"`
	Until *time.Time `json:"until"`
	Note  string     `json:"note,omitempty"`

	Kind     string    `json:"kind"`
	Under    *Override `json:"under,omitempty"`
	Replaced *Override `json:"replaced,omitempty"`
}

func jsonOverride(limit string, o *dipwell.Override) Override {
	out := Override{Limit: limit, Key: Nullable(o.Key), Plan: o.Plan, Rate: o.Rate, Start: o.Start, Note: o.Note, Kind: o.Kind().String()}
	for from, to := range map[*dipwell.Override]**Override{o.Under: &out.Under, o.Replaced: &out.Replaced} {
		if from != nil {
			one := jsonOverride(limit, from)
			one.Under = nil
			*to = &one
		}
	}
	if o.Period != 0 {
		out.Per = period.Format(o.Period)
	}
	if o.Burst != 0 {
		burst := max(o.Burst, 0) // NoBurst is -1
		out.Burst = &burst
	}
	if o.Until != 0 {
		until := time.UnixMicro(o.Until).UTC()
		out.Until = &until
	}
	return out
}
