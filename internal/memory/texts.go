package memory

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// texts stores the keys of rows whose limits have ListKeys. A text is two bytes of length
// and the key, in a chain of cells. All cells have the same size, so that the room of keys
// that are gone serves keys of any length.
type texts struct {
	chunks []*[extentCells]cell
	next   uint32 // the first cell that was never used
	free   uint32 // beginning of a chain of free cells
	unused int    // number of cells in free
}

type cell struct {
	next uint32 // 0: none
	text [28]byte
}

const (
	cellBytes   = int(unsafe.Sizeof(cell{}))
	cellText    = len(cell{}.text)
	extentCells = extentBytes / cellBytes
	cellsMost   = (2 + store.MaxKey + terms.ShardSuffix + cellText - 1) / cellText
)

func cellsOf(key string) int { return (2 + len(key) + cellText - 1) / cellText }

// textSize is the memory that a key needs, in bytes.
func textSize(key string) int64 { return int64(cellsOf(key) * cellBytes) }

// textOf is the memory that the text of a key of the limit needs.
func textOf(d *store.Definition, key string) int64 {
	if !d.ListKeys {
		return 0
	}
	return textSize(key)
}

// readyText makes room for texts of so many cells, or returns false if there is no memory.
func (sh *shard) readyText(cells int) bool {
	t := &sh.texts
	t.next = max(1, t.next) // a reference of 0 means that there is none
	for len(t.chunks)*extentCells-int(t.next)+t.unused < cells {
		if int64(len(t.chunks)+1)*int64(extentCells) > math.MaxUint32 {
			return false
		}
		p := sh.store.arena.extent()
		if p == nil {
			return false
		}
		t.chunks = append(t.chunks, (*[extentCells]cell)(p))
	}
	return sh.refs.ready(sh)
}

// keepText stores the key of the row at i unless it is there, or returns false without room. The
// cells that ready has allocated for rows of the same call stay free.
func (sh *shard) keepText(i int, key string) bool {
	switch {
	case sh.refs.get(i) != 0:
		return true
	case !sh.readyText(cellsOf(key)+store.MaxTakes*cellsMost) || !sh.store.count(room{text: textSize(key)}):
		return false
	}
	sh.refs.set(i, sh.texts.put(key))
	return true
}

func (sh *shard) dropText(i int) {
	if ref := sh.refs.get(i); ref != 0 {
		n := sh.texts.drop(ref)
		sh.refs.set(i, 0)
		sh.store.textBytes.Add(int64(-n * cellBytes))
	}
}

// put stores a key. readyText must have been called.
func (t *texts) put(key string) (ref uint32) {
	ref = t.cell()
	c := t.at(ref)
	binary.NativeEndian.PutUint16(c.text[:], uint16(len(key)))
	key = key[copy(c.text[2:], key):]
	for key != "" {
		c.next = t.cell()
		c = t.at(c.next)
		key = key[copy(c.text[:], key):]
	}
	c.next = 0
	return ref
}

func (t *texts) cell() (ref uint32) {
	if ref = t.free; ref != 0 {
		t.free = t.at(ref).next
		t.unused--
		return ref
	}
	ref = t.next
	t.next++
	return ref
}

func (t *texts) at(ref uint32) *cell {
	return &t.chunks[uint(ref)/uint(extentCells)][uint(ref)%uint(extentCells)]
}

// drop frees a text, and returns the number of its cells.
func (t *texts) drop(ref uint32) (cells int) {
	last := t.at(ref)
	for cells = 1; last.next != 0; cells++ {
		last = t.at(last.next)
	}
	last.next, t.free = t.free, ref
	t.unused += cells
	return cells
}

// get returns the text of a key, in buf if it fits.
func (t *texts) get(ref uint32, buf []byte) []byte {
	c := t.at(ref)
	n := 2 + int(binary.NativeEndian.Uint16(c.text[:]))
	for buf = append(buf[:0], c.text[:]...); len(buf) < n; buf = append(buf, c.text[:]...) {
		c = t.at(c.next)
	}
	return buf[2:n]
}

var _ = [1]struct{}{}[unsafe.Sizeof(slot{})*extentSlots-extentBytes]
