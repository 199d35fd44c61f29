package server

import "github.com/dipwell/dipwell"

// ParseTakes parses a JSON body like the verbs.
func ParseTakes(body []byte) ([]dipwell.Take, error) {
	q := request{allowed: ofTake | hasTakes}
	if err := q.parseJSON(body); err != nil {
		return nil, err
	}
	if err := q.complete(); err != nil {
		return nil, err
	}
	if q.has(hasTakes) {
		return q.takes, nil
	}
	return []dipwell.Take{q.take}, nil
}
