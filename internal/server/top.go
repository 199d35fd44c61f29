package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/jsontext"
	"github.com/dipwell/dipwell/internal/sketch"
)

// Keys are counted only while GET /v1/top is called.
const (
	topSlice  = 10 * time.Second // length of a slice of the window
	topSlices = 6
	topIdle   = 30 * time.Second // counting ends so long after the last call
	topKeys   = 20               // default number of keys
	maxTop    = 100
)

// watch counts keys for GET /v1/top.
type watch struct {
	all, refused *sketch.Window

	mu    sync.Mutex
	until time.Time   // when counting ends unless there is another call
	turns []time.Time // start times of the slices
}

// add counts a decision. It is on the hot path.
func (w *watch) add(d *dipwell.Decision) {
	limit := d.Limit
	if def := d.Definition; def != nil {
		limit = def.Name // d.Limit may refer to a larger text of the caller
	}
	w.all.Add(limit, d.Key)
	if !d.Allowed || d.Shadow {
		w.refused.Add(limit, d.Key)
	}
}

// startWatch starts counting, or lets it continue for topIdle.
func (m *metrics) startWatch() *watch {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.watch.Load()
	if w == nil {
		size := sketch.Config{Slices: topSlices}
		w = &watch{all: sketch.New(size), refused: sketch.New(size), turns: []time.Time{time.Now()}}
		go m.turn(w)
		m.watch.Store(w)
	}
	w.mu.Lock()
	w.until = time.Now().Add(topIdle)
	w.mu.Unlock()
	return w
}

// turn starts a slice every topSlice, and ends counting after topIdle.
func (m *metrics) turn(w *watch) {
	slice := time.NewTicker(topSlice)
	defer slice.Stop()
	end := time.NewTimer(topIdle)
	defer end.Stop()
	for {
		select {
		case now := <-slice.C:
			w.all.Turn()
			w.refused.Turn()
			w.mu.Lock()
			w.turns = append(w.turns[max(0, len(w.turns)-topSlices+1):], now)
			w.mu.Unlock()
		case <-end.C:
			if left := m.unwatch(w); left > 0 {
				end.Reset(left)
				continue
			}
			return
		}
	}
}

// unwatch ends counting at w.until. Before that it returns the time left.
func (m *metrics) unwatch(w *watch) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	left := time.Until(w.until)
	if left <= 0 {
		m.watch.Store(nil)
	}
	return left
}

// since returns the start of the window.
func (w *watch) since() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.turns[0]
}

// top answers GET /v1/top: the decisions since the start, by limit, and the busiest
// and most refused keys of the last minute.
func (a *api) top(w http.ResponseWriter, r *http.Request) {
	n, limit, err := parseTop(r.URL.RawQuery)
	if err == nil && limit != "" && a.limiter.Limit(limit) == nil {
		err = fmt.Errorf("%w %q", dipwell.ErrUnknownLimit, limit)
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	seen := a.metrics.startWatch()
	now := time.Now()
	b := strconv.AppendInt([]byte(`{"at_us":`), now.UnixMicro(), 10)
	b = strconv.AppendInt(append(b, `,"window_us":`...), now.Sub(seen.since()).Microseconds(), 10)
	b = strconv.AppendInt(append(b, `,"sketch_max_bytes":`...), int64(seen.all.MaxBytes()+seen.refused.MaxBytes()), 10)
	b = strconv.AppendUint(append(b, `,"store_errors":`...), a.metrics.storeErrors.Load(), 10)
	b = strconv.AppendUint(append(b, `,"shed":`...), a.metrics.shed.Load(), 10)
	b = a.metrics.appendLimits(append(b, `,"limits":[`...), limit)
	b = appendTop(append(b, `],"busiest":`...), seen.all.Top(n, limit))
	b = appendTop(append(b, `,"refused":`...), seen.refused.Top(n, limit))
	writeJSON(w, http.StatusOK, append(b, "}\n"...))
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
		b = jsontext.AppendString(append(b, `{"limit":`...), name)
		for j, what := range resultNames {
			b = strconv.AppendUint(append(append(append(b, `,"`...), what...), `":`...), results[j], 10)
		}
		b = append(b, `,"fallback":`...)
		b = strconv.AppendUint(b, fallbacks[0]+fallbacks[1]+fallbacks[2], 10)
		b = append(b, '}')
	}
	return b
}

func appendTop(b []byte, t sketch.Top) []byte {
	b = strconv.AppendUint(append(b, `{"counted":`...), t.Events, 10)
	b = strconv.AppendUint(append(b, `,"unlisted_at_most":`...), t.Unlisted, 10)
	b = append(b, `,"keys":[`...)
	for i, k := range t.Keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsontext.AppendString(append(b, `{"limit":`...), k.Limit)
		if b = append(b, `,"key":`...); k.Key == "" {
			b = append(b, "null"...)
		} else {
			b = jsontext.AppendString(b, k.Key)
		}
		b = strconv.AppendUint(append(b, `,"count":`...), k.Count, 10)
		b = append(strconv.AppendUint(append(b, `,"error":`...), k.Error, 10), '}')
	}
	return append(b, "]}"...)
}

func parseTop(query string) (n int, limit string, err error) {
	n = topKeys
	err = eachOnce(query, func(name, value string) (err error) {
		switch name {
		case "n":
			n, err = pageSize(value, maxTop)
		case "limit":
			if limit = value; limit == "" {
				return bad(name, "is empty")
			}
		default:
			return bad(name, "unknown parameter; known are n, limit")
		}
		return err
	})
	return n, limit, err
}
