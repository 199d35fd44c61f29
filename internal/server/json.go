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
	case hasTimeout:
		q.timeout, err = s.span(name)
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
			return bad(field, "must be a string; leave it out for the limit's one shared bucket")
		}
		t.Key, err = s.str(field)
	case hasCost:
		t.Cost, err = s.integer(field)
	}
	return err
}

func (q *request) parseTakes(s *scanner) error {
	if !s.next('[') {
		return s.notA("takes", "an array")
	}
	if s.next(']') {
		return nil // the limiter rejects it
	}
	for {
		if len(q.takes) == store.MaxTakes {
			return bad("takes", fmt.Sprintf("has more than %d entries", store.MaxTakes))
		}
		if err := q.parseTake(s); err != nil {
			return err
		}
		if s.next(']') {
			return nil
		}
		if !s.next(',') {
			return s.errSyntax("a comma")
		}
	}
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
