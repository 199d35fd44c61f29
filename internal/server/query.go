package server

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Default and largest number of entries in a page.
const (
	pageSize = 100
	maxPage  = 1000
)

// A query has the parameters of a call without a body.
type query struct {
	given names // names of the parameters that the call has

	limit, key, prefix, after, plan, header, note string
	ip, others                                    bool
	cost, floor                                   int64
	n, minutes, deny                              int
	hour, from, to                                time.Time
	kind                                          store.OverrideKind
}

// paramNames are the names of parameters that differ from those in openapi.json.
var paramNames = map[string]string{"key_cost": "cost", "audit_key": "key", "top": "n"}

func paramName(param string) string { return cmp.Or(paramNames[param], param) }

// parseQuery parses a query with parameters of known, as openapi.json names them, each once.
func parseQuery(text string, known []string) (*query, error) {
	q := &query{given: names{}}
	return q, eachParam(text, func(name, value string) error {
		if err := q.given.once(name); err != nil {
			return err
		}
		if i := slices.IndexFunc(known, func(param string) bool { return paramName(param) == name }); i >= 0 {
			return q.set(known[i], name, value)
		}
		if len(known) == 0 {
			return bad(name, "unknown parameter; this path takes none")
		}
		var all []string
		for _, param := range known {
			all = append(all, paramName(param))
		}
		return bad(name, "unknown parameter; known are "+strings.Join(all, ", "))
	})
}

func (q *query) set(param, name, value string) (err error) {
	switch param {
	case "limit":
		if q.limit = value; value == "" {
			err = bad(name, "is empty")
		}
	case "key", "audit_key":
		q.key = value
	case "prefix":
		q.prefix = value
	case "after", "before":
		q.after = value
	case "note":
		q.note, err = value, checkNote(value)
	case "plan":
		q.plan, err = value, checkPlan("", value)
	case "kind":
		q.kind, err = kindOf(value)
	case "key_header":
		if q.header = value; badHeaderName(value) != "" {
			err = bad(name, badHeaderName(value))
		}
	case "key_ip":
		if q.ip = value == "1"; !q.ip {
			err = bad(name, "must be 1")
		}
	case "others":
		if q.others = value == "true"; !q.others {
			err = bad(name, "can only be true")
		}
	case "cost", "key_cost":
		q.cost, err = parseCost(name, value)
	case "floor":
		q.floor, err = parseCost(name, value)
	case "n":
		q.n, err = parseSize(name, value, maxPage)
	case "top":
		q.n, err = parseSize(name, value, maxTop)
	case "minutes":
		q.minutes, err = parseSize(name, value, minutesKept)
	case "deny":
		if q.deny, err = strconv.Atoi(value); err != nil || !slices.Contains([]int{401, 403, 429, 503}, q.deny) {
			err = bad(name, "must be 401, 403, 429 or 503")
		}
	case "hour":
		q.hour, err = parseTime(name, value)
		q.hour = q.hour.Truncate(time.Hour)
	case "from":
		q.from, err = parseTime(name, value)
	case "to":
		q.to, err = parseTime(name, value)
	}
	return err
}

func parseSize(name, value string, most int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > most {
		return 0, bad(name, fmt.Sprintf("must be from 1 to %d", most))
	}
	return n, nil
}

func parseTime(name, value string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, value)
	if at = at.UTC(); err != nil || at.Year() < 1971 || at.Year() > 9999 {
		return at, bad(name, "is not a time such as 2030-01-31T18:00:00Z")
	}
	return at, nil
}

// bucket returns the key, or the key of the shared bucket if none is given.
func (q *query) bucket() (string, error) {
	if !q.given["key"] {
		return dipwell.Shared, nil
	}
	return q.key, checkPlain(q.key)
}

// one reports whether a query asks for one key, not for a list. "" is the shared bucket.
func (q *query) one() (bool, error) {
	if !q.given["key"] {
		if q.given["after"] && q.after == "" { // as in "next" after the shared bucket
			q.after = dipwell.Shared
		}
		return false, nil
	}
	for _, name := range [...]string{"prefix", "after", "n"} {
		if q.given[name] {
			return true, bad(name, "is of a list of keys; give it or key")
		}
	}
	if q.key == "" {
		return true, nil
	}
	return true, checkPlain(q.key)
}
