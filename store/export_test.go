package store

// CarryUnits is carryUnits for tests.
func (d *Definition) CarryUnits(units int64, n uint32, o *Override, t int64) int64 {
	return d.carryUnits(units, n, o, t)
}

// Outcome is outcome for tests.
type Outcome = outcome

// Apply is apply for tests.
func (r *Rule) Apply(s State, now int64, verb Verb, cost int64) (o Outcome) {
	r.apply(&o, &s, now, verb, cost, 0)
	return o
}
