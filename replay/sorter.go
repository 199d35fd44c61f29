package replay

import (
	"math/bits"
	"slices"
)

// sorter is a stable sort by time of any number of records in bounded memory.
// Records gather in a buffer; a full buffer is sorted and goes to disk as a
// run; the runs are merged when they are read. Lines have different numbers,
// so that (time, line) orders them in one way only.
type sorter struct {
	count int64 // of records

	most  int // records in the buffer
	recs  []sortRecord
	texts []byte // of their keys
	tidy  bool   // the buffer is in order as it stands
	grain grain

	order, spare []sortIndex
	runs         runs
}

// sortRecord is a record whose key lies in texts.
type sortRecord struct {
	t, line, cost int64
	at            int32
	len           uint16 // at most MaxKey
}

// keyBytes is what the buffer holds of keys for each record it may hold.
const keyBytes = 64

// lineBytes is about the shortest line of a log, to guess how many it has.
const lineBytes = 80

// newSorter makes a sorter with a buffer of most records, for a log of size
// bytes where that is known.
func newSorter(most int, size int64, dir string) *sorter {
	s := &sorter{most: most, tidy: true, runs: runs{dir: dir}}
	guess := int(min(int64(most), size/lineBytes))
	s.recs = make([]sortRecord, 0, guess)
	s.texts = make([]byte, 0, guess*keyBytes/4)
	return s
}

func (s *sorter) add(rec *record) error {
	if len(s.recs) == s.most || len(s.recs) > 0 && len(s.texts)+len(rec.key) > s.most*keyBytes {
		if err := s.spill(); err != nil {
			return err
		}
	}
	if n := len(s.recs); n > 0 && rec.t < s.recs[n-1].t {
		s.tidy = false
	}
	s.grain.add(rec.t, len(s.recs) == 0)
	s.recs = append(s.recs, sortRecord{rec.t, rec.line, rec.cost, int32(len(s.texts)), uint16(len(rec.key))})
	s.texts = append(s.texts, rec.key...)
	s.count++
	return nil
}

// spill writes the buffer to disk as a run.
func (s *sorter) spill() error {
	if len(s.recs) == 0 {
		return nil
	}
	if err := s.runs.begin(s.grain.low, s.grain.high); err != nil {
		return err
	}
	if err := s.buffered(s.runs.write); err != nil {
		return err
	}
	s.recs, s.texts, s.tidy = s.recs[:0], s.texts[:0], true
	return s.runs.end()
}

// each passes on all records in order. It may be called again.
func (s *sorter) each(do func(*record) error) error {
	if len(s.runs.list) == 0 {
		return s.buffered(do)
	}
	if err := s.spill(); err != nil {
		return err
	}
	s.recs, s.texts, s.order, s.spare = nil, nil, nil, nil
	return s.runs.merge(do)
}

func (s *sorter) close() { s.runs.close() }

// buffered passes on the records of the buffer in order.
func (s *sorter) buffered(do func(*record) error) error {
	if !s.tidy {
		s.sort()
	}
	var rec record
	for i := range s.recs {
		at := i
		if !s.tidy {
			at = int(s.order[i].at)
		}
		r := &s.recs[at]
		rec = record{r.t, r.line, r.cost, s.texts[r.at : int(r.at)+int(r.len)]}
		if err := do(&rec); err != nil {
			return err
		}
	}
	return nil
}

// sortIndex stands for a record while the buffer is sorted.
type sortIndex struct {
	ticks uint64 // after the earliest
	at    int32
}

// sort is a radix sort: it keeps the order of equal times, and a day of whole
// seconds takes it two passes.
func (s *sorter) sort() {
	s.order = slices.Grow(s.order[:0], len(s.recs))
	unit := s.grain.unit()
	for i := range s.recs {
		s.order = append(s.order, sortIndex{uint64(s.recs[i].t-s.grain.low) / uint64(unit), int32(i)})
	}
	s.spare = slices.Grow(s.spare[:0], len(s.order))[:len(s.order)]
	const digit = 11
	span := bits.Len64(uint64(s.grain.high-s.grain.low) / uint64(unit))
	for shift := 0; shift < span; shift += digit {
		var place [1 << digit]int
		for i := range s.order {
			place[s.order[i].ticks>>shift&(1<<digit-1)]++
		}
		sum := 0
		for i, n := range place {
			place[i] = sum
			sum += n
		}
		for _, x := range s.order {
			d := x.ticks >> shift & (1<<digit - 1)
			s.spare[place[d]] = x
			place[d]++
		}
		s.order, s.spare = s.spare, s.order
	}
}

// grain knows the bounds of some times, and whether all are whole seconds or
// milliseconds, which makes them short to sort.
type grain struct {
	low, high   int64
	fine, finer bool // some are no whole seconds; no whole milliseconds
}

func (g *grain) add(t int64, first bool) {
	if first {
		*g = grain{low: t, high: t}
	}
	g.low, g.high = min(g.low, t), max(g.high, t)
	if !g.fine && t%1e6 != 0 {
		g.fine = true
	}
	if g.fine && !g.finer && t%1e3 != 0 {
		g.finer = true
	}
}

// unit divides every time but not, with it, the distance to low: that is why
// whole units are counted from low, which is a multiple itself.
func (g *grain) unit() int64 {
	switch {
	case g.finer:
		return 1
	case g.fine:
		return 1e3
	}
	return 1e6
}
