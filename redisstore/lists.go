package redisstore

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// parseLows decodes "mark next till due number low…". It returns nil for "".
func parseLows(text string) (*store.Lows, error) {
	n, err := numbers(text)
	if err != nil || len(n) == 0 {
		return nil, err
	}
	if len(n) < 6 || len(n)%2 != 0 || len(n) > 4+2*store.MaxLows {
		return nil, fmt.Errorf("%q is not a list of lows", text)
	}
	l := &store.Lows{Mark: n[0], Next: n[1]}
	for i := 4; i < len(n); i += 2 {
		l.Entries = append(l.Entries, store.Low{Number: n[i], Used: n[i+1]})
	}
	return l, nil
}

// lowsText encodes lows. till is the time at which the last of their reservations ends, and
// due that at which the first of their holds expires.
func lowsText(l *store.Lows, till, due int64) string {
	n := []int64{l.Mark, l.Next, till, due}
	for _, e := range l.Entries {
		n = append(n, e.Number, e.Used)
	}
	return join(n)
}

// Slacks of records that do not wait.
const (
	slackNone = -1
	slackRest = -2 // for a record that was cancelled
)

// parseRecord decodes "number mark slack units due ends", of a row with a version.
func parseRecord(text string, version uint32) (r store.Record, err error) {
	n, err := numbers(text)
	if err == nil && len(n) != 6 {
		err = fmt.Errorf("%q is not a record", text)
	}
	if err != nil {
		return r, err
	}
	return store.Record{Number: n[0], Mark: n[1], Slack: max(n[2], slackNone), Units: n[3], Due: n[4], Ends: n[5], Version: version, Rest: n[2] == slackRest}, nil
}

func recordText(r *store.Record) string {
	slack := r.Slack
	if r.Rest {
		slack = slackRest
	}
	return join([]int64{r.Number, r.Mark, slack, r.Units, r.Due, r.Ends})
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
