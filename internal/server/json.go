package server

import (
	"fmt"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

func (q *request) jsonMember(name string, v gjson.Result) (err error) {
	m := q.allowed.member(name)
	if err = once(&q.seen, m, name, name); err != nil {
		return err
	}
	switch m {
	case hasTakes:
		return eachValue(name, v, q.parseTake) // the limiter rejects an empty list
	case hasCosts:
		return eachValue(name, v, q.addCost)
	case hasKeys:
		return eachValue(name, v, q.addKey)
	}
	return q.setValue(v, &q.take, m, name)
}

// setValue sets a member that has one value. t is the take to which the member may belong.
func (q *request) setValue(v gjson.Result, t *dipwell.Take, m members, field string) (err error) {
	switch m {
	case hasLimit:
		t.Limit, err = textOf(field, v)
	case hasKey:
		if v.Type == gjson.Null {
			return bad(field, "must be a string; leave it out if the limit is shared")
		}
		t.Key, err = keyOfJSON(field, v)
	case hasCost:
		t.Cost, err = costOf(field, v)
	case hasPlan:
		t.Plan, err = textOf(field, v)
	case hasFloor:
		t.Floor, err = costOf(field, v)
	case hasReservation:
		q.reservation, err = textOf(field, v)
	case hasHold:
		q.hold, err = textOf(field, v)
	case hasID:
		if q.id, err = textOf(field, v); err == nil && q.id == "" {
			err = bad(field, "is empty; leave it out to get one")
		}
	case hasNote:
		if q.note, err = textOf(field, v); err == nil {
			err = checkNote(q.note)
		}
	case hasTTL:
		q.ttl, err = spanOf(field, v)
	case hasTimeout:
		q.timeout, err = spanOf(field, v)
	case hasLatency:
		q.latency, err = costOf(field, v)
	case hasOK:
		if q.ok = v.Type == gjson.True; !v.IsBool() {
			err = bad(field, "is neither true nor false")
		}
	case hasCount:
		q.count, err = costOf(field, v)
	}
	return err
}

func (q *request) addCost(v gjson.Result) error {
	if len(q.costs) == store.MaxTakes {
		return bad("costs", tooManyTakes)
	}
	n, err := costOf(fmt.Sprintf("costs[%d]", len(q.costs)), v)
	q.costs = append(q.costs, n)
	return err
}

// once adds m to seen, unless it is 0, for an unknown name, or repeated. field is its path.
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

func (q *request) parseTake(v gjson.Result) error {
	if len(q.takes) == store.MaxTakes {
		return bad("takes", tooManyTakes)
	}
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
