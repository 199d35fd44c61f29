package filestore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// A writer writes the dirty keys to the file, one cycle after the other, on its own
// goroutine.
type writer struct {
	store        *Store
	mu           sync.Mutex                     // held during a cycle, a sweep of some rows, and a drop
	keys         []memory.Touched               // keys of the cycle being written, and of failed ones
	reservations map[store.Reservation]struct{} // ids of reservations that changed
	holds        map[string]struct{}            // ids of holds that changed
	buckets      []bucket
	records      map[rowKey]map[store.RecordID]*store.Record // records that changed, by row; nil for one that ended
	sweepPos     sweepPos
	writeTime    atomic.Int64 // how long the last cycle took, in ns
	stopped      chan struct{}
	done         sync.WaitGroup

	writing  atomic.Int64 // number of keys in the cycle being written
	groups   atomic.Int64
	rows     atomic.Int64
	failures atomic.Int64
	late     atomic.Int64
	window   atomic.Int64 // ns
	widest   atomic.Int64 // ns
	lastUS   atomic.Int64 // the wall clock of the last cycle, in µs
}

// A bucket is a row of the file. A bucket is deleted if none of its units are used.
type bucket struct {
	limit    int64 // id
	key      string
	state    store.State
	gaveBack bool // see memory.Touched
}

const (
	retryFirst = 100 * time.Millisecond // delay after a failed cycle, doubled each time
	retryMax   = 2 * time.Second
	lateSlack  = 5 * time.Millisecond // a cycle later than this counts as late, because timers are not exact
)

func (w *writer) start(s *Store) {
	w.store, w.stopped = s, make(chan struct{})
	w.reservations, w.holds, w.records = map[store.Reservation]struct{}{}, map[string]struct{}{}, map[rowKey]map[store.RecordID]*store.Record{}
	s.dirty.onMax = func() { s.state.Or(stateBehind) }
	s.mem.Watch()
	w.done.Go(w.run)
}

// stop stops the goroutine and writes the remaining keys.
func (w *writer) stop() error {
	close(w.stopped)
	w.done.Wait()
	return w.flush()
}

func (w *writer) run() {
	retry := time.Duration(0)
	timer := time.NewTimer(time.Hour)
	for {
		wake := w.store.dirty.wake
		if retry > 0 {
			wake = nil // new keys wait for the retry as well
			timer.Reset(retry)
		} else {
			timer.Reset(sweepEvery)
		}
		select {
		case <-w.stopped:
			timer.Stop()
			return
		case <-wake:
			if !w.waitForMore(timer) {
				return
			}
		case <-timer.C:
		}
		if err := w.flush(); err != nil {
			retry = min(max(2*retry, retryFirst), retryMax)
			continue
		}
		retry = 0
		w.sweepSome()
	}
}

// waitForMore waits for more keys, as long as the first key of the cycle may be in memory
// only, less the time that writing takes, or until there are so many keys that calls could
// soon fail. waitForMore returns false when the writer is stopped.
func (w *writer) waitForMore(timer *time.Timer) bool {
	s := w.store
	if s.every == 0 {
		return true
	}
	since := time.Since(start) - time.Duration(s.dirty.current.Load().began.Load())
	wait := max(s.every-2*time.Duration(w.writeTime.Load()), s.every/2) - since
	if wait <= 0 {
		return true
	}
	timer.Reset(wait)
	select {
	case <-timer.C:
		return true
	case <-s.dirty.many:
		return true
	case <-w.stopped:
		timer.Stop()
		return false
	}
}

// flush writes all dirty keys: one cycle.
func (w *writer) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.store
	before := time.Now()
	s.multi.Lock()
	c, keys := s.dirty.swap(w.keys)
	s.multiKeys = s.multiKeys[:0]
	s.multi.Unlock()
	w.writing.Store(int64(len(keys)))
	w.keys = keys
	group, err := w.collect(), error(nil)
	if group.any() {
		err = s.disk.write(&group, s.limits.lookupID)
		w.writeTime.Store(int64(time.Since(before)))
	}
	if err != nil {
		err = w.failed(err)
	} else {
		w.succeeded(c)
	}
	clear(w.buckets)
	w.buckets = w.buckets[:0]
	c.err = err
	close(c.done)
	return err
}

// A group is the content of one transaction.
type group struct {
	buckets      []bucket
	records      map[rowKey]map[store.RecordID]*store.Record
	reservations map[store.Reservation]store.Pending
	holds        map[string]store.Hold // a hold without parts is deleted
	now          int64                 // the store's time, no earlier than the times of its rows
}

func (g *group) any() bool {
	return len(g.buckets)+len(g.records)+len(g.reservations)+len(g.holds) > 0
}

// collect reads the rows of the dirty keys from memory. A call that changes several keys must
// be in the group completely or not at all: so the keys of such calls that came meanwhile are
// read again, under a lock that keeps such calls out.
func (w *writer) collect() (g group) {
	s := w.store
	now := s.now()
	w.keys = append(w.keys, s.mem.Swept()...)
	for i := range w.keys {
		w.readBucket(&w.keys[i], now)
	}
	s.multi.Lock()
	defer s.multi.Unlock()
	for i := range s.multiKeys {
		w.readBucket(&s.multiKeys[i], now)
	}
	g.reservations = changed(w.reservations, s.mem.ChangedReservations(), s.mem.Reservation)
	g.holds = changed(w.holds, s.mem.ChangedHolds(), s.mem.Hold)
	g.buckets, g.records, g.now = w.buckets, w.records, s.now()
	return g
}

// changed adds ids to those that have changed, and returns the present values of all of
// these.
func changed[K comparable, V any](all map[K]struct{}, ids []K, get func(K) V) map[K]V {
	for _, id := range ids {
		all[id] = struct{}{}
	}
	values := make(map[K]V, len(all))
	for id := range all {
		values[id] = get(id)
	}
	return values
}

// readBucket appends the row of a key to the group.
func (w *writer) readBucket(key *memory.Touched, now int64) {
	s := w.store
	id, ok := s.limits.lookupID(key.Def.Name)
	if !ok {
		return // its limit was dropped, with its rows
	}
	c := s.mem.Changes(key.Def, key.Key)
	w.collectRecords(rowKey{id, key.Key}, &c)
	d, gaveBack := s.mem.Registry().Lookup(key.Def.Name), key.GaveBack
	if c.Found && (d == nil || d.Full(c.Row, now)) {
		c.Found = false
	}
	// A row that became full as time passed is also full in the file, unless tokens were
	// given back, or the row in the file is under another plan, which may be slower.
	if !c.Found {
		c.Row = store.State{Override: c.Row.Override}
		gaveBack = gaveBack || d != nil && d.Plans != (store.Plans{})
	}
	if c.Found || gaveBack {
		w.buckets = append(w.buckets, bucket{id, key.Key, c.Row, gaveBack})
	}
}

func (s *Store) now() int64 {
	now, _ := s.mem.Now(context.Background()) // never fails
	return now
}

// succeeded counts a cycle that is on the disk, and lets calls continue.
func (w *writer) succeeded(c *cycle) {
	s := w.store
	clear(w.keys)
	w.keys = w.keys[:0]
	clear(w.reservations)
	clear(w.holds)
	clear(w.records)
	w.writing.Store(0)
	if len(w.buckets) > 0 {
		w.groups.Add(1)
	}
	w.rows.Add(int64(len(w.buckets)))
	w.lastUS.Store(time.Now().UnixMicro())
	if began := c.began.Load(); began != 0 {
		window := time.Since(start) - time.Duration(began)
		w.window.Store(int64(window))
		w.widest.Store(max(w.widest.Load(), int64(window)))
		if s.every > 0 && window > s.every+lateSlack {
			w.late.Add(1)
		}
	}
	s.state.And(^uint32(stateBehind | stateFailed))
}

// failed keeps the keys of a failed cycle for a retry, and makes calls fail.
func (w *writer) failed(err error) error {
	s := w.store
	w.failures.Add(1)
	err = s.storeError(err)
	s.failure.Store(&err)
	if old := s.state.Or(stateFailed); old&stateFailed == 0 {
		s.report(err)
	}
	// The same key may have been added by several failed cycles.
	seen := make(map[memory.Touched]struct{}, len(w.keys))
	w.keys = slices.DeleteFunc(w.keys, func(m memory.Touched) bool {
		_, repeated := seen[m]
		seen[m] = struct{}{}
		return repeated
	})
	return err
}

// metrics returns the metrics of the table in memory and of the writer, counted since Open.
func (s *Store) metrics() []store.Metric {
	w := &s.writer
	seconds := func(ns int64) float64 { return time.Duration(ns).Seconds() }
	return append(s.mem.Abilities().Metrics(), []store.Metric{
		{Name: "dipwell_file_dirty_keys", Help: "Keys that changed and are not on the disk.", Value: float64(s.dirty.current.Load().keys.Load() + w.writing.Load())},
		{Name: "dipwell_file_window_seconds", Help: "How long the oldest decision of the last group was in memory only.", Value: seconds(w.window.Load())},
		{Name: "dipwell_file_widest_window_seconds", Help: "The longest time that a decision was in memory only.", Value: seconds(w.widest.Load())},
		{Name: "dipwell_file_last_write_timestamp_seconds", Help: "When the last group was written; 0 if none was.", Value: float64(w.lastUS.Load()) / 1e6},
		{Name: "dipwell_file_groups_total", Help: "Groups of rows written.", Counter: true, Value: float64(w.groups.Load())},
		{Name: "dipwell_file_rows_total", Help: "Rows written.", Counter: true, Value: float64(w.rows.Load())},
		{Name: "dipwell_file_late_groups_total", Help: "Groups written later than the durability setting says.", Counter: true, Value: float64(w.late.Load())},
		{Name: "dipwell_file_write_errors_total", Help: "Failed attempts to write a group.", Counter: true, Value: float64(w.failures.Load())},
	}...)
}
