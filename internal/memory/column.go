package memory

import "unsafe"

// A column has a value for each slot of a shard, in memory of its own. A shard without
// rows that need such a value has an empty column. The size of T divides extentBytes.
type column[T any] struct {
	on    bool // every slot has room for a value
	parts []unsafe.Pointer
}

// ready makes room for the shard's rows. It returns false if there is no memory.
func (c *column[T]) ready(sh *shard) bool {
	var v T
	perPart := extentBytes / int(unsafe.Sizeof(v))
	for len(c.parts)*perPart < len(sh.ext)*int(extentSlots) {
		p := sh.store.arena.extent()
		if p == nil {
			return false
		}
		c.parts = append(c.parts, p)
	}
	c.on, sh.columns = true, true
	return true
}

// at returns the value of the slot at i. The column must be on.
func (c *column[T]) at(i int) *T {
	var v T
	perPart := extentBytes / unsafe.Sizeof(v)
	return (*T)(unsafe.Add(c.parts[uint(i)/uint(perPart)], uintptr(i)%perPart*unsafe.Sizeof(v)))
}

func (c *column[T]) get(i int) (v T) {
	if c.on {
		v = *c.at(i)
	}
	return v
}

func (c *column[T]) set(i int, v T) {
	if c.on {
		*c.at(i) = v
	}
}

// side has values that some rows have besides their slots.
type side struct {
	text  uint32 // where the text of the key begins in memory; 0: the text is not kept
	phase int64  // phase of the key's windows (see Op.Phase), or 0 if it is not known yet. phase depends on the limit's name and the key alone
	low   low
}

// A low has what a Take needs to know of the records of a row.
type low struct {
	used int64 // the last entry of the row's lows
	due  int64 // µs: before this time no record ends
}

func (sh *shard) side(i int) side { return side{sh.refs.get(i), sh.phases.get(i), sh.lows.get(i)} }

func (sh *shard) moveSide(from, to int) {
	if sh.columns {
		sh.setSide(to, sh.side(from))
	}
}

func (sh *shard) setSide(i int, s side) {
	sh.refs.set(i, s.text)
	sh.phases.set(i, s.phase)
	sh.lows.set(i, s.low)
}

// keepPhase stores the phase of the row at i, if it is known.
func (sh *shard) keepPhase(i int, p int64) {
	if p != 0 && sh.phases.get(i) != p && (sh.phases.on || sh.phases.ready(sh)) {
		sh.phases.set(i, p)
	}
}
