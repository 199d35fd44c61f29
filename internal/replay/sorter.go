package replay

import (
	"cmp"
	"slices"
)

// sorter sorts records by time and line in bounded memory. Records are collected
// in a buffer; a full buffer is sorted and written to disk as a run; each merges
// the runs.
type sorter struct {
	count int64 // records

	most  int // size of the buffer, in records
	recs  []sortRecord
	texts []byte // keys of recs
	runs  runs
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

// newSorter returns a sorter with a buffer of most records, for a log of size bytes, or 0 if
// that is not known.
func newSorter(most int, size int64, dir string) *sorter {
	const lineBytes = 80 // about the shortest line of a log
	return &sorter{most: most, recs: make([]sortRecord, 0, min(int64(most), size/lineBytes)), runs: runs{dir: dir}}
}

func (s *sorter) add(rec *record) error {
	if len(s.recs) == s.most || len(s.recs) > 0 && len(s.texts)+len(rec.key) > s.most*keyBytes {
		if err := s.spill(); err != nil {
			return err
		}
	}
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
	if err := s.runs.add(s.buffered); err != nil {
		return err
	}
	s.recs, s.texts = s.recs[:0], s.texts[:0]
	return nil
}

// each calls do for all records in order. It may be called again.
func (s *sorter) each(do func(*record) error) error {
	if len(s.runs.ends) == 0 {
		return s.buffered(do)
	}
	if err := s.spill(); err != nil {
		return err
	}
	s.recs, s.texts = nil, nil
	return s.runs.merge(do)
}

func (s *sorter) close() {
	if s != nil {
		s.runs.close()
	}
}

// buffered calls do for the records of the buffer in order.
func (s *sorter) buffered(do func(*record) error) error {
	slices.SortFunc(s.recs, func(a, b sortRecord) int {
		if a.t != b.t {
			return cmp.Compare(a.t, b.t)
		}
		return cmp.Compare(a.line, b.line)
	})
	var rec record
	for i := range s.recs {
		r := &s.recs[i]
		rec = record{r.t, r.line, r.cost, s.texts[r.at : int(r.at)+int(r.len)], r.plan}
		if err := do(&rec); err != nil {
			return err
		}
	}
	return nil
}
