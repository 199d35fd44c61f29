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
	return q.all(), nil
}

// MaxSecure is the bound of connections with TLS, and of gRPC.
const MaxSecure = maxSecure

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
