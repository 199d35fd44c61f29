package redisstore

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// A storedRow is the value of a bucket in Redis: "used ts version", and if it has records
// that may give something back also "due till", and its lows: "mark next", then "number
// used" for each entry.
type storedRow struct {
	store.State
	recorded bool // due and till are present
	// Before due, in µs, no record ends, so that scripts can decide without the
	// records. due may be too early, and is 0 while there are reservations.
	due int64
	// till is when the record of the last hold ends. Only for a concurrency limit till is
	// exact; for others it may be later.
	till int64
}

// lockMark follows a row that a decision in Go has locked, so that scripts leave the row
// alone.
const lockMark = " *"

// parseRow decodes a row. The text of a full bucket is "".
func parseRow(text string) (row storedRow, ok bool) {
	if text == "" {
		return row, true
	}
	text = strings.TrimSuffix(text, lockMark)
	used, rest, _ := strings.Cut(text, " ")
	ts, rest, _ := strings.Cut(rest, " ")
	version, rest, more := strings.Cut(rest, " ")
	u, err1 := strconv.ParseInt(used, 10, 64)
	t, err2 := strconv.ParseInt(ts, 10, 64)
	v, err3 := strconv.ParseUint(version, 10, 32)
	row.State = store.State{Used: u, TS: t, Version: uint32(v)}
	if err1 != nil || err2 != nil || err3 != nil || u < 0 || max(u, t) > store.MaxInt { // larger values could overflow in a sum
		return row, false
	}
	return row, !more || row.parseRecorded(rest)
}

// parseRecorded decodes the part of a row after the version.
func (row *storedRow) parseRecorded(text string) (ok bool) {
	n, err := numbers(text)
	if err != nil || len(n)%2 != 0 || len(n) < 2 || len(n) == 4 || len(n) > 4+2*store.MaxLows {
		return false
	}
	if row.recorded, row.due, row.till = true, n[0], n[1]; len(n) > 2 {
		row.Lows = &store.Lows{Mark: n[2], Next: n[3]}
		for i := 4; i < len(n); i += 2 {
			low := store.Low{Number: n[i], Used: n[i+1]}
			for l := row.Lows.Entries; len(l) > 0 && l[len(l)-1].Used >= low.Used; l = row.Lows.Entries { // a script has lowered the last entry
				low.Number, row.Lows.Entries = l[len(l)-1].Number, l[:len(l)-1]
			}
			row.Lows.Entries = append(row.Lows.Entries, low)
		}
	}
	return true
}

func (row *storedRow) String() string {
	n := []int64{row.Used, row.TS, int64(row.Version)}
	if row.recorded {
		n = append(n, row.due, row.till)
	}
	if l := row.Lows; l != nil {
		n = append(n, l.Mark, l.Next)
		for _, e := range l.Entries {
			n = append(n, e.Number, e.Used)
		}
	}
	return join(n)
}

// Slack values of records that do not wait.
const (
	slackNone = -1
	slackRest = -2 // the record was cancelled
)

// holdField is the first character in names of fields with records of holds; the hold's id
// follows it. Other names of fields are ids of reservations.
const holdField = ":"

// parseRecord decodes "number mark slack units due ends unit expires".
func parseRecord(field, text string) (r store.Record, err error) {
	n, err := numbers(text)
	if err == nil && (len(n) != 8 || n[6] < 1) {
		err = fmt.Errorf("%q is not a record", text)
	}
	if err != nil {
		return r, err
	}
	r = store.Record{Number: n[0], Mark: n[1], Slack: max(n[2], slackNone), Units: n[3], Due: n[4], Ends: n[5], Unit: n[6], Expires: n[7], Rest: n[2] == slackRest}
	if id, is := strings.CutPrefix(field, holdField); is {
		r.Hold = id
	}
	return r, nil
}

func recordText(r *store.Record) string {
	slack, due := r.Slack, r.Due
	if r.Rest {
		slack = slackRest
	}
	if r.Hold != "" { // so that the record says nothing that the hold does not
		due = 0
	}
	return join([]int64{r.Number, r.Mark, slack, r.Units, due, r.Ends, r.Unit, r.Expires})
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
