package pgstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// windows are the present windows of a limit that follows a calendar, and some
// before and after, as the database counts them. Statements are told in which
// window they run, so that they need not work it out for each row: they decide
// nothing at other times, and step rows of earlier windows by the functions.
type windows struct{ read atomic.Pointer[boundaries] }

// boundaries are where windows begin, in µs, before the origin of a key is added.
type boundaries struct {
	at    []int64   // nil where this program knows other clocks of the zone than the database
	asked time.Time // when the database was asked
	now   int64     // the database's clock then
}

const (
	windowsAhead = 64        // Retry and Reset of an answer that lie further ahead follow this program's data on time zones
	windowsFor   = time.Hour // after which the database is asked again: its data may have been replaced
)

const windowsSQL = `select n, array(select dipwell_internal.calendar_boundary(v, k) from generate_series(dipwell_internal.tick(v, n) - 1, dipwell_internal.tick(v, n) + $4::bigint) k)
from dipwell.versions v cross join (select coalesce($3::bigint, ` + readNow + `) as n) c where v.limit_id = $1 and v.number = $2`

// knowsWindows reports whether the present window of a limit is known, so that
// set.sql can decide calls of it and Go can fill their answers. It asks the
// database if the windows were never read, are used up, or were read an hour ago.
func (s *Store) knowsWindows(ctx context.Context, e *entry) bool {
	b := e.windows.read.Load()
	if b == nil || time.Since(b.asked) > windowsFor || b.at != nil && !b.covers(s.estimateNow(b)) {
		b = &boundaries{asked: time.Now()}
		if s.db.QueryRow(ctx, windowsSQL, e.id, int32(e.def.Number), s.testNow(), windowsAhead).Scan(&b.now, &b.at) != nil {
			return false
		}
		if !sameWindows(e.def.Limit, b.at) {
			b.at = nil
		}
		e.windows.read.Store(b)
	}
	return b.at != nil
}

// about estimates the database's clock. The statement itself reads the exact time.
func (s *Store) estimateNow(b *boundaries) int64 {
	if s.clock != nil {
		return s.clock()
	}
	return b.now + time.Since(b.asked).Microseconds()
}

// holds reports whether the windows of all keys at now are among the boundaries.
// Those of a key begin less than a window later.
func (b *boundaries) covers(now int64) bool {
	return now >= b.at[1] && now < b.at[len(b.at)/2]
}

// sameWindows reports whether this program counts the same windows. The limit is
// compiled anew, because a calendar remembers the last window that it was asked for.
func sameWindows(l store.Limit, at []int64) bool {
	d, err := store.NewDefinition(l)
	if err != nil || len(at) < 3 {
		return false
	}
	for i, start := range at[:len(at)-1] {
		if first, end := d.Rule.Window(start + d.Rule.Origin); first != start+d.Rule.Origin || end != at[i+1]+d.Rule.Origin {
			return false
		}
	}
	return true
}

// window is where the present window of an op's key begins, and its length.
func (s *Store) window(e *entry, op *store.Op) (start, length int64) {
	b := e.windows.read.Load()
	if b == nil || b.at == nil {
		return 0, 1 // no longer known
	}
	var scratch store.Rule
	now := s.estimateNow(b) - op.RuleFor(&scratch).Origin
	i := 1
	for i < len(b.at)-1 && b.at[i] <= now {
		i++
	}
	return b.at[i-1] + op.RuleFor(&scratch).Origin, b.at[i] - b.at[i-1]
}

// turned reports whether a bucket was not decided because its window is over, or
// has not begun, and notes the clock by which the next statement's is chosen.
func (b *bundle) windowMoved() bool {
	turned := false
	for i := range b.buckets {
		row := &b.buckets[i]
		if row.def.Rule.Every == 0 && !b.writeBack && (b.now < row.start || b.now >= row.start+row.length) {
			turned = true
			if known := row.windows.read.Load(); known != nil {
				row.windows.read.Store(&boundaries{at: known.at, asked: known.asked, now: b.now - time.Since(known.asked).Microseconds()})
			}
		}
	}
	return turned
}
