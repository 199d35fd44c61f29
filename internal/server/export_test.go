package server

import "github.com/dipwell/dipwell"

// ParseTakes parses a JSON body like the verbs.
func ParseTakes(body []byte) ([]dipwell.Take, error) {
	q := request{allowed: ofTake | hasTakes}
	if err := parseObject(body, q.jsonMember); err != nil {
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

// Load is the estimate of what unfinished requests take, without those of light connections.
func (s *Server) Load() int64 {
	s.load.mu.Lock()
	defer s.load.mu.Unlock()
	return s.load.sum
}

// What clients can make the service keep is at most this, by the bounds of connections.
const (
	MaxConnections = maxConnections
	MaxSecure      = maxSecure
	MaxGRPC        = maxGRPC
	MaxLoad        = maxLoad
	LightLoad      = lightLoad
	MaxLarge       = maxLarge
)

// A Call is a call of the API.
type Call struct {
	Method, Path string
	Needs        Role
}

// Calls returns the table of calls.
func Calls() (calls []Call) {
	for _, r := range routes() {
		calls = append(calls, Call{r.method, r.path, r.needs})
	}
	return calls
}

// NeedsOf is what a call of gRPC needs.
var NeedsOf = needsOf
