package replay

import (
	"cmp"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// table has the rows and the counts of keys. Rows are exact, since only rows of
// full buckets are dropped. Counts are exact until there are more keys than most;
// then the idle keys with the fewest refusals are forgotten, and missed bounds the
// error.
type table struct {
	limits int
	most   int // number of keys at which forget is called before one is added
	budget int // Options.MaxKeys

	ids  map[string]int32 // indexes in keys
	keys []string
	rows []row // one for each key and limit
	cnts []counts

	forgotten int64   // keys
	missed    []int64 // by limit; see Limit.Missed
}

// row is a store.State without reservations and overrides; keySet has blocks. It has no pointers,
// because there may be millions of rows for the garbage collector to scan.
type row struct {
	used, ts int64
	number   uint32
}

func rowOf(s store.State) row { return row{s.Used, s.TS, s.Version} }

func (r row) state() store.State { return store.State{Used: r.used, TS: r.ts, Version: r.number} }

func newTable(limits, most int) *table {
	return &table{limits: limits, most: most, budget: most, ids: map[string]int32{}, missed: make([]int64, limits)}
}

func (t *table) insert(key string) int32 {
	id := int32(len(t.keys))
	t.keys = append(t.keys, key)
	t.ids[key] = id
	for range t.limits {
		t.rows = append(t.rows, row{})
		t.cnts = append(t.cnts, counts{})
	}
	return id
}

// of returns the rows and counts of a key, valid until the next insert.
func (t *table) of(id int32) ([]row, []counts) {
	from, to := int(id)*t.limits, (int(id)+1)*t.limits
	return t.rows[from:to:to], t.cnts[from:to:to]
}

func (c *counts) add(at, wait int64, v verdict) {
	switch v {
	case granted:
		c.Granted++
	case refusedByOther:
		c.RefusedByOther++
	default:
		if c.Refused == 0 {
			c.FirstRefusal = at
		}
		c.Refused++
		c.LastRefusal = at
		c.LongestWait = max(c.LongestWait, wait)
	}
}

// forget drops keys whose buckets are all full at now, those with the fewest
// refusals first, until half of the budget is free. The next call is after at
// least as many inserts as there are live keys, so that its cost per insert is
// constant.
func (t *table) forget(defs []*store.Definition, now int64) {
	var live, idle []int32
	for id := range int32(len(t.keys)) {
		if t.idle(id, defs, now) {
			idle = append(idle, id)
		} else {
			live = append(live, id)
		}
	}
	slices.SortStableFunc(idle, func(a, b int32) int { return cmp.Compare(t.refusals(b), t.refusals(a)) })
	keep := min(len(idle), max(0, t.budget/2-len(live)))
	t.forgotten += int64(len(idle) - keep)
	worst := make([]int64, t.limits)
	for _, id := range idle[keep:] {
		_, cnts := t.of(id)
		for i := range cnts {
			worst[i] = max(worst[i], cnts[i].Refused)
		}
	}
	for i := range worst {
		t.missed[i] += worst[i]
	}
	t.rebuild(append(live, idle[:keep]...))
	t.most = max(t.budget, 2*len(live))
}

// rebuild copies the keys ids to new memory and drops the others.
func (t *table) rebuild(ids []int32) {
	old := *t
	t.keys, t.rows, t.cnts, t.ids = nil, nil, nil, make(map[string]int32, len(ids))
	for _, id := range ids {
		rows, cnts := old.of(id)
		to, toCounts := t.of(t.insert(old.keys[id]))
		copy(to, rows)
		copy(toCounts, cnts)
	}
}

// idle reports whether all buckets of a key are full.
func (t *table) idle(id int32, defs []*store.Definition, now int64) bool {
	rows, _ := t.of(id)
	for i, d := range defs {
		if rows[i].used > 0 && !d.Full(rows[i].state(), now) {
			return false
		}
	}
	return true
}

func (t *table) refusals(id int32) (n int64) {
	_, cnts := t.of(id)
	for i := range cnts {
		n += cnts[i].Refused
	}
	return n
}

// worst returns the keys with the most refusals at a limit, the worst first.
func (t *table) worst(limit, n int) []int32 {
	var ids []int32
	for id := range int32(len(t.keys)) {
		if t.cnts[int(id)*t.limits+limit].Refused > 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int32) int {
		x, y := &t.cnts[int(a)*t.limits+limit], &t.cnts[int(b)*t.limits+limit]
		return cmp.Or(cmp.Compare(y.Refused, x.Refused), cmp.Compare(y.LongestWait, x.LongestWait),
			cmp.Compare(y.Granted+y.RefusedByOther, x.Granted+x.RefusedByOther), cmp.Compare(t.keys[a], t.keys[b]))
	})
	return ids[:min(n, len(ids))]
}
