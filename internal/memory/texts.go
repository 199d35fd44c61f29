package memory

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/dipwell/dipwell/store"
)

// texts stores the keys of rows whose limits have ListKeys. A text is two bytes of
// length and the key, in units of four bytes. Freed space is reused for texts of
// the same number of units.
type texts struct {
	refs   []*[extentRefs]uint32 // of each slot's text; 0: none
	chunks []*[extentBytes]byte
	next   uint32 // the first unit that was never used
	free   [unitsMax + 1]uint32
}

const (
	extentRefs  = extentBytes / 4
	chunkUnits  = extentBytes / 4
	unitsMax    = (2 + store.MaxKey + 3) / 4
	refsPerSlot = extentRefs / int(extentSlots)
)

// textSize is the memory that a key needs, in bytes.
func textSize(key string) int { return (2 + len(key) + 3) &^ 3 }

// readyText makes room for texts of size bytes in total. It returns false if
// there is none.
func (sh *shard) readyText(size int) bool {
	t := &sh.texts
	if t.next == 0 {
		t.next = 1 // a reference of 0 means none
	}
	need := uint64(t.next) + uint64(size/4+(size/extentBytes+2)*unitsMax)
	if need > math.MaxUint32 {
		return false
	}
	for uint64(len(t.chunks))*chunkUnits < need {
		p := sh.store.arena.extent()
		if p == nil {
			return false
		}
		t.chunks = append(t.chunks, (*[extentBytes]byte)(p))
	}
	if !sh.extendTexts() {
		return false
	}
	sh.list = true // every slot now has room for a reference
	return true
}

// extendTexts allocates a reference for each slot.
func (sh *shard) extendTexts() bool {
	t := &sh.texts
	for len(t.refs)*refsPerSlot < len(sh.ext) {
		p := sh.store.arena.extent()
		if p == nil {
			return false
		}
		t.refs = append(t.refs, (*[extentRefs]uint32)(p))
	}
	return true
}

// text returns the reference of the slot's text.
func (sh *shard) text(i int) uint32 {
	if !sh.list {
		return 0
	}
	return sh.texts.refs[i/extentRefs][i%extentRefs]
}

func (sh *shard) setText(i int, ref uint32) {
	if sh.list {
		sh.texts.refs[i/extentRefs][i%extentRefs] = ref
	}
}

// keepText stores the key of the row at i, unless it is there already.
func (sh *shard) keepText(i int, key string) {
	if sh.text(i) == 0 && sh.readyText(textSize(key)) {
		sh.setText(i, sh.texts.put(key))
	}
}

func (t *texts) put(key string) uint32 {
	units := uint32(2+len(key)+3) / 4
	ref := t.free[units]
	if ref != 0 {
		t.free[units] = binary.NativeEndian.Uint32(t.at(ref))
	} else {
		if t.next%chunkUnits+units > chunkUnits { // a text must lie within one chunk
			t.next += chunkUnits - t.next%chunkUnits
		}
		ref = t.next
		t.next += units
	}
	b := t.at(ref)
	binary.NativeEndian.PutUint16(b, uint16(len(key)))
	copy(b[2:], key)
	return ref
}

func (t *texts) at(ref uint32) []byte {
	return t.chunks[ref/chunkUnits][ref%chunkUnits*4:]
}

func (t *texts) drop(ref uint32) {
	if ref == 0 {
		return
	}
	units := uint32(2+len(t.get(ref))+3) / 4
	binary.NativeEndian.PutUint32(t.at(ref), t.free[units])
	t.free[units] = ref
}

// get returns the key, valid as long as the shard is locked.
func (t *texts) get(ref uint32) []byte {
	b := t.at(ref)
	return b[2 : 2+int(binary.NativeEndian.Uint16(b))]
}

var _ = [1]struct{}{}[unsafe.Sizeof(slot{})*extentSlots-extentBytes]
