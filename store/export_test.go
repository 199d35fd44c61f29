package store

// Outcome is outcome for tests.
type Outcome = outcome

// Apply is apply for tests.
func (r *Rule) Apply(s State, now int64, verb Verb, cost int64) (o Outcome) {
	r.apply(&o, &s, now, verb, cost, 0)
	return o
}
