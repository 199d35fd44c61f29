package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// convert is a row that is to be written back as Go has brought it up to date.
type convert struct {
	*entry
	key      string
	old, new store.State
	listed   bool // it has records
	full     int64
}

// fresh brings a row to the present version and, where a calendar decides,
// into the present window: what the scripts cannot.
func (s *Store) fresh(e *entry, key string, old store.State, listed bool, now int64, r *store.Rule) []convert {
	if old == (store.State{}) {
		return nil
	}
	next, ok := e.def.Carry(old, key)
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
	return []convert{{e, key, old, next, listed, now + r.FullIn(next.Used, max(now, next.TS), now)}}
}

// convert writes rows back. One that was changed meanwhile is left: whoever did
// that has converted it, or the next round will.
func (s *Store) convert(ctx context.Context, rows []convert) error {
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

func (s *Store) swapArgs(ctx context.Context, c *convert) ([]any, error) {
	var fields []any
	held, listed := s.names.recordsOf(c.def.Name, c.key), c.listed
	if listed && c.old.Version != c.new.Version {
		texts, err := s.db.HGetAll(ctx, held).Result()
		if err != nil {
			return nil, storeError(err, false)
		}
		if fields, err = c.fields(texts); err != nil {
			return nil, fmt.Errorf("%w: the key %s: %w", store.ErrStore, held, err)
		}
		listed = fields != nil
	}
	args := []any{nil, nil, 1, c.row(c.key)}
	if fields != nil {
		args = []any{nil, nil, 2, c.row(c.key), held}
	}
	row := ""
	if c.new.Used > 0 {
		row = rowText(c.new, listed)
	}
	return append(append(args, rowText(c.old, c.listed), row, c.full), fields...), nil
}

// rowText is a row as Redis has it.
func rowText(row store.State, listed bool) string {
	before := ""
	if listed {
		before = "0"
	}
	return fmt.Sprintf("%s%d %d %d", before, row.Used, row.TS, row.Version)
}

// fields converts the list and the records of a row: name, what it was, what it
// becomes. None: the list has ended.
func (c *convert) fields(texts map[string]string) ([]any, error) {
	lows, state, err := parseLows(texts[""])
	if err != nil || lows == nil {
		return nil, err
	}
	row := c.old
	row.Lows = lows
	if row, _ = c.def.Carry(row, c.key); row.Lows == nil {
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
		r.Units = c.def.CarryUnits(r.Units, c.old.Version)
		if r.Slack >= 0 {
			r.Slack = c.def.CarryUnits(r.Slack, c.old.Version)
		}
		fields = append(fields, id, text, recordText(&r))
	}
	return fields, nil
}

// parseLows reads "mark next till zero number low…"; nothing is nil.
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

// parseRecord reads "number mark slack units due ends".
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
