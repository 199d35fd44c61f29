package server

import (
	"fmt"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// jsonMember parses a member of the body of a call.
func (q *request) jsonMember(name string, v gjson.Result) (err error) {
	m := q.allowed.member(name)
	if err = once(&q.seen, m, name, name); err != nil {
		return err
	}
	switch m {
	case hasTakes:
		return q.parseTakes(v)
	case hasCosts:
		return eachValue(name, v, func(v gjson.Result) error {
			return q.addCost(func(field string) (int64, error) { return costOf(field, v) })
		})
	case hasKeys:
		return eachValue(name, v, q.addKey)
	case hasOK:
		if !v.IsBool() {
			return bad(name, "must be a boolean")
		}
		return q.observed.setOK(v.Raw)
	}
	return q.setValue(v, &q.take, m, name)
}

// setValue sets a member whose value is a text or a number. t is the take that it may
// belong to.
func (q *request) setValue(v gjson.Result, t *dipwell.Take, m members, field string) (err error) {
	switch {
	case m&ofNumber != 0:
		n, err := costOf(field, v)
		q.setNumber(t, m, n)
		return err
	case m == hasKey && v.Type == gjson.Null:
		return bad(field, "must be a string; leave it out if the limit is shared")
	case m == hasKey:
		t.Key, err = keyOfJSON(field, v)
		return err
	}
	text, err := textOf(field, v)
	if err == nil {
		err = q.setText(t, m, field, text)
	}
	return err
}

// once adds m to seen. It returns an error if m is 0, for an unknown name, or is
// repeated. field is the member's path.
func once(seen *members, m members, name, field string) error {
	if m == 0 {
		if len(name) > 64 {
			name, field = name[:64], field[:min(len(field), 80)]
		}
		return bad(field, fmt.Sprintf("unknown member %q", name))
	}
	if *seen&m != 0 {
		return bad(field, "is given twice")
	}
	*seen |= m
	return nil
}

func (q *request) parseTakes(v gjson.Result) error {
	return eachValue("takes", v, func(v gjson.Result) error { // the limiter rejects an empty list
		if len(q.takes) == store.MaxTakes {
			return bad("takes", tooManyTakes)
		}
		return q.parseTake(v)
	})
}

func (q *request) parseTake(v gjson.Result) error {
	where := fmt.Sprintf("takes[%d]", len(q.takes))
	var t dipwell.Take
	var seen members
	err := eachMember(where, v, func(name string, v gjson.Result) error {
		m, field := (q.allowed & ofTake).member(name), where+"."+name
		if err := once(&seen, m, name, field); err != nil {
			return err
		}
		return q.setValue(v, &t, m, field)
	})
	if err == nil {
		err = finish(&t, seen, where+".")
	}
	q.takes = append(q.takes, t)
	return err
}
