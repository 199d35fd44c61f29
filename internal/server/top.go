package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

const (
	topKeys = 20 // default number of keys
	maxTop  = 100
)

// topQuery is the query of GET /v1/top.
type topQuery struct {
	n       int
	limit   string
	hour    time.Time // hour that is asked for; zero: the last minute
	minutes int       // 0: none

	may       string // limits that the caller may name, each between newlines; "": all
	overrides string // of GET /v1/overrides: the number of changes so far
}

// has reports whether the answer includes a limit.
func (q *topQuery) has(limit string) bool {
	return (q.limit == "" || limit == q.limit) && (q.may == "" || strings.Contains(q.may, "\n"+limit+"\n"))
}

// mayList returns the limits that the caller of a context may name, for topQuery.
func mayList(ctx context.Context) string {
	if c := callerOf(ctx); c != nil && c.Limits != nil {
		return "\n" + strings.Join(c.Limits, "\n") + "\n"
	}
	return ""
}

// top answers GET /v1/top with the decisions since the start, by limit, and the busiest
// and most refused keys of the last minute. If the query has an hour, the answer has that
// hour's keys from the store; with minutes, the decisions of each of the last minutes.
func (a *api) top(w http.ResponseWriter, r *http.Request, given *query) error {
	q := topQuery{n: cmp.Or(given.n, topKeys), limit: given.limit, hour: given.hour, minutes: given.minutes, may: mayList(r.Context())}
	if q.minutes > 0 && !q.hour.IsZero() {
		return bad("minutes", "is given together with hour; give one of them")
	}
	var err error
	if q.limit != "" {
		err = callerOf(r.Context()).mayName("limit", q.limit)
	}
	if err == nil && q.limit != "" && a.limiter.Limit(q.limit) == nil && q.hour.IsZero() { // not checked for an hour, because the limit may have been dropped since
		err = unknownLimit(q.limit)
	}
	if err != nil {
		return err
	}
	answer, err := a.tops.get(r.Context(), q, func() (any, error) {
		switch {
		case q.minutes > 0:
			return a.topMinutes(r.Context(), &q)
		case !q.hour.IsZero():
			return a.topOfHour(r.Context(), &q)
		}
		return a.topNow(&q), nil
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, answer)
}

// Bounds of the answers that callers share.
const (
	topShared    = time.Second
	minuteShared = 5 * time.Second  // of minutes that have ended
	hourShared   = 10 * time.Minute // of an hour that all services have stored
	topOften     = 200              // an answer is shared for so many times as long as it took to make,
	topLongest   = 30 * time.Second // but not longer
	topQueries   = 64
)

// topAnswers are shared by all who ask the same within some time, so that many viewers cost
// little more than one: listing keys locks out decisions, and hours are read from the store.
type topAnswers struct {
	mu sync.Mutex // held from a Get to the Put after it
	of bounded.Map[topQuery, *sharedAnswer]

	changes atomic.Uint64 // number of overrides that were set or ended by this process
}

type sharedAnswer struct {
	turn  background.Gate // entered by the one caller who may use the other fields
	until time.Time
	json  []byte
}

func (t *topAnswers) get(ctx context.Context, q topQuery, compute func() (any, error)) ([]byte, error) {
	t.mu.Lock()
	t.of.Most = topQueries / 2
	one, known := t.of.Get(q)
	if !known {
		one = &sharedAnswer{turn: make(background.Gate, 1)}
	}
	t.of.Put(q, one) // now it is forgotten last
	t.mu.Unlock()
	if err := one.turn.Enter(ctx); err != nil {
		return nil, err
	}
	defer one.turn.Leave()
	began := time.Now()
	if began.Before(one.until) {
		return one.json, nil
	}
	answer, err := compute()
	if err == nil {
		least := topShared
		if q.minutes > 0 {
			least = minuteShared
		} else if !q.hour.IsZero() && began.Sub(q.hour) > 2*time.Hour {
			least = hourShared
		}
		one.until, one.json = began.Add(max(least, min(topOften*time.Since(began), topLongest))), append(asJSON(answer), '\n')
	}
	return one.json, err
}

// TopNow is the answer to a query without an hour. Its numbers are since the start, so
// subtract two answers to get those of a period.
type TopNow struct {
	At          int64               `json:"at_us"`
	Store       string              `json:"store"`
	Process     string              `json:"process"`
	Window      int64               `json:"window_us"`
	StoreErrors uint64              `json:"store_errors"`
	Shed        uint64              `json:"shed"`
	Took        [bucketCount]uint64 `json:"took"`
	Limits      []LimitCounts       `json:"limits"`
	Gauges      map[string]float64  `json:"gauges"`
	TopLists
}

type TopLists struct {
	Busiest KeyList `json:"busiest"`
	Refused KeyList `json:"refused"`
}

// A KeyList is a bounded.Top in which the key of a shared bucket is null.
type KeyList struct {
	Counted  uint64     `json:"counted"`
	Unlisted uint64     `json:"unlisted_at_most"`
	Keys     []KeyCount `json:"keys"`
}

// KeyCount is how often a key was counted: too often by at most Error.
type KeyCount struct {
	Limit string   `json:"limit"`
	Key   Nullable `json:"key"`
	Count uint64   `json:"count"`
	Error uint64   `json:"error"`
}

func listOf(t bounded.Top) KeyList {
	l := KeyList{t.Events, t.Unlisted, []KeyCount{}}
	for _, k := range t.Keys {
		l.Keys = append(l.Keys, KeyCount{k.Limit, Nullable(k.Key), k.Count, k.Error})
	}
	return l
}

func (a *api) topNow(q *topQuery) TopNow {
	t := a.tally()
	limits := slices.DeleteFunc(slices.Collect(maps.Values(t.limits)), func(c LimitCounts) bool { return !q.has(c.Limit) })
	slices.SortFunc(limits, func(a, b LimitCounts) int { return strings.Compare(a.Limit, b.Limit) })
	out := TopNow{At: t.at.UnixMicro(), Store: a.metrics.store, StoreErrors: t.storeErrors, Shed: t.shed, Took: t.took,
		Limits: append([]LimitCounts{}, limits...), Gauges: a.readGauges(), TopLists: TopLists{listOf(bounded.Top{}), listOf(bounded.Top{})}}
	if k := a.metrics.keys; k != nil {
		since, busiest, refused := k.lists(q.n, q.has)
		out.Process, out.Window = k.process, t.at.Sub(since).Microseconds()
		out.TopLists = TopLists{listOf(busiest), listOf(refused)}
	}
	return out
}

// A tally is a copy of the metrics at one time.
type tally struct {
	at          time.Time
	limits      map[string]LimitCounts
	took        [bucketCount]uint64
	storeErrors uint64
	shed        uint64
}

// LimitCounts are the decisions of a limit, as in the JSON of GET /v1/top. Each decision is
// one of the first four; Fallback counts those made without the store.
type LimitCounts struct {
	Limit    string `json:"limit"`
	Allowed  uint64 `json:"allowed"`
	Refused  uint64 `json:"refused"`
	Shadow   uint64 `json:"shadow"`
	Closed   uint64 `json:"closed"` // decisions refused because the store did not answer
	Fallback uint64 `json:"fallback"`
}

func (c *LimitCounts) Calls() uint64 { return c.Allowed + c.Refused + c.Shadow + c.Closed }

func (s *Server) tally() *tally {
	t := &tally{at: time.Now(), limits: map[string]LimitCounts{}, took: s.metrics.durations(), storeErrors: s.metrics.storeErrors.Load(), shed: s.metrics.shed.Load()}
	for name, c := range s.metrics.every {
		n := sumOf(c)
		t.limits[name] = LimitCounts{name, n[0] + n[2+unanswered], n[1], n[2], n[1+unanswered], n[fallbacks] + n[fallbacks+1] + n[fallbacks+2]}
	}
	return t
}

// readGauges returns the gauges of the service and of its store, by name.
func (s *Server) readGauges() map[string]float64 {
	out := map[string]float64{}
	if s.can.Metrics != nil {
		for _, m := range s.can.Metrics() {
			if !m.Counter {
				out[m.Name] = m.Value
			}
		}
	}
	for name, f := range s.gauges {
		out[name] = f()
	}
	maps.DeleteFunc(out, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }) // JSON does not have these numbers
	return out
}

const (
	hoursPage = 200            // entries that are read at a time
	hoursBack = 25 * time.Hour // entries older than the hour by more than this cannot belong to it, even if clocks differ
)

// eachHour calls f for the hours, or minutes, added to a log since a time, with their process.
func eachHour(ctx context.Context, log store.Auditor, since time.Time, f func(process string, h *bounded.Hour) error) error {
	for e, err := range entriesOf(ctx, log, "", hoursPage) {
		if err != nil || e.At < since.UnixMicro() {
			return err
		}
		var h bounded.Hour
		if err = json.Unmarshal([]byte(e.What), &h); err == nil {
			err = f(e.Who, &h)
		}
		if err != nil {
			return fmt.Errorf("%w: entry %s of what was counted: %w", store.ErrStore, e.ID, err)
		}
	}
	return nil
}

// TopHour is the answer to a query with an hour.
type TopHour struct {
	Hour      time.Time  `json:"hour"`
	Processes []string   `json:"processes"`
	Counts    hourCounts `json:"counts"`
	TopLists
}

// topOfHour returns the lists of an hour, added up over all processes.
func (a *api) topOfHour(ctx context.Context, q *topQuery) (*TopHour, error) {
	if a.can.TopKeys == nil {
		return nil, fmt.Errorf("top keys by the hour: %w", store.ErrNotSupported)
	}
	processes, counts := []string{}, hourCounts{}
	var busiest, refused []bounded.Top
	err := eachHour(ctx, a.can.TopKeys, q.hour.Add(-hoursBack), func(process string, h *bounded.Hour) error {
		if !h.Hour.Equal(q.hour) {
			return nil
		}
		processes, busiest, refused = append(processes, process), append(busiest, only(h.Busiest, q.has)), append(refused, only(h.Refused, q.has))
		var one hourCounts
		err := json.Unmarshal([]byte(cmp.Or(string(h.Counts), "{}")), &one)
		for name, n := range one {
			if q.has(name) {
				counts[name] = [2]uint64{counts[name][0] + n[0], counts[name][1] + n[1]}
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(processes)
	return &TopHour{q.hour, slices.Compact(processes), counts, TopLists{listOf(bounded.Sum(busiest, q.n)), listOf(bounded.Sum(refused, q.n))}}, nil
}

// only returns the part of a list with the keys of limits that an answer has.
func only(t bounded.Top, has func(limit string) bool) bounded.Top {
	t.Keys = slices.DeleteFunc(slices.Clone(t.Keys), func(k bounded.Count) bool { return !has(k.Limit) })
	return t
}
