package store

// CheckTogether checks the parents of limits that are defined together, such as those of a
// file, with the rules of Registry.Define. CheckTogether returns an error for each limit whose
// parent is wrong, and ignores limits that are invalid for other reasons.
func CheckTogether(limits []Limit) (errs []error) {
	var r Registry
	above := map[string]bool{}
	for i := range limits {
		above[limits[i].Parent] = true
	}
	var defs []*Definition
	for i := range limits {
		if l := &limits[i]; l.Parent != "" || above[l.Name] { // others have no parent and are none
			if d, err := NewDefinition(*l); err == nil {
				defs = append(defs, d)
			}
		}
	}
	r.Install(defs)
	for i := range limits {
		if err := r.CheckParents(&limits[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// ParentsFirst sorts items, each of which has a limit, into an order in which the
// limits can be defined: a parent before its children, otherwise unchanged. It returns items
// if that is their order. To drop limits, use the reverse order.
func ParentsFirst[T any](items []T, limitOf func(*T) *Limit) []T {
	at, sorted := make(map[string]int, len(items)), true
	for i := range items {
		l := limitOf(&items[i])
		if at[l.Name] = i; l.Parent != "" {
			above, ok := at[l.Parent]
			sorted = sorted && ok && above < i
		}
	}
	if sorted {
		return items
	}
	out := make([]T, 0, len(items))
	added := make([]bool, len(items))
	var add func(i int)
	add = func(i int) {
		if added[i] {
			return
		}
		added[i] = true
		if parent, ok := at[limitOf(&items[i]).Parent]; ok {
			add(parent)
		}
		out = append(out, items[i])
	}
	for i := range items {
		add(i)
	}
	return out
}
