package adaptive

import (
	"slices"
	"sort"
)

// Full is the level at which the rate is the ceiling.
const Full = 1024

// A Change sets the level at a time.
type Change struct {
	At    int64 // µs on the store's clock
	Level int64 // 1 to Full
	Ticks int64 // number of the last tick at or before At
}

// A History is the levels of a limit over time. It never changes. Changes may lie in the
// future, where the level will drift if nothing is observed until then.
type History struct {
	floor   int64    // level before the first change
	changes []Change // oldest first; at least one
}

// maxChanges bounds the past changes that are kept: those of at least 256 windows.
const maxChanges = 256

// NewHistory returns a history that has the level floor before the time from, in µs, and
// one level since. If from is 0, that is the level at all times.
func NewHistory(floor, level, from int64) History {
	return History{floor, []Change{{At: from, Level: level, Ticks: floor * from}}}
}

// Restore returns the history of a list of changes that Changes has returned.
func Restore(floor int64, changes []Change) History { return History{floor, changes} }

// Changes returns the changes, oldest first. The caller must not change them.
func (h History) Changes() []Change { return h.changes }

// Tick returns the number of the last tick at or before the time t, in µs.
func (h History) Tick(t int64) int64 {
	i := h.index(t)
	if i < 0 {
		return h.changes[0].Ticks - h.floor*(h.changes[0].At-t)
	}
	c := &h.changes[i]
	return c.Ticks + c.Level*(t-c.At)
}

// Boundary returns the first time, in µs, at which Tick is at least k.
func (h History) Boundary(k int64) int64 {
	i := sort.Search(len(h.changes), func(i int) bool { return h.changes[i].Ticks >= k }) - 1
	if i < 0 {
		first := &h.changes[0]
		return first.At - (first.Ticks-k)/h.floor
	}
	c := &h.changes[i]
	return c.At + (k-c.Ticks+c.Level-1)/c.Level
}

// LevelAt returns the level at the time t, in µs.
func (h History) LevelAt(t int64) int64 {
	if i := h.index(t); i >= 0 {
		return h.changes[i].Level
	}
	return h.floor
}

// index returns the index of the change that is in force at t, or -1.
func (h History) index(t int64) int {
	return sort.Search(len(h.changes), func(i int) bool { return h.changes[i].At > t }) - 1
}

// set returns a history with a new level from now on, in µs. It drops the changes that
// are older than keep, in µs, which only matter to rows that are full by now, and all but
// the last 256. Before the first change the level is the floor, so that an older row gets
// fewer tokens, never more.
func (h History) set(now, level, keep int64) History {
	i := h.index(now)
	if i < 0 { // the clock was set back before the first change, which still ends the time of the floor
		i, now = 0, h.changes[0].At
	}
	next := slices.Clone(h.changes[:i+1])
	switch last := &next[i]; {
	case last.Level == level:
	case last.At == now:
		last.Level = level
	default:
		next = append(next, Change{At: now, Level: level, Ticks: h.Tick(now)})
	}
	drop := max(0, len(next)-maxChanges)
	for drop+1 < len(next) && next[drop+1].At <= now-keep {
		drop++
	}
	return History{h.floor, next[drop:]}
}

// drift appends changes from the time from on, in µs: in each window the level moves one
// step toward base.
func (h History) drift(from, window, base int64) History {
	last := h.changes[len(h.changes)-1]
	for at := from; last.Level != base; at += window {
		level := min(last.Level+step, base)
		if last.Level > base {
			level = max(last.Level-step, base)
		}
		last = Change{At: at, Level: level, Ticks: h.Tick(at)}
		h.changes = append(h.changes, last)
	}
	return h
}
