package server

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/bounded"
)

// Bounds of GET /v1/live.
const (
	livePeriod = time.Second
	liveLimits = 100 // limits in an event: those with the most decisions
	liveKeys   = 10  // keys in each list of an event
	maxViewers = 256 // a viewer keeps its connection and waits most of the time, so it does not count as a call in flight
)

// A broadcast sends an event per period to all viewers of GET /v1/live. One goroutine
// makes the events while there are viewers.
type broadcast struct {
	mu      sync.Mutex
	viewers map[chan []byte]bool
	running bool
	last    []byte // the previous event, for new viewers
}

// enter adds a viewer, and starts the broadcast if it is the first. It returns nil if
// there are too many viewers.
func (s *Server) enter() chan []byte {
	b := &s.broadcast
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.viewers) >= maxViewers {
		return nil
	}
	if b.viewers == nil {
		b.viewers = map[chan []byte]bool{}
	}
	events := make(chan []byte, 1)
	b.viewers[events] = true
	if b.last != nil {
		events <- b.last
	}
	if !b.running {
		b.running = true
		go s.tick()
	}
	return events
}

func (b *broadcast) leave(events chan []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.viewers, events)
}

// tick makes events while there are viewers.
func (s *Server) tick() {
	timer := time.NewTicker(livePeriod)
	defer timer.Stop()
	before := s.tally()
	for {
		select {
		case <-s.stopped.Done(): // the viewers leave too
			s.broadcast.mu.Lock()
			s.broadcast.running = false
			s.broadcast.mu.Unlock()
			return
		case <-timer.C:
		}
		now := s.tally()
		if !s.broadcast.send(s.event(before, now)) {
			return
		}
		before = now
	}
}

// send sends an event to all viewers. A viewer that has not read the previous one misses
// it. If there is no viewer, send ends the broadcast and returns false.
func (b *broadcast) send(event []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.viewers) == 0 {
		b.running, b.last = false, nil
		return false
	}
	b.last = event
	for v := range b.viewers {
		select {
		case v <- event:
		default:
		}
	}
	return true
}

// liveEvents answers GET /v1/live with server-sent events.
func (a *api) liveEvents(w http.ResponseWriter, r *http.Request) {
	if err := callerOf(r.Context()).mayName("", ""); err != nil {
		a.fail(w, err)
		return
	}
	events := a.enter()
	if events == nil {
		httplimit.Problem(w, http.StatusServiceUnavailable, "", "too many viewers")
		return
	}
	defer a.broadcast.leave(events)
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the request was read completely; not every writer has deadlines
	w.Header()["Content-Type"] = []string{"text/event-stream"}
	w.Header()["Cache-Control"] = []string{"no-store"}
	w.WriteHeader(http.StatusOK)
	if out.Flush() != nil || r.Method == http.MethodHead {
		return
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case <-a.stopped.Done():
			return
		case e := <-events:
			if c, d := a.admit(Read, r.Header["Authorization"]); d != nil || c.mayName("", "") != nil { // the token or its caller has been changed
				return
			}
			if _, err := w.Write(e); err != nil || out.Flush() != nil {
				return
			}
		}
	}
}

// A tally is a copy of the metrics at one time.
type tally struct {
	at          time.Time
	limits      map[string]counts
	took        durations
	storeErrors uint64
	shed        uint64
}

// counts are the decisions of a limit, as in the JSON of an event.
type counts struct {
	Limit    string `json:"limit"`
	Allowed  uint64 `json:"allowed"`
	Refused  uint64 `json:"refused"`
	Shadow   uint64 `json:"shadow"`
	Fallback uint64 `json:"fallback"`
}

func (c counts) all() uint64 { return c.Allowed + c.Refused + c.Shadow }

// add adds the decisions made between before and now.
func (c *counts) add(now, before counts) {
	c.Allowed += now.Allowed - before.Allowed
	c.Refused += now.Refused - before.Refused
	c.Shadow += now.Shadow - before.Shadow
	c.Fallback += now.Fallback - before.Fallback
}

func (s *Server) tally() *tally {
	t := &tally{at: time.Now(), limits: map[string]counts{}, storeErrors: s.metrics.storeErrors.Load(), shed: s.metrics.shed.Load()}
	for name, c := range s.metrics.every() {
		results, fallbacks := sumOf(c)
		t.limits[name] = counts{name, results[0], results[1], results[2], fallbacks[0] + fallbacks[1] + fallbacks[2]}
	}
	for v := range s.metrics.took {
		d := s.metrics.took[v].sum()
		for i, n := range d.buckets {
			t.took.buckets[i] += n
		}
	}
	return t
}

// An event is the JSON of an event.
type event struct {
	AtUS        int64              `json:"at_us"`
	IntervalUS  int64              `json:"interval_us"`
	Store       string             `json:"store"`
	All         counts             `json:"all"`
	Limits      []counts           `json:"limits"`
	Others      int                `json:"other_limits"`
	P50         *int64             `json:"p50_ns"`
	P99         *int64             `json:"p99_ns"`
	StoreErrors uint64             `json:"store_errors"`
	Shed        uint64             `json:"shed"`
	Gauges      map[string]float64 `json:"gauges"`
	Process     string             `json:"process"`
	WindowUS    int64              `json:"window_us"`
	topKeyLists
}

// event returns the event between two tallies, as text.
func (s *Server) event(before, now *tally) []byte {
	e := event{AtUS: now.at.UnixMicro(), IntervalUS: now.at.Sub(before.at).Microseconds(), Store: s.metrics.store,
		Limits: []counts{}, StoreErrors: now.storeErrors - before.storeErrors, Shed: now.shed - before.shed, Gauges: s.readGauges(), topKeyLists: topKeyLists{listOf(bounded.Top{}), listOf(bounded.Top{})}}
	if k := s.metrics.keys; k != nil {
		since, busiest, refused := k.lists(liveKeys, "")
		e.Process, e.WindowUS, e.topKeyLists = k.process, now.at.Sub(since).Microseconds(), topKeyLists{listOf(busiest), listOf(refused)}
	}
	for name, c := range now.limits {
		one := counts{Limit: name}
		one.add(c, before.limits[name])
		if one != (counts{Limit: name}) {
			e.Limits = append(e.Limits, one)
			e.All.add(one, counts{})
		}
	}
	slices.SortFunc(e.Limits, func(a, b counts) int {
		return cmp.Or(cmp.Compare(b.all(), a.all()), cmp.Compare(a.Limit, b.Limit))
	})
	e.Others = max(0, len(e.Limits)-liveLimits)
	e.Limits = e.Limits[:len(e.Limits)-e.Others]
	var took durations
	for i := range took.buckets {
		took.buckets[i] = now.took.buckets[i] - before.took.buckets[i]
	}
	e.P50, e.P99 = took.quantile(50), took.quantile(99)
	text, err := json.Marshal(e)
	if err != nil { // a gauge that is not a number
		e.Gauges = nil
		text, _ = json.Marshal(e)
	}
	return slices.Concat([]byte("data: "), text, []byte("\n\n"))
}

// quantile returns an upper bound, in ns, of the duration that percent of the durations
// do not exceed. It is at most twice that duration, and nil if there are none.
func (d *durations) quantile(percent uint64) *int64 {
	var all, sum uint64
	for _, n := range d.buckets {
		all += n
	}
	if all == 0 {
		return nil
	}
	bound := int64(1) << 8
	for _, n := range d.buckets {
		if sum += n; sum*100 >= all*percent {
			break
		}
		bound *= 2
	}
	return &bound
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
	return out
}
