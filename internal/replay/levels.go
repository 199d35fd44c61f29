package replay

import (
	"slices"

	"github.com/dipwell/dipwell/store"
)

// columns is how many columns of a plot a track has.
const columns = 900

// track is the level of one key's bucket over time, in tokens. For each column it
// keeps at most four points: the first, highest, lowest and last.
type track struct {
	key                    string
	points                 []point
	def                    *store.Definition
	row                    store.State
	from                   int64 // µs
	width                  int64 // of a column
	column                 int64
	n                      int   // points in the current column
	first, high, low, last point // of them
}

type point struct {
	t     int64
	level float64
}

// levels replays the log again, for the worst keys of each limit, and records
// their levels.
func (r *run) levels() error {
	first := r.engine
	if first.first < 0 {
		return nil
	}
	r.tracks = make([][]*track, len(first.limits))
	follow := map[string][]int{} // by key: indexes in first.limits
	for i := range first.limits {
		l := &first.limits[i]
		for _, id := range l.table().worst(l.at, r.o.Levels, true) {
			t := newTrack(l.table().keys[id], l.def, first.first, first.last)
			r.tracks[i] = append(r.tracks[i], t)
			follow[t.key] = append(follow[t.key], i)
		}
	}
	o := r.o
	o.Decisions = nil
	again := newEngine(r.lineup, &o)
	err := r.each("plot", func(rec *record) error {
		if _, ok := follow[string(rec.key)]; !ok && len(again.sets) == 1 { // not with parents, whose levels depend on all keys
			return nil
		}
		if err := again.decide(rec); err != nil {
			return err
		}
		for _, set := range again.sets {
			for _, i := range follow[set.key] {
				if l := &again.limits[i]; l.set == set {
					for _, t := range r.tracks[i] {
						if t.key == set.key {
							t.add(rec.t, l.row().state())
						}
					}
				}
			}
		}
		return nil
	})
	for i := range r.tracks {
		for _, t := range r.tracks[i] {
			t.end(first.last)
		}
	}
	return err
}

func newTrack(key string, d *store.Definition, from, to int64) *track {
	return &track{key: key, def: d, from: from, width: max(1, (to-from)/columns+1)}
}

// add records the row after a request at t.
func (k *track) add(t int64, row store.State) {
	k.advance(t)
	k.put(point{t, k.level(t)})
	k.row = row
	k.put(point{t, k.level(t)})
}

// advance records the refill up to the column of t.
func (k *track) advance(t int64) {
	for to := (t - k.from) / k.width; k.column < to; {
		k.flush()
		k.column++
		at := k.from + k.column*k.width
		k.put(point{at, k.level(at)})
	}
}

func (k *track) end(t int64) {
	k.advance(t)
	k.put(point{t, k.level(t)})
	k.flush()
}

func (k *track) level(t int64) float64 {
	var scratch store.Rule
	rule := k.def.Own(k.row, t).RuleFor(k.key, &scratch)
	used := rule.Used(k.row, t)
	return float64(rule.Cap-used) / float64(rule.Unit)
}

func (k *track) put(p point) {
	if k.n++; k.n == 1 {
		k.first, k.high, k.low = p, p, p
	}
	if p.level > k.high.level {
		k.high = p
	}
	if p.level < k.low.level {
		k.low = p
	}
	k.last = p
}

func (k *track) flush() {
	if k.n == 0 {
		return
	}
	seen := []point{k.first, k.high, k.low, k.last}
	if k.low.t < k.high.t {
		seen[1], seen[2] = k.low, k.high
	}
	k.points = append(k.points, slices.Compact(seen)...)
	k.n = 0
}
