package bounded

// A total is the sum of ended slices of a shard. Its keys are not sorted.
type total struct {
	keys           []Count
	events, absent uint64 // absent is the largest count that a key without one can have
}

// plus returns the sum of t and a slice, with at most n keys. The error bounds of both
// hold for the sum: a key that one of them does not have counts there as absent, the
// largest count that it can have had.
func (t total) plus(slice *summary, events uint64, n int) total {
	least := slice.least()
	sum := Top{Events: t.events + events, Unlisted: t.absent + least}
	at := make(map[[2]string]int, len(t.keys))
	for i, k := range t.keys {
		at[[2]string{k.Limit, k.Key}] = i
		sum.Keys = append(sum.Keys, Count{k.Limit, k.Key, k.Count + least, k.Error + least})
	}
	for i := range slice.counters {
		c := &slice.counters[i]
		key := string(c.key)
		if i, ok := at[[2]string{c.limit, key}]; ok {
			sum.Keys[i].Count += c.count - least
			sum.Keys[i].Error += c.error - least
		} else {
			sum.Keys = append(sum.Keys, Count{c.limit, key, c.count + t.absent, c.error + t.absent})
		}
	}
	sum.cut(n)
	return total{sum.Keys, sum.Events, sum.Unlisted}
}

// addTo adds the total of a shard to that of all shards, which have no key in common.
func (t total) addTo(all *Top) {
	all.Keys = append(all.Keys, t.keys...)
	all.Events += t.events
	all.Unlisted = max(all.Unlisted, t.absent)
}

// Sum returns the n busiest keys of several processes. A key that is missing in one list
// counts there with the most that an unlisted key can have.
func Sum(tops []Top, n int) (sum Top) {
	at := map[[2]string]int{}
	for _, t := range tops {
		sum.Events += t.Events
		sum.Unlisted += t.Unlisted
	}
	for _, t := range tops {
		for _, k := range t.Keys {
			name := [2]string{k.Limit, k.Key}
			i, ok := at[name]
			if !ok {
				i = len(sum.Keys)
				at[name] = i
				sum.Keys = append(sum.Keys, Count{k.Limit, k.Key, sum.Unlisted, sum.Unlisted})
			}
			sum.Keys[i].Count += k.Count - t.Unlisted
			sum.Keys[i].Error += k.Error - t.Unlisted
		}
	}
	sum.cut(n)
	return sum
}
