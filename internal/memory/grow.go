package memory

import "github.com/dipwell/dipwell/store"

// ready makes room for n more rows like that of the key, and starts to grow before the
// shard is full. The inserts that follow cannot fail.
func (sh *shard) ready(n int, d *store.Definition, key string) bool {
	if sh.size == 0 {
		sh.size, sh.next = minSize, minSize
	}
	rows := uint64(sh.rows + n)
	if !sh.growing && rows*100 > sh.size*loadMax {
		shift := growShift
		if sh.phases.on { // with phases a row takes a quarter more memory, so the steps are smaller
			shift++
		}
		next := sh.size + max(sh.size>>shift, minSize)
		switch {
		case sh.extend(max(sh.top, int(next)) + n*spare):
			sh.growing, sh.next, sh.bound, sh.cursor = true, next, ^uint64(0), sh.top
			sh.publishView()
		case rows*100 > sh.size*loadLimit:
			return false
		}
	}
	if !sh.extend(max(sh.top, int(sh.next)) + n*spare) {
		return false
	}
	if d.ListKeys && !sh.readyText(n*cellsOf(key)) {
		return false
	}
	return !d.Rule.Spread || sh.phases.ready(sh)
}

// extend allocates memory for at least n slots. extend returns false if there is none.
func (sh *shard) extend(n int) bool {
	for len(sh.ext)*int(extentSlots) < n {
		p := sh.store.arena.extent()
		if p == nil {
			return false
		}
		sh.ext = append(sh.ext, (*[extentSlots]slot)(p))
		sh.publishView()
	}
	return (!sh.refs.on || sh.refs.ready(sh)) && (!sh.phases.on || sh.phases.ready(sh)) && (!sh.lows.on || sh.lows.ready(sh))
}

// grow moves some rows to their places in the larger table, from the top down,
// because the free slots are at the top. It drops full rows. Rows stay in order,
// so one boundary tells which of the two sizes applies to a hash.
func (sh *shard) grow(now int64) {
	// The work of a call is counted in slots looked at, not in slots shifted:
	// otherwise a long run would slow growing down, though growing makes runs
	// shorter, and inserts would outrun it for good. A call that has shifted many
	// slots may stop early unless the table is behind.
	behind := uint64(sh.rows)*100 > sh.size*loadBehind
	start := sh.moved
	for n := 0; n < growWork && (behind || sh.moved-start < growShifts); n++ {
		if sh.cursor == 0 {
			sh.growing, sh.size = false, sh.next
			sh.publishView()
			return
		}
		sh.moved++
		p := sh.at(sh.cursor - 1)
		if p.id == 0 || ^p.id >= sh.bound {
			sh.cursor--
			continue
		}
		if sh.full(p, now) {
			sh.remove(sh.cursor - 1)
			continue
		}
		sh.moveLast()
	}
	sh.view.Load().bound.Store(sh.bound)
}

// moveLast moves the last row that is still spread over the old size, together
// with those whose hashes equal it, should there be any.
func (sh *shard) moveLast() {
	id := sh.at(sh.cursor - 1).id
	var same [4]struct {
		row  slot
		side side
	}
	n := 0
	for ; n < len(same) && sh.cursor > 0 && sh.at(sh.cursor-1).id == id; n++ {
		sh.cursor--
		same[n].row, same[n].side = *sh.at(sh.cursor), sh.side(sh.cursor)
		sh.closeGap(sh.cursor)
	}
	sh.bound = ^id
	for n--; n >= 0; n-- {
		row := &same[n].row
		i, _ := sh.find(row.id, row.tag)
		end := i
		for sh.at(end).id != 0 {
			end++
		}
		sh.shift(i, end)
		*sh.at(i) = *row
		sh.setSide(i, same[n].side)
		sh.top = max(sh.top, end+1)
	}
}
