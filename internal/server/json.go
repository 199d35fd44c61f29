package server

import (
	"fmt"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// jsonMember parses a member of the body of a call.
func (q *request) jsonMember(s *scanner, name string) (err error) {
	m := q.allowed.member(name)
	if err = once(&q.seen, m, name, name); err != nil {
		return err
	}
	switch m {
	case hasTakes:
		return q.parseTakes(s)
	case hasCosts:
		return s.array(name, func() error { return q.addCost(s.integer) })
	case hasKeys:
		return s.array(name, func() error { return q.addKey(s) })
	case hasOK:
		if c := s.peek(); c != 't' && c != 'f' {
			return s.notA(name, "a boolean")
		}
		return q.observed.setOK(s.word())
	}
	return q.setValue(s, &q.take, m, name)
}

// setValue sets a member whose value is a text or a number. t is the take that it may
// belong to.
func (q *request) setValue(s *scanner, t *dipwell.Take, m members, field string) (err error) {
	switch {
	case m&ofNumber != 0:
		n, err := s.integer(field)
		q.setNumber(t, m, n)
		return err
	case m == hasKey && s.peek() == 'n':
		return bad(field, "must be a string; leave it out if the limit is shared")
	case m == hasKey:
		t.Key, err = s.key(field)
		return err
	}
	text, err := s.str(field)
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
		return q.setValue(s, &t, m, field)
	})
	if err == nil {
		err = finish(&t, seen, where+".")
	}
	q.takes = append(q.takes, t)
	return err
}
