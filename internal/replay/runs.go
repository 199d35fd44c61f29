package replay

import (
	"bufio"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// runs stores sorted runs of records in one temporary file. When there are fanIn
// runs of one level, they are merged into a run of the next level, so that the
// last merge has fewer than fanIn runs of each level, each with a buffer.
type runs struct {
	dir  string
	file *os.File
	out  *bufio.Writer
	size int64
	list []section
	open section
	last record // last record written to the open run
	buf  []byte
}

// section is the part of the file with one run.
type section struct {
	from, to  int64
	low, high int64 // first and last time
	level     int   // how often its records have been merged
}

const (
	fanIn     = 32
	runBuffer = 64 << 10
)

// begin starts a run, or continues the last run if the new records are later, so
// that a log in order is a single run.
func (r *runs) begin(low, high int64) error {
	if r.file == nil {
		f, err := os.CreateTemp(r.dir, "dipwell-replay-*")
		if err != nil {
			return fmt.Errorf("sort the log: %w", err)
		}
		_ = os.Remove(f.Name()) // on Unix: the file then goes when the process ends
		r.file, r.out = f, bufio.NewWriterSize(f, runBuffer)
	}
	if n := len(r.list); n > 0 && low >= r.list[n-1].high {
		r.open, r.list = r.list[n-1], r.list[:n-1]
		r.open.high = high
		return nil
	}
	r.start(section{low: low, high: high})
	return nil
}

func (r *runs) start(s section) {
	s.from = r.size
	r.open, r.last = s, record{}
}

// mergeLevel merges the last fanIn runs if they have the same level.
func (r *runs) mergeLevel() error {
	n := len(r.list) - fanIn
	if n < 0 || r.list[n].level != r.list[n+fanIn-1].level { // levels do not increase along the list
		return nil
	}
	old := r.list[n:]
	s := old[0]
	for _, o := range old {
		s.low, s.high = min(s.low, o.low), max(s.high, o.high)
	}
	s.level++
	r.start(s)
	if err := mergeSections(r.file, old, r.write); err != nil {
		return err
	}
	r.list = r.list[:n]
	return r.end()
}

// write appends a record to the open run: the differences of time and line to the
// record before, the cost, the plan and the key.
func (r *runs) write(rec *record) error {
	b := binary.AppendUvarint(r.buf[:0], uint64(rec.t-r.last.t))
	b = binary.AppendVarint(b, rec.line-r.last.line)
	b = binary.AppendUvarint(b, uint64(rec.cost))
	b = binary.AppendUvarint(b, uint64(rec.plan))
	b = binary.AppendUvarint(b, uint64(len(rec.key)))
	b = append(b, rec.key...)
	r.last.t, r.last.line, r.buf = rec.t, rec.line, b
	r.size += int64(len(b))
	_, err := r.out.Write(b)
	return err
}

func (r *runs) end() error {
	r.open.to = r.size
	r.list = append(r.list, r.open)
	if err := r.out.Flush(); err != nil {
		return fmt.Errorf("sort the log: %w", err)
	}
	return r.mergeLevel()
}

func (r *runs) merge(do func(*record) error) error { return mergeSections(r.file, r.list, do) }

func (r *runs) close() {
	if r.file != nil {
		_ = r.file.Close()
		_ = os.Remove(r.file.Name())
	}
}

// mergeSections calls do for the records of sorted runs, in order.
func mergeSections(f io.ReaderAt, list []section, do func(*record) error) error {
	var q runQueue
	for _, s := range list {
		c := &cursor{in: bufio.NewReaderSize(io.NewSectionReader(f, s.from, s.to-s.from), runBuffer)}
		if ok, err := c.next(); err != nil {
			return err
		} else if ok {
			q = append(q, c)
		}
	}
	heap.Init(&q)
	for len(q) > 0 {
		c := q[0]
		if err := do(&c.rec); err != nil {
			return err
		}
		switch ok, err := c.next(); {
		case err != nil:
			return err
		case !ok:
			heap.Pop(&q)
		case len(q) > 1:
			heap.Fix(&q, 0)
		}
	}
	return nil
}

// cursor reads one run.
type cursor struct {
	in  *bufio.Reader
	rec record
}

func (c *cursor) next() (bool, error) {
	dt, err := binary.ReadUvarint(c.in)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	line, err2 := binary.ReadVarint(c.in)
	cost, err3 := binary.ReadUvarint(c.in)
	plan, err4 := binary.ReadUvarint(c.in)
	n, err5 := binary.ReadUvarint(c.in)
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return false, fmt.Errorf("sort the log: %w", err)
	}
	c.rec.t += int64(dt)
	c.rec.line += line
	c.rec.cost, c.rec.plan = int64(cost), uint16(plan)
	if cap(c.rec.key) < int(n) {
		c.rec.key = make([]byte, n)
	}
	c.rec.key = c.rec.key[:n]
	if _, err := io.ReadFull(c.in, c.rec.key); err != nil {
		return false, fmt.Errorf("sort the log: %w", err)
	}
	return true, nil
}

// runQueue is a heap of runs by their next record.
type runQueue []*cursor

func (q runQueue) Len() int { return len(q) }
func (q runQueue) Less(i, j int) bool {
	a, b := &q[i].rec, &q[j].rec
	return a.t < b.t || a.t == b.t && a.line < b.line
}
func (q runQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *runQueue) Push(x any)   { *q = append(*q, x.(*cursor)) }
func (q *runQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
