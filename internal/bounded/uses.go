package bounded

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// uses are what the keys of a shard used since they were last taken. A key keeps its place
// while it is among the busiest, and is then counted exactly. Other keys are counted
// together, by limit, once there are most keys.
type uses struct {
	most int
	at   map[[2]string]*store.UsageLine // by limit and key; the key "" has the usage that is counted together
}

// find returns what a key used, or what the keys of its limit used that are counted together.
func (u *uses) find(limit, key string) *store.UsageLine {
	x := u.at[[2]string{limit, key}]
	if x == nil && len(u.at) >= u.most {
		key = ""
		x = u.at[[2]string{limit, key}]
	}
	if x == nil {
		x = &store.UsageLine{Limit: limit, Key: strings.Clone(key)}
		if u.at == nil {
			u.at = map[[2]string]*store.UsageLine{}
		}
		u.at[[2]string{limit, x.Key}] = x
	}
	return x
}

// take appends what was used since the last take. Of the keys, the busiest half keep their
// places, and the other places become free.
func (u *uses) take(lines []store.UsageLine) []store.UsageLine {
	var busiest []*store.UsageLine
	for _, x := range u.at {
		if x.Allowed|x.Refused|x.Tokens == 0 {
			continue
		}
		if lines = append(lines, *x); x.Key != "" {
			busiest = append(busiest, x)
		}
	}
	slices.SortFunc(busiest, func(a, b *store.UsageLine) int { return cmp.Compare(b.Allowed+b.Refused, a.Allowed+a.Refused) })
	clear(u.at)
	for _, x := range busiest[:min(len(busiest), (u.most+1)/2)] {
		x.Allowed, x.Refused, x.Tokens = 0, 0, 0
		u.at[[2]string{x.Limit, x.Key}] = x
	}
	return lines
}

// AddUse counts an event of a key, as Add does, and what it used.
func (w *Window) AddUse(limit, key string, allowed, refused, tokens int64) {
	s, c := w.add(limit, key)
	x := c.use
	if x == nil {
		x = s.uses.find(limit, key)
		c.use = x
	}
	x.Allowed, x.Refused, x.Tokens = x.Allowed+allowed, x.Refused+refused, x.Tokens+tokens
	s.mu.Unlock()
}

// TakeUses returns what keys used since the last call, in one line for each limit and key.
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
