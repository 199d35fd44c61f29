package replay

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// table has the rows and the counts of keys. Rows are exact, since only rows of full
// buckets are dropped. Counts are exact until there are more keys than most; then
// the idle keys with the fewest refusals are forgotten, and missed bounds the error.
//
// A table has the keys of those limits whose keys have the same number of parts, or of the
// shared limits.
type table struct {
	up     int // by how many parts the keys of these limits are shorter
	defs   []*store.Definition
	most   int // number of keys at which forget is called before one is added
	budget int // Options.MaxKeys

	ids  map[string]int32 // indexes in keys
	keys []string
	rows []store.State // one for each key and limit
	cnts []counts

	forgotten int64   // keys
	missed    []int64 // by limit; see Limit.Missed

	id int32 // index of the present record's key
}

func (t *table) add(d *store.Definition) int {
	t.defs, t.missed = append(t.defs, d), append(t.missed, 0)
	return len(t.defs) - 1
}

// find sets the present key: that of the record, without its last parts if the limits'
// keys have fewer, or "" if they are shared.
func (t *table) find(limits *store.Registry, rec *record) (err error) {
	key := rec.Key
	if t.up == noKey {
		key = nil
	}
	for range max(t.up, 0) {
		key = key[:max(bytes.LastIndexByte(key, '/'), 0)]
	}
	id, ok := t.ids[string(key)]
	if !ok {
		if len(t.keys) >= t.most {
			err = t.forget(limits, rec.T)
		}
		id = t.insert(string(key))
	}
	t.id = id
	return err
}

func (t *table) insert(key string) int32 {
	id := int32(len(t.keys))
	t.keys = append(t.keys, key)
	t.ids[key] = id
	for range t.defs {
		t.rows = append(t.rows, store.State{})
		t.cnts = append(t.cnts, counts{})
	}
	return id
}

// of returns the rows and counts of a key, valid until the next insert.
func (t *table) of(id int32) ([]store.State, []counts) {
	from, to := int(id)*len(t.defs), (int(id)+1)*len(t.defs)
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
// refusals first, until half of the budget is free. The next call is after at least
// as many inserts as there are live keys, so that its cost per insert is constant.
func (t *table) forget(limits *store.Registry, now int64) error {
	var live, idle []int32
	for id := range int32(len(t.keys)) {
		idles, err := t.idle(id, limits, now)
		if err != nil {
			return err
		}
		if idles {
			idle = append(idle, id)
		} else {
			live = append(live, id)
		}
	}
	slices.SortStableFunc(idle, func(a, b int32) int { return cmp.Compare(t.refusals(b), t.refusals(a)) })
	keep := min(len(idle), max(0, t.budget/2-len(live)))
	t.forgotten += int64(len(idle) - keep)
	worst := make([]int64, len(t.defs))
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
	return nil
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

// idle reports whether all buckets of a key are full and it is not blocked. It ends a block
// as a sweep of a store does.
func (t *table) idle(id int32, limits *store.Registry, now int64) (bool, error) {
	rows, _ := t.of(id)
	for i, d := range t.defs {
		if o := rows[i].Override; o != nil && o.Until <= now {
			if _, err := store.SweepRow(&states{ops: []store.Op{{Def: d}}, rows: []*store.State{&rows[i]}}, limits, d.Name, t.keys[id], now); err != nil {
				return false, err
			}
		}
		if rows[i].Override != nil || rows[i].Used > 0 && !d.Full(rows[i], now) {
			return false, nil
		}
	}
	return true, nil
}

func (t *table) refusals(id int32) (n int64) {
	_, cnts := t.of(id)
	for i := range cnts {
		n += cnts[i].Refused
	}
	return n
}

// refused returns the keys that a limit refused, those with the most refusals first.
func (t *table) refused(limit int) (keys []Key) {
	for id, key := range t.keys {
		if c := t.cnts[id*len(t.defs)+limit]; c.Refused > 0 {
			keys = append(keys, Key{key, c})
		}
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(b.LongestWait, a.LongestWait),
			cmp.Compare(b.Granted+b.RefusedByOther, a.Granted+a.RefusedByOther), cmp.Compare(a.Key, b.Key))
	})
	return keys
}
