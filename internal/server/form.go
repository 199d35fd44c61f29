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

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
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

// parseQuery sets the parameters of a query. One that is repeated, or none of known, is an
// error.
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
	switch {
	case m&ofNumber != 0:
		n, err := parseCost(name, value)
		q.setNumber(&q.take, m, n)
		return err
	case m == hasCosts:
		return q.parseCosts(value)
	case m == hasOK:
		return q.observed.setOK(value)
	}
	return q.setText(&q.take, m, name, value)
}

// setText sets a member whose value is a text. t is the take that it may belong to.
func (q *request) setText(t *dipwell.Take, m members, name, value string) (err error) {
	switch m {
	case hasLimit:
		t.Limit = value
	case hasKey:
		t.Key = value
	case hasPlan:
		t.Plan = value
	case hasReservation:
		q.reservation = value
	case hasHold:
		q.hold = value
	case hasID:
		q.id, err = value, checkID(value)
	case hasNote:
		q.note, err = value, checkNote(value)
	case hasTTL:
		q.ttl, err = parseSpan(name, value)
	case hasTimeout:
		q.timeout, err = parseSpan(name, value)
	}
	return err
}

// setNumber sets a member of the set ofNumber.
func (q *request) setNumber(t *dipwell.Take, m members, n int64) {
	switch m {
	case hasCost:
		t.Cost = n
	case hasFloor:
		t.Floor = n
	case hasLatency:
		q.observed.latency = n
	case hasCount:
		q.observed.count = n
	}
}

// parseCosts parses the costs of a form: numbers with commas between them.
func (q *request) parseCosts(value string) error {
	for text := range strings.SplitSeq(value, ",") {
		if err := q.addCost(func(field string) (int64, error) { return parseCost(field, text) }); err != nil {
			return err
		}
	}
	return nil
}

// addCost appends the cost that parse returns to the costs.
func (q *request) addCost(parse func(field string) (int64, error)) error {
	if len(q.costs) == store.MaxTakes {
		return bad("costs", tooManyTakes)
	}
	n, err := parse("costs[" + strconv.Itoa(len(q.costs)) + "]")
	q.costs = append(q.costs, n)
	return err
}

// checkID checks the id of a hold, if the caller has given one. Otherwise the limiter
// makes one.
func checkID(id string) error {
	if id == "" {
		return bad("id", "is empty; leave it out to get one")
	}
	return nil
}
