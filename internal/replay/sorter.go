package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// sorter sorts records by time and line in bounded memory. Records are collected in a
// buffer; a full buffer is sorted and written to a temporary file as a run; the method each
// merges the runs.
type sorter struct {
	count int64 // records

	most     int // size of the buffer, in records
	recs     []record
	keyBytes int // of recs
	dir      string
	file     *os.File
	ends     []int64 // where each run ends in the file
}

// keyBytes is the room for keys in the buffer, per record.
const keyBytes = 64

func (r *record) compare(o *record) int {
	return cmp.Or(cmp.Compare(r.T, o.T), cmp.Compare(r.Line, o.Line))
}

func (s *sorter) add(rec *record) error {
	if len(s.recs) == s.most || s.keyBytes > s.most*keyBytes {
		if err := s.spill(); err != nil {
			return fmt.Errorf("sort the log: %w", err)
		}
	}
	r := *rec
	r.Key = bytes.Clone(rec.Key)
	s.recs = append(s.recs, r)
	s.keyBytes += len(r.Key)
	s.count++
	return nil
}

func (s *sorter) sort() {
	slices.SortFunc(s.recs, func(a, b record) int { return a.compare(&b) })
}

// spill writes the buffer to the file as a run.
func (s *sorter) spill() (err error) {
	if s.file == nil {
		if s.file, err = os.CreateTemp(s.dir, "dipwell-replay-*"); err != nil {
			return err
		}
		_ = os.Remove(s.file.Name()) // on Unix the removed file lasts until the process ends
	}
	s.sort()
	out := bufio.NewWriter(s.file)
	run := gob.NewEncoder(out)
	for i := range s.recs {
		if err = run.Encode(&s.recs[i]); err != nil {
			return err
		}
	}
	if err = out.Flush(); err != nil {
		return err
	}
	end, err := s.file.Seek(0, io.SeekCurrent)
	s.ends, s.recs, s.keyBytes = append(s.ends, end), s.recs[:0], 0
	return err
}

// each calls do for all records in order of time and line.
func (s *sorter) each(do func(*record) error) error {
	if s.file != nil {
		if err := s.spill(); err != nil {
			return fmt.Errorf("sort the log: %w", err)
		}
		s.recs = nil
		return s.merge(do)
	}
	s.sort()
	for i := range s.recs {
		if err := do(&s.recs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *sorter) close() {
	if s != nil && s.file != nil {
		_ = s.file.Close()
		_ = os.Remove(s.file.Name())
	}
}

// mergeBytes is the memory for reading all runs: 4 KiB for each of 4,096, which are a
// billion requests at the default size of a run.
const mergeBytes = 16 << 20

// merge calls do for the records of all runs, in order.
func (s *sorter) merge(do func(*record) error) error {
	var q []*cursor // cursors as a heap, ordered by their next record
	from := int64(0)
	for _, end := range s.ends {
		c := &cursor{run: gob.NewDecoder(bufio.NewReaderSize(io.NewSectionReader(s.file, from, end-from), min(64<<10, mergeBytes/len(s.ends))))}
		from = end
		if err := c.next(); err != nil {
			return err
		}
		q = append(q, c)
	}
	slices.SortFunc(q, (*cursor).compare)
	for len(q) > 0 {
		c := q[0]
		if err := do(&c.rec); err != nil {
			return err
		}
		switch err := c.next(); {
		case errors.Is(err, io.EOF):
			q = q[1:]
			continue
		case err != nil:
			return err
		}
		place, _ := slices.BinarySearchFunc(q[1:], c, (*cursor).compare)
		copy(q, q[1:1+place])
		q[place] = c
	}
	return nil
}

type cursor struct {
	run *gob.Decoder
	rec record
}

func (c *cursor) next() error {
	c.rec = record{Key: c.rec.Key[:0]} // reset, because zero fields are not in the run
	if err := c.run.Decode(&c.rec); err != nil {
		return fmt.Errorf("sort the log: %w", err)
	}
	return nil
}

func (c *cursor) compare(o *cursor) int { return c.rec.compare(&o.rec) }
