package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Options say what to do with a log. Limits is required; the zero value of
// every other field is the default named in its comment.
type Options struct {
	Limits []dipwell.Limit // 1 to 16, of different names
	All    bool            // a request is granted by all limits or charged by none; default: each limit judges by itself

	Format    string // combined, json or csv; default: by the look of the first lines
	By        string // the field that is the key; none: everybody shares one bucket; default ip
	Cost      string // a whole number, or the field that holds one; default 1
	TimeField string // JSON and CSV: the field with the time; default: the usual names
	Columns   string // CSV without a header line: its columns, separated by commas

	Decisions io.Writer // gets a JSON line a decision; see Resetter; default: none
	Levels    int       // the worst keys of a limit whose level is kept for the plot; default 0
	Worst     int       // rows of a limit's table of worst keys; default 10

	MaxKeys     int                                   // keys whose counts are kept; default 131072
	SortRecords int                                   // records sorted in memory before they go to disk; default 262144
	TempDir     string                                // where they go; default os.TempDir()
	Progress    func(stage string, done, total int64) // called every few thousand lines; total is 0 when unknown
}

// A Resetter is a Decisions writer that can forget what it was given. With one,
// a log in a file is decided while it is read, and begun again if it turns out
// to be out of order; without, every log is sorted first.
type Resetter interface {
	io.Writer
	Reset() error
}

// Bounds, chosen so that memory stays the same however long the log is.
const (
	maxKeys     = 1 << 17  // about 100 bytes each for one limit, and the key's text
	sortRecords = 1 << 18  // 16 MiB for the records and as much for their keys, at most
	maxLine     = 16 << 20 // bytes of a line that are looked at
	worstKeys   = 10
	maxLevels   = 8 // more lines in one plot cannot be told apart
)

// Run replays a log. An error means that there is no report: a bad option, a
// log that cannot be read, a full disk. Lines that do not parse are no error.
func Run(ctx context.Context, in Input, o Options) (*Report, error) {
	defs, err := o.check()
	if err != nil {
		return nil, err
	}
	r := &run{ctx: ctx, in: in, o: o, defs: defs}
	defer r.close()
	if err := r.decide(); err != nil {
		return nil, err
	}
	if o.Levels > 0 {
		if err := r.levels(); err != nil {
			return nil, err
		}
	}
	return r.report(), nil
}

func (o *Options) check() ([]*dipwell.Definition, error) {
	bad := func(field, format string, args ...any) ([]*dipwell.Definition, error) {
		return nil, &dipwell.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	if n := len(o.Limits); n < 1 || n > store.MaxTakes {
		return bad("limit", "is given %d times; from 1 to %d", n, store.MaxTakes)
	}
	switch {
	case o.Levels < 0 || o.Levels > maxLevels:
		return bad("levels", "%d is not between 0 and %d", o.Levels, maxLevels)
	case o.Worst < 0 || o.MaxKeys < 0 || o.SortRecords < 0 || o.SortRecords > 1<<24:
		return bad("options", "a count is negative or too large")
	}
	o.By = orDefault(o.By, "ip")
	o.Cost = orDefault(o.Cost, "1")
	o.Worst = orDefault(o.Worst, worstKeys)
	o.MaxKeys = orDefault(o.MaxKeys, maxKeys)
	o.SortRecords = orDefault(o.SortRecords, sortRecords)
	o.TempDir = orDefault(o.TempDir, os.TempDir())
	var defs []*dipwell.Definition
	for _, l := range o.Limits {
		for _, d := range defs {
			if d.Name == l.Name {
				return bad("limit", "%s is given twice", l.Name)
			}
		}
		d, err := store.NewDefinition(l)
		if err != nil {
			return nil, err
		}
		defs = append(defs, d)
	}
	return defs, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// run is one replay.
type run struct {
	ctx  context.Context
	in   Input
	o    Options
	defs []*dipwell.Definition

	log    *reader // the last reading of the log
	engine *engine
	sorted *sorter // nil when the log was in order and could be decided as it was read
	tracks [][]*track
}

var errOutOfOrder = errors.New("the log is out of order")

// decide runs the log through the limits. It bets on a log that is in order
// where losing the bet costs no more than reading again.
func (r *run) decide() error {
	r.engine = newEngine(r.defs, &r.o)
	reset, resettable := r.o.Decisions.(Resetter)
	if r.in.Again && (resettable || r.o.Decisions == nil) {
		err := r.read(r.engine.decide, true)
		if !errors.Is(err, errOutOfOrder) {
			return errors.Join(err, r.engine.flush())
		}
		r.engine = newEngine(r.defs, &r.o)
		if resettable {
			if err := reset.Reset(); err != nil {
				return fmt.Errorf("start the decisions again: %w", err)
			}
		}
	}
	r.sorted = newSorter(r.o.SortRecords, r.in.Size, r.o.TempDir)
	if err := r.read(r.sorted.add, false); err != nil {
		return err
	}
	if err := r.each("decide", r.engine.decide); err != nil {
		return err
	}
	return r.engine.flush()
}

// read parses the log from its beginning and passes on the lines that count.
func (r *run) read(do func(*record) error, inOrder bool) error {
	log, err := openReader(r.in, &r.o)
	if err != nil {
		return err
	}
	r.log = log
	ahead := readAhead(log)
	defer ahead.stop(r.ctx)
	last := int64(-1)
	for {
		b, err := ahead.next(r.ctx)
		if err != nil {
			return err
		}
		for i := range b.recs {
			rec := &b.recs[i]
			if inOrder && rec.t < last {
				return errOutOfOrder
			}
			last = rec.t
			if err := do(rec); err != nil {
				return err
			}
		}
		if b.end {
			return b.err
		}
		r.progress("read", b.consumed, r.in.Size)
		ahead.free <- b
	}
}

// each passes on the records in time order, any number of times.
func (r *run) each(stage string, do func(*record) error) error {
	if r.sorted == nil {
		return r.read(do, true)
	}
	var done int64
	return r.sorted.each(func(rec *record) error {
		if done++; done&4095 == 0 {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			r.progress(stage, done, r.sorted.count)
		}
		return do(rec)
	})
}

func (r *run) progress(stage string, done, total int64) {
	if r.o.Progress != nil {
		r.o.Progress(stage, done, total)
	}
}

func (r *run) close() {
	if r.sorted != nil {
		r.sorted.close()
	}
}
