package filestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// A keeper writes what changed, one turn after the other, on a goroutine of its own.
type keeper struct {
	store           *Store
	mu              sync.Mutex // one turn at a time; Keys and Define write as well
	marks           []mark     // of the turns that are being written, or failed
	touched         map[store.Reservation]struct{}
	recs            []rec
	records         map[rowKey]map[recordID]*store.Record // that changed; nil: it ended
	sweeping        sweeper
	sweepingRecords sweeper      // where sweeping records goes on
	took            atomic.Int64 // ns, by the last turn's writing
	end             chan struct{}
	gone            sync.WaitGroup

	writing  atomic.Int64 // marks
	turns    atomic.Int64
	rows     atomic.Int64
	failures atomic.Int64
	late     atomic.Int64
	window   atomic.Int64 // ns
	widest   atomic.Int64 // ns
	lastUS   atomic.Int64 // wall clock, µs
}

// A rec is a row to write, or to delete where nothing is used.
type rec struct {
	limit int64 // id
	key   string
	row   store.State
	gave  bool // something was given back
	wipe  bool // the row was reset: its records go first
}

const (
	retryFirst = 100 * time.Millisecond // after a turn that failed; then twice as long
	retryMost  = 2 * time.Second
	lateSlack  = 5 * time.Millisecond // of the system's timers, before a turn counts as late
)

func (k *keeper) start(s *Store) {
	k.store, k.end = s, make(chan struct{})
	k.touched, k.records = map[store.Reservation]struct{}{}, map[rowKey]map[recordID]*store.Record{}
	s.dirty.behind = func() { s.state.Or(stateBehind) }
	s.mem.WatchReservations()
	k.gone.Go(k.run)
}

// stop ends the goroutine and writes the rest.
func (k *keeper) stop() error {
	close(k.end)
	k.gone.Wait()
	return k.flush()
}

func (k *keeper) run() {
	retry := time.Duration(0)
	timer := time.NewTimer(time.Hour)
	for {
		wake := k.store.dirty.wake
		if retry > 0 {
			wake = nil // what is new is written with the rest
			timer.Reset(retry)
		} else {
			timer.Reset(sweepEvery)
		}
		select {
		case <-k.end:
			timer.Stop()
			return
		case <-wake:
			if !k.rest(timer) {
				return
			}
		case <-timer.C:
		}
		if err := k.flush(); err != nil {
			retry = min(max(2*retry, retryFirst), retryMost)
			continue
		}
		retry = 0
		k.sweepSome()
	}
}

// rest waits as long as the first decision of the turn may be in memory alone,
// less what writing takes. It says whether to go on.
func (k *keeper) rest(timer *time.Timer) bool {
	s := k.store
	if s.every == 0 {
		return true
	}
	since := time.Since(start) - time.Duration(s.dirty.now.Load().began.Load())
	wait := max(s.every-2*time.Duration(k.took.Load()), s.every/2) - since
	if wait <= 0 {
		return true
	}
	timer.Reset(wait)
	select {
	case <-timer.C:
		return true
	case <-k.end:
		timer.Stop()
		return false
	}
}

// flush writes everything that is marked: one turn.
func (k *keeper) flush() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.store
	before := time.Now()
	s.together.Lock()
	t, marks := s.dirty.next(k.marks)
	s.joint = s.joint[:0]
	s.together.Unlock()
	k.writing.Store(int64(len(marks)))
	k.marks = marks
	group, err := k.collect(), error(nil)
	if group.some() {
		err = s.disk.write(&group, s.plan.id)
		k.took.Store(int64(time.Since(before)))
	}
	if err != nil {
		err = k.failed(err)
	} else {
		k.wrote(t)
	}
	clear(k.recs)
	k.recs = k.recs[:0]
	t.err = err
	close(t.done)
	return err
}

// A group is what one transaction writes.
type group struct {
	recs         []rec
	records      map[rowKey]map[recordID]*store.Record
	reservations []reservation
	now          int64 // the store's time, none of its rows being later
}

// A reservation that is not held any more is to go.
type reservation struct {
	memory.Pending
	held bool
}

func (g *group) some() bool { return len(g.recs)+len(g.records)+len(g.reservations) > 0 }

// collect reads the rows of the marks from memory. What changes several keys at
// once is seen whole or not at all: keys of such calls that came while rows were
// read are read again while there can be none.
func (k *keeper) collect() (g group) {
	s := k.store
	now := s.now()
	for i := range k.marks {
		k.look(&k.marks[i], now)
	}
	s.together.Lock()
	defer s.together.Unlock()
	for i := range s.joint {
		k.look(&s.joint[i], now)
	}
	for _, id := range s.mem.TouchedReservations() {
		k.touched[id] = struct{}{}
	}
	for id := range k.touched {
		h, held := s.mem.Reservation(id)
		h.ID = id
		g.reservations = append(g.reservations, reservation{h, held})
	}
	g.recs, g.records, g.now = k.recs, k.records, s.now()
	return g
}

// look reads the row of a mark.
func (k *keeper) look(m *mark, now int64) {
	s := k.store
	id, ok := s.plan.id(m.def.Name)
	if !ok {
		return // the limit is gone, and its rows with it
	}
	c := s.mem.Changes(m.def, m.key, m.wipe)
	k.noteRecords(rowKey{id, m.key}, &c, m.wipe)
	if d := s.mem.Registry().Lookup(m.def.Name); c.Found && (d == nil || d.Full(c.Row, now)) {
		c.Found = false
	}
	if !c.Found {
		// It filled up by itself, so what the file has of it is full as well,
		// unless something was given back.
		if m.gave {
			k.recs = append(k.recs, rec{limit: id, key: m.key, gave: true, wipe: m.wipe})
		}
		return
	}
	k.recs = append(k.recs, rec{id, m.key, c.Row, m.gave, m.wipe})
}

func (s *Store) now() int64 {
	now, _ := s.mem.Now(context.Background()) // never fails
	return now
}

// wrote counts a turn that is on the disk, and lets calls go on.
func (k *keeper) wrote(t *turn) {
	s := k.store
	clear(k.marks)
	k.marks = k.marks[:0]
	clear(k.touched)
	clear(k.records)
	k.writing.Store(0)
	if len(k.recs) > 0 {
		k.turns.Add(1)
	}
	k.rows.Add(int64(len(k.recs)))
	k.lastUS.Store(time.Now().UnixMicro())
	if began := t.began.Load(); began != 0 {
		window := time.Since(start) - time.Duration(began)
		k.window.Store(int64(window))
		k.widest.Store(max(k.widest.Load(), int64(window)))
		if s.every > 0 && window > s.every+lateSlack {
			k.late.Add(1)
		}
	}
	s.state.And(^uint32(stateBehind | stateFailed))
}

// classOf is the class of an error of the file.
func classOf(err error) error {
	const full = 13 // SQLITE_FULL
	var of *sqlite.Error
	if errors.As(err, &of) && of.Code()&0xff == full {
		return store.ErrNoSpace
	}
	return store.ErrStore
}

// failed keeps the marks for another try and lets calls know.
func (k *keeper) failed(err error) error {
	s := k.store
	k.failures.Add(1)
	err = fmt.Errorf("%w: file %s: %w", classOf(err), s.path, err)
	s.failure.Store(&err)
	if old := s.state.Or(stateFailed); old&stateFailed == 0 {
		s.report(err)
	}
	// The same keys may be marked again and again meanwhile.
	seen := make(map[mark]struct{}, len(k.marks))
	k.marks = slices.DeleteFunc(k.marks, func(m mark) bool {
		_, again := seen[m]
		seen[m] = struct{}{}
		return again
	})
	return err
}

// Stats are counts of a store at one time.
type Stats struct {
	Keys         int64 // held in memory
	Reservations int   // held
	Bytes        int64 // of memory that keys take

	Dirty    int64         // keys that changed and are not on the disk
	Turns    int64         // groups written since the store was opened
	Rows     int64         // rows written
	Failures int64         // groups that could not be written, tries counted
	Late     int64         // groups that were on the disk later than Config.Every
	Window   time.Duration // how long the oldest decision of the last group had been in memory alone
	Widest   time.Duration // the longest such time
	Last     time.Time     // when a group was written last; zero: none was
	Err      error         // why the disk fails, or nil
}

// Stats returns the store's counts.
func (s *Store) Stats() Stats {
	m, k := s.mem.Stats(), &s.keep
	st := Stats{Keys: m.Keys, Reservations: m.Reservations, Bytes: m.Bytes,
		Dirty: s.dirty.now.Load().keys.Load() + k.writing.Load(), Turns: k.turns.Load(), Rows: k.rows.Load(), Failures: k.failures.Load(),
		Late: k.late.Load(), Window: time.Duration(k.window.Load()), Widest: time.Duration(k.widest.Load())}
	if us := k.lastUS.Load(); us != 0 {
		st.Last = time.UnixMicro(us)
	}
	if s.state.Load()&stateFailed != 0 {
		st.Err = s.why()
	}
	return st
}

func (s *Store) metrics() []store.Metric {
	st := s.Stats()
	last := 0.0
	if !st.Last.IsZero() {
		last = float64(st.Last.UnixMicro()) / 1e6
	}
	return []store.Metric{
		{Name: "dipwell_keys", Help: "Keys that the store holds.", Value: float64(st.Keys)},
		{Name: "dipwell_reservations", Help: "Reservations that the store holds.", Value: float64(st.Reservations)},
		{Name: "dipwell_store_bytes", Help: "Memory that keys take.", Value: float64(st.Bytes)},
		{Name: "dipwell_file_dirty_keys", Help: "Keys that changed and are not on the disk.", Value: float64(st.Dirty)},
		{Name: "dipwell_file_window_seconds", Help: "How long the oldest decision of the last group written was in memory alone.", Value: st.Window.Seconds()},
		{Name: "dipwell_file_widest_window_seconds", Help: "The longest that a decision was in memory alone.", Value: st.Widest.Seconds()},
		{Name: "dipwell_file_last_write_timestamp_seconds", Help: "When a group was written last; 0: none was.", Value: last},
		{Name: "dipwell_file_groups_total", Help: "Groups of rows written.", Counter: true, Value: float64(st.Turns)},
		{Name: "dipwell_file_rows_total", Help: "Rows written.", Counter: true, Value: float64(st.Rows)},
		{Name: "dipwell_file_late_groups_total", Help: "Groups written later than the durability says, because the disk could not keep up.", Counter: true, Value: float64(st.Late)},
		{Name: "dipwell_file_write_errors_total", Help: "Groups that could not be written, each try counted.", Counter: true, Value: float64(st.Failures)},
	}
}

// byKey sorts rows as the file has them; of two of one key the later look stays last.
func byKey(recs []rec) {
	slices.SortStableFunc(recs, func(a, b rec) int {
		if a.limit != b.limit {
			return int(a.limit - b.limit)
		}
		return strings.Compare(a.key, b.key)
	})
}
