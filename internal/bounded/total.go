package bounded

// Sum returns the n busiest keys of several processes. A key that is missing in one list
// counts there with the most that an unlisted key can have.
func Sum(tops []Top, n int) Top {
	sum := join(tops)
	sum.cut(n)
	return sum
}

// join is Sum with all keys, not only the n busiest, in no order.
func join(tops []Top) (sum Top) {
	n := 0
	for _, t := range tops {
		sum.Events += t.Events
		sum.Unlisted += t.Unlisted
		n += len(t.Keys)
	}
	at := make(map[[2]string]int, n)
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
	return sum
}

// add adds the keys of a shard to those of others, with which it has no key in common.
func (t *Top) add(shard Top) {
	t.Keys = append(t.Keys, shard.Keys...)
	t.Events += shard.Events
	t.Unlisted = max(t.Unlisted, shard.Unlisted)
}
