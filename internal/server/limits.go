package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// listLimits answers GET /v1/limits with a page of definitions in order of name.
func (a *api) listLimits(w http.ResponseWriter, r *http.Request, q *query) error {
	n := cmp.Or(q.n, pageSize)
	defs := a.limitsOf(r.Context())
	from, _ := slices.BinarySearchFunc(defs, q.after+"\x00", func(d *store.Definition, name string) int { return strings.Compare(d.Name, name) })
	page, last := []json.RawMessage{}, ""
	for _, def := range defs[from:min(from+n, len(defs))] {
		page, last = append(page, a.limitJSON(def)), def.Name
	}
	return writePage(w, "limits", page, from+n < len(defs), last)
}

// limitsOf returns the limits that the caller may name, in order of name.
func (a *api) limitsOf(ctx context.Context) []*store.Definition {
	return slices.DeleteFunc(a.limiter.Limits(), func(d *store.Definition) bool { return callerOf(ctx).mayName("", d.Name) != nil })
}

func (a *api) getLimit(w http.ResponseWriter, r *http.Request, _ *query) error {
	def := a.limiter.Limit(r.PathValue("name"))
	if def == nil {
		return unknownLimit(r.PathValue("name"))
	}
	return writeJSON(w, http.StatusOK, append(a.limitJSON(def), '\n'))
}

// putLimit reads the settings of a configuration file, as JSON or as parameters. A setting that
// is absent is the default, not the present value.
func (a *api) putLimit(w http.ResponseWriter, r *http.Request, x *exchange) error {
	limit, note, err := readLimit(r, x)
	status, what := http.StatusOK, ""
	var def *store.Definition
	if err == nil && limit.Parent != "" {
		err = callerOf(r.Context()).mayName("parent", limit.Parent)
	}
	if err == nil {
		if old := a.limiter.Limit(limit.Name); old == nil {
			status = http.StatusCreated
		} else {
			what = "was " + old.String()
		}
		def, err = a.limiter.Define(r.Context(), limit, terms.OwnerAPI)
	}
	if err != nil {
		return unchanged(limit.Name, err)
	}
	if now := def.String(); what != "was "+now {
		a.record(r, store.AuditEntry{Action: didDefine, Limit: limit.Name, What: strings.TrimSuffix(now+"; "+what, "; "), Note: note})
	}
	return writeJSON(w, status, append(a.limitJSON(def), '\n'))
}

// unchanged returns the error of a failed change of a limit. unchanged also logs the text
// of a store's error, such as a missing privilege, which fail does not send.
func unchanged(name string, err error) error {
	if errors.Is(err, dipwell.ErrStore) {
		slog.Error("change of limit " + name + ": " + err.Error())
	}
	return err
}

func (a *api) deleteLimit(w http.ResponseWriter, r *http.Request, q *query) error {
	name := r.PathValue("name")
	err := a.limiter.Drop(r.Context(), name, terms.OwnerAPI)
	if parent, ok := errors.AsType[*dipwell.FieldError](err); ok { // the error is about another limit
		httplimit.Problem(w, http.StatusConflict, parent.Field, parent.Error())
		return nil
	}
	if err != nil {
		return unchanged(name, err)
	}
	a.record(r, store.AuditEntry{Action: didDrop, Limit: name, Note: q.note})
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// readLimit parses the body of putLimit: a definition, and why it is changed.
func readLimit(r *http.Request, x *exchange) (l dipwell.Limit, note string, err error) {
	l = dipwell.Limit{Name: r.PathValue("name")}
	seen := names{}
	set := func(name, value string) error {
		if err := seen.once(name); err != nil {
			return err
		}
		if name == "name" && value != l.Name {
			return bad(name, "is not the name in the path")
		}
		if name == "note" {
			note = value
			return checkNote(value)
		}
		return l.Set(name, value)
	}
	err = x.parse(r, func(name string, v gjson.Result) error {
		if name != "note" {
			return limitSetting(&l, seen, name, v, set)
		}
		value, err := textOf(name, v) // as text, even if it looks like a number
		if err == nil {
			err = set(name, value)
		}
		return err
	}, set)
	return l, note, err
}

// limitSetting parses a setting of a limit, and sets it if it is only a text or a number.
func limitSetting(l *dipwell.Limit, seen names, name string, v gjson.Result, set func(name, value string) error) error {
	switch {
	case name == "plans":
		return parsePlans(l, seen, v)
	case name == "adaptive" && v.IsObject():
		return innerObject(seen, "adaptive", v, l.Adaptive.Set)
	}
	return setSetting(name, name, v, set)
}

// notSettings are the members that GET /v1/limits has in addition to the settings.
var notSettings = []string{"owner", "version", "capacity", "present_rate", "rate_reason", "rate_changed_us", "warning"}

// ParseLimit returns the settings of a limit as GET /v1/limits has it.
func ParseLimit(b []byte) (l dipwell.Limit, err error) {
	seen := names{}
	err = parseObject(b, func(name string, v gjson.Result) error {
		return limitSetting(&l, seen, name, v, func(name, value string) error {
			if slices.Contains(notSettings, name) {
				return nil
			}
			return l.Set(name, value)
		})
	})
	return l, err
}

// names are the members of an object that were read, including those of inner objects.
type names map[string]bool

func (n names) once(name string) error {
	if n[name] {
		return bad(name, "is given twice")
	}
	n[name] = true
	return nil
}

// inner sets a setting of an inner object, whose path is field.
func inner(seen names, field, name string, v gjson.Result, set func(name, value string) error) error {
	err := seen.once(field)
	if err == nil {
		err = setSetting(field, name, v, set)
	}
	if err != nil && !errors.As(err, new(*dipwell.FieldError)) {
		err = bad(field, strings.TrimPrefix(err.Error(), name+": "))
	}
	return err
}

// innerObject sets the settings of an inner object.
func innerObject(seen names, field string, v gjson.Result, set func(name, value string) error) error {
	if err := seen.once(field); err != nil {
		return err
	}
	return eachMember(field, v, func(name string, v gjson.Result) error {
		return inner(seen, field+"."+name, name, v, set)
	})
}

// parsePlans parses plans: an object of them by name, each an object of settings or a mode.
func parsePlans(l *dipwell.Limit, seen names, v gjson.Result) error {
	if err := seen.once("plans"); err != nil {
		return err
	}
	var plans []dipwell.Plan
	err := eachMember("plans", v, func(name string, v gjson.Result) error {
		p, field := dipwell.Plan{Name: name}, "plans."+name
		defer func() { plans = append(plans, p) }()
		if !v.IsObject() {
			return inner(seen, field, "mode", v, p.Set)
		}
		return innerObject(seen, field, v, p.Set)
	})
	l.Plans = dipwell.NewPlans(plans...)
	return err
}

// limitJSON returns a definition: its settings as in a configuration file, and its owner.
func (a *api) limitJSON(def *store.Definition) []byte {
	b := []byte{'{'}
	for _, s := range def.Explicit() {
		switch s[0] {
		case "plans":
			b = appendPlans(b, def.Plans)
		case "adaptive":
			b = appendSettings(append(b, `"adaptive":`...), def.Adaptive.String())
		default:
			b = appendSetting(b, s)
		}
		b = append(b, ',')
	}
	b = texts.AppendJSON(append(b, `"owner":`...), terms.OwnerName(def.Owner))
	b = strconv.AppendUint(append(b, `,"version":`...), uint64(def.Number), 10)
	b = strconv.AppendInt(append(b, `,"capacity":`...), def.Together().Rule.Burst, 10)
	if def.Adaptive.Floor > 0 {
		rate, reason, changed := a.limiter.PresentRate(def.Name)
		b = strconv.AppendInt(append(b, `,"present_rate":`...), rate, 10)
		b = append(append(append(b, `,"rate_reason":"`...), reason...), '"')
		b = strconv.AppendInt(append(b, `,"rate_changed_us":`...), changed.UnixMicro(), 10)
	}
	if def.Warning != "" {
		b = texts.AppendJSON(append(b, `,"warning":`...), def.Warning)
	}
	return append(b, '}')
}

func appendPlans(b []byte, plans store.Plans) []byte {
	b = append(b, `"plans":{`...)
	for i, p := range strings.Split(plans.String(), "|") {
		if i > 0 {
			b = append(b, ',')
		}
		name, settings, _ := strings.Cut(p, ":")
		b = appendSettings(append(texts.AppendJSON(b, name), ':'), settings)
	}
	return append(b, '}')
}

// appendSettings appends an object of settings, "floor=50;errors=0.02".
func appendSettings(b []byte, settings string) []byte {
	b = append(b, '{')
	for s := range strings.SplitSeq(settings, ";") {
		if name, value, found := strings.Cut(s, "="); found {
			b = append(appendSetting(b, [2]string{name, value}), ',')
		}
	}
	return append(bytes.TrimSuffix(b, []byte{','}), '}')
}

func appendSetting(b []byte, s [2]string) []byte {
	b = append(texts.AppendJSON(b, s[0]), ':')
	if s[0] != "name" && s[0] != "parent" && json.Valid([]byte(s[1])) { // a number or a boolean
		return append(b, s[1]...)
	}
	return texts.AppendJSON(b, s[1])
}

// A Nullable is a text that is null in JSON if it is empty.
type Nullable string

func (t Nullable) MarshalJSON() ([]byte, error) {
	if t == "" {
		return []byte("null"), nil
	}
	return asJSON(string(t)), nil
}

// asJSON returns a value as JSON, in which < and the like are not escaped.
func asJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // cannot happen with the structs of this package
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

// writePage writes a page of a list, with the name after which the next begins if there is more.
func writePage(w http.ResponseWriter, name string, entries any, more bool, last string) error {
	next := []byte("null")
	if more {
		next = asJSON(last)
	}
	return writeJSON(w, http.StatusOK, fmt.Appendf(nil, "{%q:%s,\"next\":%s}\n", name, asJSON(entries), next))
}

// answerJSON writes an answer, unless there was an error.
func answerJSON(w http.ResponseWriter, v any, err error) error {
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, append(asJSON(v), '\n'))
}

// writeJSON always returns nil: the request is answered, even if the client has gone.
func writeJSON(w http.ResponseWriter, status int, body []byte) error {
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(body)
	return nil
}
