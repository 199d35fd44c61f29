package server

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// eachParam calls f for each parameter of a query or form. Unlike url.ParseQuery it reports
// malformed ones.
func eachParam(s string, f func(name, value string) error) error {
	for s != "" {
		var pair string
		if pair, s, _ = strings.Cut(s, "&"); pair == "" {
			continue
		}
		n, v, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(n)
		if err != nil || !utf8.ValidString(name) {
			return bad("query", "a parameter's name is not percent-encoded UTF-8")
		}
		value, err := url.QueryUnescape(v)
		if err != nil || !utf8.ValidString(value) {
			return bad(name, "is not percent-encoded UTF-8")
		}
		if err = f(name, value); err != nil {
			return err
		}
	}
	return nil
}

// A param is a parameter of a query.
type param struct {
	name string
	set  func(value string) error
}

// parseQuery sets the parameters of a query. A parameter that is repeated, or not in
// known, is an error.
func parseQuery(query string, known ...param) error {
	seen := names{}
	return eachParam(query, func(name, value string) error {
		if err := seen.once(name); err != nil {
			return err
		}
		if i := slices.IndexFunc(known, func(p param) bool { return p.name == name }); i >= 0 {
			return known[i].set(value)
		}
		var all []string
		for _, p := range known {
			all = append(all, p.name)
		}
		return bad(name, "unknown parameter; known are "+strings.Join(all, ", "))
	})
}

// textParam is a parameter with any text, givenParam the same with whether it is there,
// limitParam a limit that is not empty, keyParam a key that is not empty, noteParam a note,
// sizeParam a number of at least 1, costParam a cost, and timeParam a time.
func textParam(name string, to *string) param { return givenParam(name, to, new(bool)) }

func givenParam(name string, to *string, given *bool) param {
	return param{name, func(value string) error { *to, *given = value, true; return nil }}
}

func limitParam(to *string) param {
	return param{"limit", func(value string) error {
		if *to = value; value == "" {
			return bad("limit", "is empty")
		}
		return nil
	}}
}

func keyParam(to *string) param {
	return param{"key", func(value string) error { *to = value; return checkPlain(value) }}
}

func noteParam(to *string) param {
	return param{"note", func(value string) error { *to = value; return checkNote(value) }}
}

func sizeParam(name string, to *int, most int) param {
	return param{name, func(value string) (err error) {
		if *to, err = strconv.Atoi(value); err != nil || *to < 1 || *to > most {
			return bad(name, fmt.Sprintf("must be from 1 to %d", most))
		}
		return nil
	}}
}

func costParam(name string, to *int64) param {
	return param{name, func(value string) (err error) { *to, err = parseCost(name, value); return err }}
}

func timeParam(name string, to *time.Time) param {
	return param{name, func(value string) error {
		at, err := time.Parse(time.RFC3339, value)
		if *to = at.UTC(); err != nil || to.Year() < 1971 || to.Year() > 9999 {
			return bad(name, "is not a time such as 2030-01-31T18:00:00Z")
		}
		return nil
	}}
}

// noParams wraps a handler that takes no parameters.
func noParams(next handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		err := eachParam(r.URL.RawQuery, func(name, _ string) error { return bad(name, "unknown parameter; this path takes none") })
		if err != nil {
			return err
		}
		return next(w, r)
	}
}

func (q *request) param(name, value string) error {
	known := q.allowed &^ (hasTakes | hasKeys)
	m := known.member(name)
	if m == 0 {
		return bad(name, "unknown parameter; known are "+known.String())
	}
	if q.has(m) {
		return bad(name, "is given twice")
	}
	q.seen |= m
	if m != hasCosts {
		return q.setValue(formValue(m, value), &q.take, m, name)
	}
	for text := range strings.SplitSeq(value, ",") {
		if err := q.addCost(formValue(hasCost, text)); err != nil {
			return err
		}
	}
	return nil
}

// formValue returns the value of a parameter as JSON has it.
func formValue(m members, value string) gjson.Result {
	switch {
	case m&ofNumber != 0:
		return gjson.Result{Type: gjson.Number, Raw: value}
	case m == hasOK && value == "true":
		return gjson.Result{Type: gjson.True}
	case m == hasOK && value == "false":
		return gjson.Result{Type: gjson.False}
	}
	return gjson.Result{Type: gjson.String, Str: value}
}
