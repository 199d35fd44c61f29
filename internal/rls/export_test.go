package rls

import "github.com/dipwell/dipwell"

// Limits returns the limits of the rules.
func (r *Rules) Limits() []dipwell.Limit {
	out := make([]dipwell.Limit, len(r.rules))
	for i, rule := range r.rules {
		out[i] = rule.limit
	}
	return out
}
