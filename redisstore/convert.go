package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// A conversion is a row to be written back, as Go has brought it up to date.
type conversion struct {
	*entry
	key      string
	old, new store.State
	listed   bool // it has records
	full     int64
}

// conversions returns the row converted to the current version and, with a
// calendar, stepped into the current window: both are done in Go, not in
// scripts. It returns none if nothing changes.
func (s *Store) conversions(e *entry, key string, old store.State, listed bool, now int64, r *store.Rule) []conversion {
	if old == (store.State{}) {
		return nil
	}
	next, ok := e.def.Carry(old, key, now)
	if !ok {
		return nil
	}
	if r.Every == 0 && next.Used > 0 {
		t := max(now, next.TS)
		next.Used = r.Apply(next, t, store.VerbCheck, 0).Before
		next.TS = t
	}
	if next == old {
		return nil
	}
	return []conversion{{e, key, old, next, listed, now + algebra.TimeToFull(r, next.Used, max(now, next.TS), now)}}
}

// writeConversions writes rows back. A row that was changed in the meantime is
// left alone: it is converted by then, or will be in the next round.
func (s *Store) writeConversions(ctx context.Context, rows []conversion) error {
	calls := make([]call, len(rows))
	for i := range rows {
		args, err := s.swapArgs(ctx, &rows[i])
		if err != nil {
			return err
		}
		calls[i] = newCall(ctx, s.scripts.swap, false, s.withClock(args))
	}
	for _, err := range s.runMany(ctx, calls) {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) swapArgs(ctx context.Context, c *conversion) ([]any, error) {
	var fields []any
	recordsKey, listed := s.names.recordsOf(c.def.Name, c.key), c.listed
	if listed && c.old.Version != c.new.Version {
		texts, err := s.db.HGetAll(ctx, recordsKey).Result()
		if err != nil {
			return nil, storeError(err, false)
		}
		if fields, err = c.recordFields(texts); err != nil {
			return nil, fmt.Errorf("%w: the key %s: %w", store.ErrStore, recordsKey, err)
		}
		listed = fields != nil
	}
	args := []any{nil, nil, 1, c.row(c.key)}
	if fields != nil {
		args = []any{nil, nil, 2, c.row(c.key), recordsKey}
	}
	row := ""
	if c.new.Used > 0 {
		row = rowText(c.new, listed)
	}
	return append(append(args, rowText(c.old, c.listed), row, c.full), fields...), nil
}

// rowText encodes a row.
func rowText(row store.State, listed bool) string {
	before := ""
	if listed {
		before = "0"
	}
	return fmt.Sprintf("%s%d %d %d", before, row.Used, row.TS, row.Version)
}

// recordFields converts the lows and the records of a row. It returns the name,
// the old and the new value of each field of the hash, or nil if the lows have
// ended.
func (c *conversion) recordFields(texts map[string]string) ([]any, error) {
	lows, state, err := parseLows(texts[""])
	if err != nil || lows == nil {
		return nil, err
	}
	row := c.old
	row.Lows = lows
	if row, _ = c.def.Carry(row, c.key, c.new.TS); row.Lows == nil {
		return nil, nil
	}
	fields := []any{"", texts[""], lowsText(row.Lows, state)}
	for id, text := range texts {
		if id == "" {
			continue
		}
		r, err := parseRecord(text)
		if err != nil {
			return nil, err
		}
		r.Units = c.def.CarryUnits(r.Units, c.old.Version, nil, c.new.TS)
		if r.Slack >= 0 {
			r.Slack = c.def.CarryUnits(r.Slack, c.old.Version, nil, c.new.TS)
		}
		fields = append(fields, id, text, recordText(&r))
	}
	return fields, nil
}

// parseLows decodes "mark next till zero number low…". It returns nil for "".
func parseLows(text string) (l *store.Lows, state [2]int64, err error) {
	n, err := numbers(text)
	if err != nil || len(n) == 0 {
		return nil, state, err
	}
	if len(n) < 6 || len(n)%2 == 1 || len(n) > 4+2*store.MaxLows {
		return nil, state, fmt.Errorf("%q is not a list of lows", text)
	}
	l = &store.Lows{Mark: n[0], Next: n[1]}
	for i := 4; i < len(n); i += 2 {
		l.Entries = append(l.Entries, store.Low{Number: n[i], Used: n[i+1]})
	}
	return l, [2]int64{n[2], n[3]}, nil
}

func lowsText(l *store.Lows, state [2]int64) string {
	n := []int64{l.Mark, l.Next, state[0], state[1]}
	for _, e := range l.Entries {
		n = append(n, e.Number, e.Used)
	}
	return join(n)
}

// parseRecord decodes "number mark slack units due ends".
func parseRecord(text string) (r store.Record, err error) {
	n, err := numbers(text)
	if err == nil && len(n) != 6 {
		err = fmt.Errorf("%q is not a record", text)
	}
	if err != nil {
		return r, err
	}
	return store.Record{Number: n[0], Mark: n[1], Slack: n[2], Units: n[3], Due: n[4], Ends: n[5]}, nil
}

func recordText(r *store.Record) string {
	return join([]int64{r.Number, r.Mark, r.Slack, r.Units, r.Due, r.Ends})
}

func numbers(text string) (list []int64, err error) {
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

func join(list []int64) string {
	var b []byte
	for i, n := range list {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(b)
}
