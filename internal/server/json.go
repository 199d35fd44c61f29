package server

import (
	"fmt"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// parseJSON parses the body of a call.
func (q *request) parseJSON(b []byte) error {
	s := scanner{b: b}
	if err := s.object(func(name string) error { return q.jsonMember(&s, name) }); err != nil {
		return err
	}
	return s.end()
}

func (q *request) jsonMember(s *scanner, name string) (err error) {
	m := q.allowed.member(name)
	if err = once(&q.seen, m, name, name); err != nil {
		return err
	}
	switch m {
	case hasTakes:
		return q.parseTakes(s)
	case hasReservation:
		q.reservation, err = s.str(name)
		return err
	case hasHold:
		q.hold, err = s.str(name)
		return err
	case hasID:
		if q.id, err = s.str(name); err == nil {
			err = checkID(q.id)
		}
		return err
	case hasNote:
		if q.note, err = s.str(name); err == nil {
			err = checkNote(q.note)
		}
		return err
	case hasCosts:
		return s.array(name, func() error { return q.addCost(s.integer) })
	case hasKeys:
		return s.array(name, func() error { return q.addKey(s) })
	case hasTTL:
		q.ttl, err = s.span(name)
		return err
	case hasTimeout:
		q.timeout, err = s.span(name)
		return err
	case hasLatency:
		q.observed.latency, err = s.integer(name)
		return err
	case hasOK:
		if c := s.peek(); c != 't' && c != 'f' {
			return s.notA(name, "a boolean")
		}
		return q.observed.setOK(s.word())
	case hasCount:
		q.observed.count, err = s.integer(name)
		return err
	}
	return takeValue(s, &q.take, m, name)
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

func takeValue(s *scanner, t *dipwell.Take, m members, field string) (err error) {
	switch m {
	case hasLimit:
		t.Limit, err = s.str(field)
	case hasKey:
		if s.peek() == 'n' {
			return bad(field, "must be a string; leave it out if the limit is shared")
		}
		t.Key, err = s.key(field)
	case hasCost:
		t.Cost, err = s.integer(field)
	case hasPlan:
		t.Plan, err = s.str(field)
	case hasFloor:
		t.Floor, err = s.integer(field)
	}
	return err
}

func (q *request) parseTakes(s *scanner) error {
	return s.array("takes", func() error { // the limiter rejects an empty list
		if len(q.takes) == store.MaxTakes {
			return bad("takes", tooManyTakes)
		}
		return q.parseTake(s)
	})
}

func (q *request) parseTake(s *scanner) error {
	where := fmt.Sprintf("takes[%d]", len(q.takes))
	if s.peek() != '{' {
		return s.notA(where, "an object")
	}
	var t dipwell.Take
	var seen members
	err := s.object(func(name string) error {
		m, field := (q.allowed & ofTake).member(name), where+"."+name
		if err := once(&seen, m, name, field); err != nil {
			return err
		}
		return takeValue(s, &t, m, field)
	})
	if err == nil {
		err = finish(&t, seen, where+".")
	}
	q.takes = append(q.takes, t)
	return err
}
