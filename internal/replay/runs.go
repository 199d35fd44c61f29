package replay

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// runs stores sorted runs of records in one temporary file.
type runs struct {
	dir  string
	file *os.File
	out  *bufio.Writer
	size int64
	ends []int64 // of the runs in the file
	last record  // last record written to the open run
	buf  []byte
}

// add adds a run of the records for which each calls its argument.
func (r *runs) add(each func(do func(*record) error) error) error {
	if r.file == nil {
		f, err := os.CreateTemp(r.dir, "dipwell-replay-*")
		if err != nil {
			return fmt.Errorf("sort the log: %w", err)
		}
		_ = os.Remove(f.Name()) // on Unix: the file then goes when the process ends
		r.file, r.out = f, bufio.NewWriter(f)
	}
	r.last = record{}
	err := each(r.write)
	if err == nil {
		err = r.out.Flush()
	}
	if err != nil {
		return fmt.Errorf("sort the log: %w", err)
	}
	r.ends = append(r.ends, r.size)
	return nil
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

func (r *runs) close() {
	if r.file != nil {
		_ = r.file.Close()
		_ = os.Remove(r.file.Name())
	}
}

// mergeBytes is the memory for reading all runs: 4 KiB for each of 4,096, which are a
// billion requests at the default size of a run.
const mergeBytes = 16 << 20

// merge calls do for the records of all runs, in order.
func (r *runs) merge(do func(*record) error) error {
	var q []*cursor // by their next record
	from := int64(0)
	for _, end := range r.ends {
		c := &cursor{in: bufio.NewReaderSize(io.NewSectionReader(r.file, from, end-from), min(64<<10, mergeBytes/len(r.ends)))}
		from = end
		if ok, err := c.next(); err != nil {
			return err
		} else if ok {
			q = append(q, c)
		}
	}
	slices.SortFunc(q, (*cursor).compare)
	for len(q) > 0 {
		c := q[0]
		if err := do(&c.rec); err != nil {
			return err
		}
		ok, err := c.next()
		if err != nil {
			return err
		}
		if !ok {
			q = q[1:]
			continue
		}
		place, _ := slices.BinarySearchFunc(q[1:], c, (*cursor).compare)
		copy(q, q[1:1+place])
		q[place] = c
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

func (c *cursor) compare(o *cursor) int {
	return cmp.Or(cmp.Compare(c.rec.t, o.rec.t), cmp.Compare(c.rec.line, o.rec.line))
}
