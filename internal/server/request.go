package server

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

// maxBody is the largest body of a call.
const maxBody = 64 << 10

var (
	errTooLarge = errors.New("body: has more than 65536 bytes")
	errBoth     = bad("query", "parameters are either in the query or in the JSON body")
	errSlow     = errors.New("body: did not arrive in time")
)

type request struct {
	take        dipwell.Take
	takes       []dipwell.Take
	reservation string
	note        string
	hold, id    string
	costs       []int64 // costs of a settle; nil settles to what was held
	keys        []string
	ttl         time.Duration
	timeout     time.Duration
	latency     int64   // µs that an observed call took
	count       int64   // observed calls
	ok          bool    // they succeeded
	allowed     members // members that requests of the path may have
	seen        members
}

type members uint32

const (
	hasLimit members = 1 << iota
	hasKey
	hasCost
	hasPlan
	hasFloor
	hasTakes
	hasReservation
	hasHold
	hasCosts
	hasTTL
	hasID
	hasTimeout
	hasLatency
	hasOK
	hasCount
	hasNote
	hasKeys
)

// Sets of members. The members in ofTake may be in the request or in the entries of takes;
// the values of those in ofNumber are whole numbers.
const (
	ofNumber = hasCost | hasFloor | hasLatency | hasCount
	ofBucket = hasLimit | hasKey | hasCost
	ofTake   = ofBucket | hasPlan | hasFloor
)

// memberNames are the names of members, in the order of their bits.
var memberNames = [...]string{"limit", "key", "cost", "plan", "floor", "takes", "reservation", "hold", "costs", "ttl", "id", "timeout", "latency_us", "ok", "count", "note", "keys"}

// member returns the member with a name if it is in a set, or 0.
func (m members) member(name string) members {
	for i := range memberNames {
		if memberNames[i] == name {
			return m & (1 << i)
		}
	}
	return 0
}

func (m members) String() string {
	var names []string
	for i := range memberNames {
		if m&(1<<i) != 0 {
			names = append(names, memberNames[i])
		}
	}
	return strings.Join(names, ", ")
}

func (q *request) has(m members) bool { return q.seen&m != 0 }

// read fills x.req from the body, or from the query and a form, with members of allowed.
func (a *api) read(r *http.Request, x *exchange, allowed members) error {
	q := &x.req
	q.allowed = allowed
	if err := x.parse(r, q.jsonMember, q.param); err != nil {
		return err
	}
	if err := q.complete(); err != nil {
		return err
	}
	return q.mayBeOf(callerOf(r.Context()))
}

// mayBeOf returns a denial if the caller may not name the limits of the request.
func (q *request) mayBeOf(c *Caller) error {
	if c == nil || q.allowed&hasLimit == 0 {
		return nil
	}
	if !q.has(hasTakes) {
		return c.mayName("limit", q.take.Limit)
	}
	for i := range q.takes {
		if err := c.mayName(takesPath(i)+"limit", q.takes[i].Limit); err != nil {
			return err
		}
	}
	return nil
}

// parse reads the body. It calls member for each member of the body, if that is JSON, or else
// param for each parameter of the query and of the form in the body.
func (x *exchange) parse(r *http.Request, member func(name string, v gjson.Result) error, param func(name, value string) error) (err error) {
	if err = x.body(r); err != nil {
		return err
	}
	switch {
	case !isJSON(r, x.in):
		if err = eachParam(r.URL.RawQuery, param); err == nil {
			err = eachParam(string(x.in), param)
		}
	case r.URL.RawQuery != "":
		err = errBoth
	default:
		err = parseObject(x.in, member)
	}
	if err != nil {
		err = cmp.Or(notReadable(r), err)
	}
	return err
}

// notReadable returns an error that says how a body should be sent instead, or nil
// if its kind is one that is read. notReadable is for bodies that could not be parsed.
func notReadable(r *http.Request) error {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return bad("body", "has a Content-Encoding; send it without one")
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		return bad("body", "is multipart; send JSON, or a form as application/x-www-form-urlencoded (curl -d, not -F)")
	}
	return nil
}

// body reads the whole body into x.in, at most maxBody bytes.
func (x *exchange) body(r *http.Request) error {
	x.in = x.in[:0]
	if r.ContentLength == 0 || r.Body == nil {
		return nil
	}
	if r.ContentLength > maxBody {
		return errTooLarge
	}
	for {
		if len(x.in) == cap(x.in) {
			x.in = append(x.in, 0)[:len(x.in)]
		}
		n, err := r.Body.Read(x.in[len(x.in):cap(x.in)])
		x.in = x.in[:len(x.in)+n]
		switch {
		case len(x.in) > maxBody:
			return errTooLarge
		case err == io.EOF:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errSlow
		case err != nil:
			return bad("body", "cannot be read to its end")
		}
	}
}

// isJSON reports whether the body is JSON: its first byte is a brace, since curl
// -d sends everything as a form, or its Content-Type is application/json.
func isJSON(r *http.Request, body []byte) bool {
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte{'{'}) {
		return true
	}
	ct := r.Header["Content-Type"]
	return len(body) > 0 && len(ct) > 0 && strings.HasPrefix(ct[0], "application/json")
}

// needed are those members that a request must have if its path allows them.
const needed = hasReservation | hasHold | hasTTL | hasLatency | hasKeys

// complete sets defaults and checks which members are present.
func (q *request) complete() error {
	if missing := q.allowed & needed &^ q.seen; missing != 0 {
		return bad(missing.String(), "is missing")
	}
	switch {
	case q.allowed&hasCosts != 0:
		return q.completeCosts()
	case q.allowed&hasLimit == 0:
		return nil
	case q.has(hasTakes):
		if q.has(ofTake) {
			return bad("takes", "must be alone: "+(q.allowed&ofTake).String()+" belong in its entries")
		}
		return nil
	case q.allowed&hasKeys != 0:
		return finish(&q.take, q.seen|hasKey, "")
	}
	return finish(&q.take, q.seen, "")
}

// completeCosts sets the costs of a settle.
func (q *request) completeCosts() error {
	switch {
	case q.has(hasCost) && q.has(hasCosts):
		return bad("costs", "is given together with cost; give one of them")
	case q.has(hasCost):
		q.costs = []int64{q.take.Cost}
	case q.has(hasCosts) && len(q.costs) == 0:
		return bad("costs", "has no entries; leave it out to settle to what was held")
	}
	return nil
}

// finish sets a take's defaults. where is the prefix for the names of its members in errors.
func finish(t *dipwell.Take, seen members, where string) error {
	if seen&hasLimit == 0 {
		return bad(where+"limit", "is missing")
	}
	if seen&hasKey == 0 {
		t.Key = dipwell.Shared
	} else if t.Key == dipwell.Shared { // dipwell.Shared is a NUL byte, which is not a valid key
		return bad(where+"key", "has a NUL byte")
	}
	if seen&hasCost == 0 {
		t.Cost = 1
	}
	if seen&hasPlan != 0 {
		return checkPlan(where, t.Plan)
	}
	return nil
}

// all returns the takes of a call that may have one or several.
func (q *request) all() []dipwell.Take {
	if q.has(hasTakes) {
		return q.takes
	}
	return []dipwell.Take{q.take}
}

func checkPlan(where, plan string) error {
	if plan == "" {
		return bad(where+"plan", "is empty; leave it out for the limit itself")
	}
	return nil
}

// parseCost parses a cost in digits, without sign, exponent or leading zeros.
func parseCost(field, s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > store.MaxInt || s[0] == '+' || s[0] == '-' || s[0] == '0' && len(s) > 1 {
		if len(s) > 32 {
			s = s[:32] + "..."
		}
		return 0, bad(field, fmt.Sprintf("%q is not a whole number from 0 to 2^53-1, in digits", s))
	}
	return n, nil
}

func bad(field, reason string) error { return &dipwell.FieldError{Field: field, Reason: reason} }

func parseSpan(field, s string) (time.Duration, error) {
	d, err := period.ParseDuration(s)
	if err != nil {
		return 0, bad(field, err.Error())
	}
	return d, nil
}
