package server

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

const (
	minutesKept  = 60
	minuteKeys   = 20 // number of the most refused keys that are kept
	minuteLimits = 200
)

// A minuteReport is what one process decided in a minute.
type minuteReport struct {
	process string
	minute  time.Time // beginning of the minute, on the clock of the process
	minuteCounts
	refused bounded.Top
}

// minuteCounts is what a stored minute has in addition to its keys.
type minuteCounts struct {
	Limits []LimitCounts       `json:"limits"` // limits with decisions, the busiest ones
	Took   [bucketCount]uint64 `json:"took"`
}

// since returns the decisions between two tallies.
func (t *tally) since(old *tally) (r minuteReport) {
	for name, c := range t.limits {
		o := old.limits[name]
		c.Allowed, c.Refused, c.Shadow, c.Closed, c.Fallback = c.Allowed-o.Allowed, c.Refused-o.Refused, c.Shadow-o.Shadow, c.Closed-o.Closed, c.Fallback-o.Fallback
		if c.Calls() > 0 {
			r.Limits = append(r.Limits, c)
		}
	}
	slices.SortFunc(r.Limits, func(a, b LimitCounts) int {
		return cmp.Or(cmp.Compare(b.Calls(), a.Calls()), strings.Compare(a.Limit, b.Limit))
	})
	r.Limits = r.Limits[:min(len(r.Limits), minuteLimits)]
	for i, n := range t.took {
		r.Took[i] = n - old.took[i]
	}
	return r
}

// hourCounts are the calls of an hour and how many of them were refused, by limit.
type hourCounts map[string][2]uint64

// A minuteLog keeps the last minutes: in the store for all processes, or in this process.
type minuteLog struct {
	server *Server
	to     store.Auditor // nil: the store keeps no minutes
	lost   atomic.Uint64 // number of minutes that could not be stored
	minute time.Time     // the present minute
	before *tally        // the counts at the beginning of minute

	mu   sync.Mutex
	last []minuteReport // the last minutes, the oldest first
}

// store stores a minute, if the store keeps minutes.
func (m *minuteLog) store(ctx context.Context, r *minuteReport) {
	if m.to == nil {
		return
	}
	m.server.metrics.keys.record(ctx, m.to, "minute", bounded.Hour{Hour: r.minute, Busiest: bounded.Top{Keys: []bounded.Count{}}, Refused: r.refused, Counts: asJSON(r.minuteCounts)},
		&m.lost, "what was decided in the minute "+r.minute.Format(time.RFC3339))
}

// reports returns the minutes of all processes from the store, or else those of this process.
func (m *minuteLog) reports(ctx context.Context, since time.Time) (list []minuteReport, err error) {
	if m.to == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		return slices.Clone(m.last), nil
	}
	err = eachHour(ctx, m.to, since.Add(-5*time.Minute), func(process string, h *bounded.Hour) error { // clocks of processes may differ
		r := minuteReport{process: process, minute: h.Hour, refused: h.Refused}
		err := json.Unmarshal(h.Counts, &r.minuteCounts)
		list = append(list, r)
		return err
	})
	return list, err
}

// turn ends the present minute if it is over, and returns it. The slices of keys turn after it.
func (m *minuteLog) turn(now time.Time) *minuteReport {
	next := now.Truncate(time.Minute)
	if next.Equal(m.minute) {
		return nil
	}
	after := m.server.tally()
	r := after.since(m.before)
	_, _, r.refused = m.server.metrics.keys.lists(minuteKeys, nil)
	r.process, r.minute = m.server.metrics.keys.process, m.minute.UTC()
	m.minute, m.before = next, after
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = append(m.last[max(0, len(m.last)-minutesKept+1):], r)
	return &r
}

// topMinutes is the answer of GET /v1/top?minutes=.
type topMinutes struct {
	From      time.Time           `json:"from"` // beginning of the first minute
	Minutes   int                 `json:"minutes"`
	Processes []minuteProcess     `json:"processes"`
	Shared    bool                `json:"shared"`
	Took      [bucketCount]uint64 `json:"took"`
	Limits    []limitMinutes      `json:"limits"`
	Refused   KeyList             `json:"refused"`
	More      bool                `json:"more_customers,omitempty"` // whether limits may have refused other customers too
	Shed      uint64              `json:"shed"`
	Gauges    map[string]float64  `json:"gauges"`
}

// A minuteProcess is a service, with the first and the last minute that it has reported.
type minuteProcess struct {
	Process string    `json:"process"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// limitMinutes are the decisions of a limit in each minute, without lists of only zeros.
type limitMinutes struct {
	Limit    string   `json:"limit"`
	Allowed  []uint64 `json:"allowed,omitempty"`
	Refused  []uint64 `json:"refused,omitempty"`
	Shadow   []uint64 `json:"shadow,omitempty"`
	Closed   []uint64 `json:"closed,omitempty"`
	Fallback []uint64 `json:"fallback,omitempty"`

	Customers int `json:"customers,omitempty"` // whose calls were refused, or in shadow would be
}

// minutesOf adds up reports for the minutes that q asks for, which end before now.
func minutesOf(reports []minuteReport, q *topQuery, now time.Time) *topMinutes {
	n := q.minutes
	out := &topMinutes{From: now.UTC().Truncate(time.Minute).Add(-time.Duration(n) * time.Minute), Minutes: n, Processes: []minuteProcess{}, Limits: []limitMinutes{}}
	limits, processes, refused := map[string]*limitMinutes{}, map[string]*minuteProcess{}, []bounded.Top{}
	for i := range reports {
		r := &reports[i]
		at := int(r.minute.Sub(out.From) / time.Minute)
		if at < 0 || at >= n || r.minute.Before(out.From) {
			continue
		}
		p := cmp.Or(processes[r.process], &minuteProcess{r.process, r.minute, r.minute})
		processes[r.process] = p
		known := []time.Time{p.First, p.Last, r.minute}
		p.First, p.Last = slices.MinFunc(known, time.Time.Compare), slices.MaxFunc(known, time.Time.Compare)
		for j := range out.Took {
			out.Took[j] += r.Took[j]
		}
		refused = append(refused, only(r.refused, q.has))
		for _, c := range r.Limits {
			if !q.has(c.Limit) {
				continue
			}
			l := cmp.Or(limits[c.Limit], &limitMinutes{Limit: c.Limit})
			limits[c.Limit] = l
			all := [...]uint64{c.Allowed, c.Refused, c.Shadow, c.Closed, c.Fallback}
			for i, to := range [...]*[]uint64{&l.Allowed, &l.Refused, &l.Shadow, &l.Closed, &l.Fallback} {
				if all[i] > 0 && *to == nil {
					*to = make([]uint64, n)
				}
				if all[i] > 0 {
					(*to)[at] += all[i]
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(processes)) {
		out.Processes = append(out.Processes, *processes[name])
	}
	every := bounded.Sum(refused, math.MaxInt)
	for _, k := range every.Keys {
		if l := limits[k.Limit]; l != nil && k.Key != "" {
			l.Customers++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		out.Limits = append(out.Limits, *limits[name])
	}
	out.Refused, out.More = listOf(bounded.Sum([]bounded.Top{every}, minuteKeys)), every.Unlisted > 0
	return out
}

func (a *api) topMinutes(ctx context.Context, q *topQuery) (*topMinutes, error) {
	now, k := time.Now(), a.metrics.keys
	var reports []minuteReport
	if k != nil {
		var err error
		if reports, err = k.minutes.reports(ctx, now.Add(-time.Duration(q.minutes)*time.Minute)); err != nil {
			return nil, err
		}
	}
	out := minutesOf(reports, q, now)
	out.Shared, out.Shed, out.Gauges = k != nil && k.minutes.to != nil, a.metrics.shed.Load(), a.readGauges()
	return out, nil
}
