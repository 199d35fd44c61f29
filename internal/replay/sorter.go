package replay

import (
	"math/bits"
	"slices"
)

// sorter sorts records by time and line in bounded memory. Records are collected
// in a buffer; a full buffer is sorted and written to disk as a run; each merges
// the runs.
type sorter struct {
	count int64 // records

	most      int // size of the buffer, in records
	recs      []sortRecord
	texts     []byte // keys of recs
	inOrder   bool   // the buffer is in time order
	precision precision

	order, spare []sortIndex
	runs         runs
}

// sortRecord is a record whose key lies in texts.
type sortRecord struct {
	t, line, cost int64
	at            int32
	len           uint16 // at most MaxKey
	plan          uint16
}

// keyBytes is the room for keys in the buffer, per record.
const keyBytes = 64

// lineBytes is about the shortest line of a log, to estimate the number of lines.
const lineBytes = 80

// newSorter returns a sorter with a buffer of most records, for a log of size
// bytes, or 0 if that is not known.
func newSorter(most int, size int64, dir string) *sorter {
	s := &sorter{most: most, inOrder: true, runs: runs{dir: dir}}
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
		s.inOrder = false
	}
	s.precision.add(rec.t, len(s.recs) == 0)
	s.recs = append(s.recs, sortRecord{rec.t, rec.line, rec.cost, int32(len(s.texts)), uint16(len(rec.key)), rec.plan})
	s.texts = append(s.texts, rec.key...)
	s.count++
	return nil
}

// spill writes the buffer to disk as a run.
func (s *sorter) spill() error {
	if len(s.recs) == 0 {
		return nil
	}
	if err := s.runs.begin(s.precision.low, s.precision.high); err != nil {
		return err
	}
	if err := s.buffered(s.runs.write); err != nil {
		return err
	}
	s.recs, s.texts, s.inOrder = s.recs[:0], s.texts[:0], true
	return s.runs.end()
}

// each calls do for all records in order. It may be called again.
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

// buffered calls do for the records of the buffer in order.
func (s *sorter) buffered(do func(*record) error) error {
	if !s.inOrder {
		s.sort()
	}
	var rec record
	for i := range s.recs {
		at := i
		if !s.inOrder {
			at = int(s.order[i].at)
		}
		r := &s.recs[at]
		rec = record{r.t, r.line, r.cost, s.texts[r.at : int(r.at)+int(r.len)], r.plan}
		if err := do(&rec); err != nil {
			return err
		}
	}
	return nil
}

// sortIndex is the sort key and index of a record.
type sortIndex struct {
	ticks uint64 // since the earliest, in units of precision
	at    int32
}

// sort is a radix sort, which is stable. A day in whole seconds takes two passes.
func (s *sorter) sort() {
	s.order = slices.Grow(s.order[:0], len(s.recs))
	unit := s.precision.unit()
	for i := range s.recs {
		s.order = append(s.order, sortIndex{uint64(s.recs[i].t-s.precision.low) / uint64(unit), int32(i)})
	}
	s.spare = slices.Grow(s.spare[:0], len(s.order))[:len(s.order)]
	const digit = 11
	span := bits.Len64(uint64(s.precision.high-s.precision.low) / uint64(unit))
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

// precision is the range of times, and whether all are whole seconds or whole
// milliseconds, which are faster to sort.
type precision struct {
	low, high   int64
	fine, finer bool // some are not whole seconds; not whole milliseconds
}

func (g *precision) add(t int64, first bool) {
	if first {
		*g = precision{low: t, high: t}
	}
	g.low, g.high = min(g.low, t), max(g.high, t)
	if !g.fine && t%1e6 != 0 {
		g.fine = true
	}
	if g.fine && !g.finer && t%1e3 != 0 {
		g.finer = true
	}
}

// unit returns the largest unit, in µs, of which all times are multiples.
func (g *precision) unit() int64 {
	switch {
	case g.finer:
		return 1
	case g.fine:
		return 1e3
	}
	return 1e6
}
