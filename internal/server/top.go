package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

const (
	topKeys = 20 // default number of keys
	maxTop  = 100
)

// topQuery is the query of GET /v1/top.
type topQuery struct {
	n     int
	limit string
	hour  time.Time // zero: the last minute
}

// top answers GET /v1/top with the decisions since the start, by limit, and the busiest
// and most refused keys of the last minute. With an hour it answers with that hour's
// keys, from the store.
func (a *api) top(w http.ResponseWriter, r *http.Request) {
	q, err := parseTop(r.URL.RawQuery)
	if err == nil && q.limit != "" && a.limiter.Limit(q.limit) == nil && q.hour.IsZero() { // for an hour, the limit may have been dropped since
		err = fmt.Errorf("%w %q", dipwell.ErrUnknownLimit, q.limit)
	}
	var b []byte
	switch k := a.metrics.keys; {
	case err != nil:
	case !q.hour.IsZero():
		b, err = a.topOfHour(r.Context(), &q)
	case k == nil:
		err = fmt.Errorf("this service does not count keys: %w", store.ErrNotSupported)
	default:
		b = a.topNow(k, &q)
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, append(b, "}\n"...))
}

func (a *api) topNow(k *keyCounts, q *topQuery) []byte {
	now := time.Now()
	since, busiest, refused := k.lists(q.n, q.limit)
	b := strconv.AppendInt([]byte(`{"at_us":`), now.UnixMicro(), 10)
	b = texts.AppendJSON(append(b, `,"process":`...), k.process)
	b = strconv.AppendInt(append(b, `,"window_us":`...), now.Sub(since).Microseconds(), 10)
	b = strconv.AppendInt(append(b, `,"sketch_max_bytes":`...), int64(k.all.MaxBytes()+k.refused.MaxBytes()), 10)
	b = strconv.AppendUint(append(b, `,"store_errors":`...), a.metrics.storeErrors.Load(), 10)
	b = strconv.AppendUint(append(b, `,"shed":`...), a.metrics.shed.Load(), 10)
	b = a.metrics.appendLimits(append(b, `,"limits":[`...), q.limit)
	return appendLists(append(b, ']'), busiest, refused)
}

func appendLists(b []byte, busiest, refused bounded.Top) []byte {
	return appendTop(append(appendTop(append(b, `,"busiest":`...), busiest), `,"refused":`...), refused)
}

// Bounds of reading hours.
const (
	hoursPage = 200                                      // entries that are read at a time
	hoursBack = int64(25 * time.Hour / time.Microsecond) // entries older than the hour by more than this cannot belong to it, even if clocks differ
)

// topOfHour returns the lists of an hour, added up over all processes.
func (a *api) topOfHour(ctx context.Context, q *topQuery) ([]byte, error) {
	if a.can.TopKeys == nil {
		return nil, fmt.Errorf("top keys by the hour: %w", store.ErrNotSupported)
	}
	var processes []string
	var busiest, refused []bounded.Top
	for before, more := "", true; more; {
		page, err := a.can.TopKeys.Audit(ctx, before, hoursPage)
		if err != nil {
			return nil, err
		}
		for i := range page {
			var h bounded.Hour
			if err = json.Unmarshal([]byte(page[i].What), &h); err != nil {
				return nil, fmt.Errorf("%w: entry %s of the top keys: %w", store.ErrStore, page[i].ID, err)
			}
			if h.Hour.Equal(q.hour) {
				processes, busiest, refused = append(processes, page[i].Who), append(busiest, only(h.Busiest, q.limit)), append(refused, only(h.Refused, q.limit))
			}
		}
		if more = len(page) == hoursPage; more {
			last := &page[len(page)-1]
			before, more = last.ID, last.At > q.hour.UnixMicro()-hoursBack
		}
	}
	slices.Sort(processes)
	b := append(q.hour.AppendFormat([]byte(`{"hour":"`), time.RFC3339), `","processes":[`...)
	for i, name := range slices.Compact(processes) {
		if i > 0 {
			b = append(b, ',')
		}
		b = texts.AppendJSON(b, name)
	}
	return appendLists(append(b, ']'), bounded.Sum(busiest, q.n), bounded.Sum(refused, q.n)), nil
}

// only returns the list with the keys of one limit, or of all if limit is "".
func only(t bounded.Top, limit string) bounded.Top {
	t.Keys = slices.DeleteFunc(t.Keys, func(k bounded.Count) bool { return limit != "" && k.Limit != limit })
	return t
}

// appendLimits appends the decisions since the start, by limit.
func (m *metrics) appendLimits(b []byte, only string) []byte {
	limits := m.every()
	var names []string
	for name := range limits {
		if only == "" || only == name {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		results, fallbacks := sumOf(limits[name])
		b = texts.AppendJSON(append(b, `{"limit":`...), name)
		for j, what := range resultNames {
			b = strconv.AppendUint(append(append(append(b, `,"`...), what...), `":`...), results[j], 10)
		}
		b = append(b, `,"fallback":`...)
		b = strconv.AppendUint(b, fallbacks[0]+fallbacks[1]+fallbacks[2], 10)
		b = append(b, '}')
	}
	return b
}

func appendTop(b []byte, t bounded.Top) []byte {
	b = strconv.AppendUint(append(b, `{"counted":`...), t.Events, 10)
	b = strconv.AppendUint(append(b, `,"unlisted_at_most":`...), t.Unlisted, 10)
	b = append(b, `,"keys":[`...)
	for i, k := range t.Keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = texts.AppendJSON(append(b, `{"limit":`...), k.Limit)
		b = appendOrNull(append(b, `,"key":`...), k.Key == "", k.Key)
		b = strconv.AppendUint(append(b, `,"count":`...), k.Count, 10)
		b = append(strconv.AppendUint(append(b, `,"error":`...), k.Error, 10), '}')
	}
	return append(b, "]}"...)
}

func parseTop(query string) (q topQuery, err error) {
	q.n = topKeys
	err = eachOnce(query, func(name, value string) (err error) {
		switch name {
		case "n":
			q.n, err = pageSize(value, maxTop)
		case "limit":
			if q.limit = value; value == "" {
				return bad(name, "is empty")
			}
		case "hour":
			at, wrong := time.Parse(time.RFC3339, value)
			if wrong != nil || at.Year() < 1971 {
				return bad(name, "is not a time such as 2030-01-31T18:00:00Z")
			}
			q.hour = at.UTC().Truncate(time.Hour)
		default:
			return bad(name, "unknown parameter; known are n, limit, hour")
		}
		return err
	})
	return q, err
}
