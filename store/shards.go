package store

// Together returns the definition with the numbers of all rows of a key added up, for
// the answer that is their sum. For the same base definition Together returns the same
// definition each time.
func (d *Definition) Together() *Definition {
	if d.plans == nil || d.plans.number != d.Number {
		return d.addRows()
	}
	d.plans.sums.Do(func() { d.plans.sum = d.addRows() })
	return d.plans.sum
}

func (d *Definition) addRows() *Definition {
	if d.Shards < 2 {
		return d
	}
	whole := *d
	r := &whole.Rule
	for _, n := range []*int64{&r.Burst, &r.Cap, &r.Add, &r.Most} {
		*n = min(*n*d.Shards, MaxInt)
	}
	return &whole
}
