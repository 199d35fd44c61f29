package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/dipwell/dipwell/store"
)

// record is a request in the log.
type record struct {
	T    int64  // µs since the Unix epoch
	Line int64  // line number in the log, from 1
	Cost int64  // tokens
	Key  []byte // valid until the next record
	Plan uint16 // index + 1 of the plan's name in fields.names; 0: no plan
}

// malformed is the reason why a line is left out.
type malformed string

func (m malformed) Error() string { return string(m) }

const (
	errHeader   malformed = "is the header"
	errFiltered malformed = "does not match"
	errEmpty    malformed = "the line is empty"
	errNoTime   malformed = "there is no time in it"
	errBadTime  malformed = "its time cannot be read"
	errEra      malformed = "its time lies before 2000 or after tomorrow"
	errBroken   malformed = "its JSON is broken"
	errNull     malformed = "a field is null and not text or a number"
)

// maxShown is how many malformed lines a report shows.
const maxShown = 10

type reader struct {
	*lineReader
	parser
	lines  interface{ next() ([]byte, error) }
	fields *fields
	values []value
	format string

	count, malformed int64 // lines
	headers          int64 // lines that are not requests
	filtered         int64 // lines that do not match Options.Where
	disorder         int64 // records that are earlier than the record before
	last             int64 // time of the record before
	shown            []BadLine
}

func openReader(in Input, o *Options, f *fields) (*reader, error) {
	l, err := openLines(in)
	if err != nil {
		return nil, err
	}
	r := &reader{lineReader: l, lines: l, fields: f, values: make([]value, len(f.list)), last: -1}
	if r.parser, r.format, err = newParser(l.head(detectBytes), o, f.list); err != nil {
		l.close()
		return nil, err
	}
	if r.format == "json" && bytes.HasPrefix(bytes.TrimSpace(l.head(detectBytes)), []byte("[")) {
		a := &jsonArray{lineReader: l, most: io.LimitedReader{R: l.buf, N: maxLine}}
		a.dec = json.NewDecoder(&a.most)
		r.lines = a
	}
	return r, nil
}

// next reads the next record. next returns false at the end of the log.
func (r *reader) next(rec *record) (bool, error) {
	for {
		line, err := r.lines.next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if errors.Is(err, io.ErrUnexpectedEOF) { // the end of gzip data, or of an array in JSON, is missing
			err = errors.New("the data stops here; the file is not complete")
		}
		if err != nil {
			return false, fmt.Errorf("%s: line %d: %w", r.name, r.count+1, err)
		}
		r.count++
		rec.Line = r.count
		if err = r.parse(line, &rec.T, r.values); err == nil {
			err = r.fields.fill(rec, r.values)
		}
		if err != nil {
			bad, ok := errors.AsType[malformed](err)
			if !ok {
				return false, err
			}
			r.reject(line, bad)
			continue
		}
		if rec.T < r.last {
			r.disorder++
		}
		r.last = rec.T
		return true, nil
	}
}

func (r *reader) reject(line []byte, why malformed) {
	switch why {
	case errHeader:
		r.headers++
		return
	case errFiltered:
		r.filtered++
		return
	}
	if len(line) == 0 {
		why = errEmpty
	}
	if r.malformed++; len(r.shown) < maxShown {
		r.shown = append(r.shown, BadLine{r.count, string(why), excerpt(line)})
	}
}

// excerpt returns the beginning of a line, quoted.
func excerpt(line []byte) string {
	const most = 80
	if len(line) > most {
		return strconv.Quote(string(line[:most])) + "…"
	}
	return strconv.Quote(string(line))
}

// checkKey checks a key as the stores do.
func checkKey(key []byte) error {
	switch {
	case len(key) == 0:
		return malformed("the key is empty")
	case len(key) > store.MaxKey:
		return malformed("the key has " + strconv.Itoa(len(key)) + " bytes; at most 512")
	case bytes.IndexByte(key, 0) >= 0:
		return malformed("the key has a NUL in it")
	case !utf8.Valid(key):
		return malformed("the key is not UTF-8")
	}
	return nil
}

// parseCost parses a number of tokens. "-" is 0.
func parseCost(b []byte) (int64, error) {
	if string(b) == "-" {
		return 0, nil
	}
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil || n > store.MaxInt {
		return 0, malformed("the cost is not a whole number from 0 to 2^53-1")
	}
	return int64(n), nil
}
