package bounded

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// uses are what the keys of a shard used since they were last taken. A key keeps its place
// while it is among the busiest, and is then counted exactly. The others are counted
// together, by limit, once there are most.
type uses struct {
	most, n int
	at      map[uint64]*use // by hash
	rest    map[string]*use // by limit
}

type use struct {
	store.UsageLine
	next *use // of the same hash
}

// find returns what a key used, or what the keys of its limit used that are counted together.
func (u *uses) find(hash uint64, limit, key string) *use {
	for x := u.at[hash]; x != nil; x = x.next {
		if x.Key == key && x.Limit == limit {
			return x
		}
	}
	if u.at == nil {
		u.at, u.rest = map[uint64]*use{}, map[string]*use{}
	}
	if u.n >= u.most {
		if u.rest[limit] == nil {
			u.rest[limit] = &use{UsageLine: store.UsageLine{Limit: limit}}
		}
		return u.rest[limit]
	}
	x := &use{store.UsageLine{Limit: limit, Key: strings.Clone(key)}, u.at[hash]}
	u.at[hash] = x
	u.n++
	return x
}

// take appends what was used since the last take. Of the keys, the busiest half keep their
// places, so that there are places for others.
func (u *uses) take(lines []store.UsageLine) []store.UsageLine {
	var busiest []*use
	for _, x := range u.at {
		for ; x != nil; x = x.next {
			if x.Allowed|x.Refused|x.Tokens != 0 {
				lines, busiest = append(lines, x.UsageLine), append(busiest, x)
			}
		}
	}
	for _, l := range u.rest {
		lines = append(lines, l.UsageLine)
	}
	slices.SortFunc(busiest, func(a, b *use) int { return cmp.Compare(b.Allowed+b.Refused, a.Allowed+a.Refused) })
	stay := map[*use]bool{}
	for _, x := range busiest[:min(len(busiest), (u.most+1)/2)] {
		x.Allowed, x.Refused, x.Tokens = 0, 0, 0
		stay[x] = true
	}
	at := map[uint64]*use{}
	for hash, x := range u.at {
		for x != nil {
			next := x.next
			if stay[x] {
				x.next, at[hash] = at[hash], x
			}
			x = next
		}
	}
	u.at, u.n, u.rest = at, len(stay), map[string]*use{}
	return lines
}

// AddUse counts an event of a key, as Add does, and what it used.
func (w *Window) AddUse(limit, key string, allowed, refused, tokens int64) {
	s, c := w.add(limit, key)
	x := c.use
	if x == nil {
		x = s.uses.find(c.hash, limit, key)
		c.use = x
	}
	x.Allowed, x.Refused, x.Tokens = x.Allowed+allowed, x.Refused+refused, x.Tokens+tokens
	s.mu.Unlock()
}

// TakeUses returns what keys used since the last call. Limit and key of no two lines are the
// same, except those of keys that were counted together, whose key is "".
func (w *Window) TakeUses() (lines []store.UsageLine) {
	w.each(func(s *shard) {
		lines = s.uses.take(lines)
		for _, of := range s.slices {
			for i := range of.counters {
				of.counters[i].use = nil // the key may have lost its place
			}
		}
	})
	return lines
}
