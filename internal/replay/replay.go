package replay

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"

	"github.com/dipwell/dipwell"
)

// Options configure a replay. Only Limits is required.
type Options struct {
	// Limits are limits of different names, with the parents that they have. A limit that
	// is a parent of another is replayed with it, for the key without its last part.
	Limits []dipwell.Limit

	// Ask has the names of 1 to 16 of Limits that are asked, with their parents.
	// Default of Ask: all limits that are not the parent of another, except concurrency limits
	// and those whose keys have another number of parts than By; see Report.NotJudged.
	Ask []string

	// All takes each request from all limits, all or nothing. By default each
	// limit decides every request independently of the others.
	All bool

	// Pattern is a grok pattern that captures the time and other fields of a line, or the
	// name of a format (combined, json, csv, w3c, alb and others) or of a pattern of the grok
	// library. Default of Pattern: the format that the first lines look like.
	Pattern string

	// By is the field with the key of a request, or several with + between them, which
	// make a key as dipwell.Key does. Limits that are shared have no key, whatever By is; none
	// is for them alone. The key of a limit that has a parent, or is one, is a path with a part
	// for each field. ip, or ip=FIELD for a field of another name, is an address, and its key
	// is that of httplimit.ClientIP; other keys are the log's text. Default: ip.
	By string

	// TrustedProxies are proxies whose addresses are skipped, from the right, in a list of
	// addresses. Default of TrustedProxies: none; the client is then the first of the list.
	TrustedProxies []netip.Prefix

	// Where are conditions, FIELD=VALUE or FIELD~PATTERN, with a regular expression
	// that matches anywhere in the field. Lines that do not meet all of them are left
	// out. Default: none.
	Where []string

	// Plan says which plan a request names: FIELD, whose value is its name, or the
	// request has none if it is empty, - or null; or FIELD=VALUE:PLAN or
	// FIELD~PATTERN:PLAN. The first that applies counts. If a limit lacks the named plan,
	// its base decides; a line whose plan no limit has is malformed. Default: none.
	Plan []string

	// Cost is a whole number of tokens, or the field with that number. Default: 1.
	Cost string

	// TimeField is the field with the time, in JSON and CSV logs and those read by a grok
	// pattern. Default of TimeField: the first of the usual names, such as time and
	// @timestamp, whose value is a time between 2000 and tomorrow.
	TimeField string

	Decisions   io.Writer // gets each decision as a line of JSON; if set, the log is always sorted first
	Worst       int       // number of keys of a limit, the worst first, in the report; default 10
	MaxKeys     int       // number of keys with counts in memory, see Report.Forgotten; default 131072
	SortRecords int       // records sorted in memory before they go to disk, at most 2^24; default 262144
	TempDir     string    // directory for temporary files while sorting; default os.TempDir()

	// Progress, if set, is called every few thousand lines. stage is read or
	// decide; total is 0 if it is not known.
	Progress func(stage string, done, total int64)
}

const (
	maxKeys     = 1 << 17  // about 100 bytes each for one limit, and the key's text
	sortRecords = 1 << 18  // 16 MiB for the records and as much for their keys, at most
	maxLine     = 16 << 20 // parsed bytes of a line
	worstKeys   = 10
)

// Run replays a log and returns a report. Run returns an error if an option is invalid (a
// *dipwell.FieldError that names it), if the log cannot be read or sorted, if a write to
// Decisions fails, or if ctx ends. A malformed line is not an error; the report counts it.
func Run(ctx context.Context, in Input, o Options) (*Report, error) {
	r := &run{ctx: ctx, in: in}
	var err error
	if err = o.check(); err == nil {
		r.lineup, err = newLineup(&o)
	}
	if err == nil {
		r.fields, err = newFields(&o, r.lineup)
	}
	if err != nil {
		return nil, err
	}
	r.o = o
	defer func() { r.sorted.close() }()
	if err := r.decide(); err != nil {
		return nil, err
	}
	return r.report(), nil
}

// check checks and sets the options that are not about limits and fields.
func (o *Options) check() error {
	if o.Worst < 0 || o.MaxKeys < 0 || o.SortRecords < 0 || o.SortRecords > 1<<24 {
		return badOption("options", "a count is negative or too large")
	}
	o.By = cmp.Or(o.By, "ip")
	o.Cost = cmp.Or(o.Cost, "1")
	o.Worst = cmp.Or(o.Worst, worstKeys)
	o.MaxKeys = cmp.Or(o.MaxKeys, maxKeys)
	o.SortRecords = cmp.Or(o.SortRecords, sortRecords)
	o.TempDir = cmp.Or(o.TempDir, os.TempDir())
	return nil
}

type run struct {
	ctx    context.Context
	in     Input
	o      Options
	lineup *lineup
	fields *fields

	log    *reader // the last reading of the log
	engine *engine
	sorted *sorter // nil if the log was decided while it was read
}

var errOutOfOrder = errors.New("the log is out of order")

// decide decides the log. If nobody wants the decisions and the log can be read again,
// decide first assumes that it is in order, and starts again with a sort if it is not.
func (r *run) decide() error {
	r.engine = newEngine(r.lineup, &r.o)
	if r.in.Again && r.o.Decisions == nil {
		err := r.read(r.engine.decide, true)
		if !errors.Is(err, errOutOfOrder) {
			return err
		}
		r.engine = newEngine(r.lineup, &r.o)
	}
	var out *bufio.Writer
	if r.o.Decisions != nil {
		out = bufio.NewWriterSize(r.o.Decisions, 256<<10)
		r.engine.out = json.NewEncoder(out)
		r.engine.out.SetEscapeHTML(false)
	}
	r.sorted = &sorter{most: r.o.SortRecords, dir: r.o.TempDir}
	if err := r.read(r.sorted.add, false); err != nil {
		return err
	}
	var done int64
	err := r.sorted.each(func(rec *record) error {
		if done++; done&4095 == 0 {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			r.progress("decide", done, r.sorted.count)
		}
		return r.engine.decide(rec)
	})
	if err != nil || out == nil {
		return err
	}
	return out.Flush()
}

// read reads the log from its beginning and calls do for each record. read returns when
// ctx ends, even if a read waits.
func (r *run) read(do func(*record) error, inOrder bool) error {
	log, err := openReader(r.in, &r.o, r.fields)
	if err != nil {
		return err
	}
	r.log = log
	defer log.close()
	defer context.AfterFunc(r.ctx, log.close)()
	var rec record
	for n := 0; ; n++ {
		if n%4096 == 0 {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			r.progress("read", log.raw.n, r.in.Size)
		}
		ok, err := log.next(&rec)
		switch {
		case !ok:
			return cmp.Or(r.ctx.Err(), err)
		case inOrder && log.disorder > 0:
			return errOutOfOrder
		}
		if err := do(&rec); err != nil {
			return err
		}
	}
}

func (r *run) progress(stage string, done, total int64) {
	if r.o.Progress != nil {
		r.o.Progress(stage, done, total)
	}
}
