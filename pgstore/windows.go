package pgstore

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/store"
)

// boundaries are the starts of a calendar limit's windows around the present, as computed
// by the database, in µs and without the origin of a key. Statements get the current window
// as a parameter instead of computing it for each row. They decide nothing outside of it,
// and leave rows of earlier windows to the functions.
type boundaries struct {
	at    []int64   // nil if this program and the database disagree on the time zone
	asked time.Time // when the database was asked
	now   int64     // the database's clock at that time
}

const (
	windowsAhead = 64        // windows; a Retry or Reset beyond them is computed from this program's time zone data
	windowsFor   = time.Hour // after this time the database is asked again: its time zone data may have been updated
)

const windowsSQL = `select n, array(select dipwell_internal.calendar_boundary(v, k) from generate_series(dipwell_internal.tick(v, n) - 1, dipwell_internal.tick(v, n) + $4::bigint) k)
from dipwell.versions v cross join (select coalesce($3::bigint, ` + readNow + `) as n) c where v.limit_id = $1 and v.number = $2`

// knowsWindows reports whether the current window of a limit is known, so that
// set.sql can decide its calls and Go can fill in the answers. It asks the
// database if the windows were never read, are used up, or were read windowsFor
// ago.
func (s *Store) knowsWindows(ctx context.Context, e *entry) bool {
	b := e.windows.Load()
	if b == nil || time.Since(b.asked) > windowsFor || b.at != nil && !b.covers(s.estimateNow(b)) {
		b = &boundaries{asked: time.Now()}
		if s.db.QueryRow(ctx, windowsSQL, e.id, int32(e.def.Base().Number), s.testNow(), windowsAhead).Scan(&b.now, &b.at) != nil {
			return false
		}
		if !sameWindows(e.def.Limit, b.at) {
			b.at = nil
		}
		e.windows.Store(b)
	}
	return b.at != nil
}

// estimateNow estimates the database's clock. The statement itself reads the
// exact time.
func (s *Store) estimateNow(b *boundaries) int64 {
	if s.clock != nil {
		return s.clock()
	}
	return b.now + time.Since(b.asked).Microseconds()
}

// covers reports whether the boundaries include the windows of all keys at now.
// The windows of a key begin less than one window later.
func (b *boundaries) covers(now int64) bool {
	return now >= b.at[1] && now < b.at[len(b.at)/2]
}

// sameWindows reports whether this program computes the same windows. The limit
// is compiled again, because a calendar caches the last window it computed.
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

// window returns the start of the current window of an op's key, and its
// length.
func (s *Store) window(e *entry, op *store.Op) (start, length int64) {
	b := e.windows.Load()
	if b == nil || b.at == nil {
		return 0, 1 // the boundaries are no longer known
	}
	var scratch store.Rule
	now := s.estimateNow(b) - op.RuleFor(&scratch).Origin
	i := 1
	for i < len(b.at)-1 && b.at[i] <= now {
		i++
	}
	return b.at[i-1] + op.RuleFor(&scratch).Origin, b.at[i] - b.at[i-1]
}

// windowMoved reports whether a row was not decided because its window is over
// or has not begun, and corrects the estimate of the clock.
func (b *bundle) windowMoved() bool {
	turned := false
	for i := range b.buckets {
		row := &b.buckets[i]
		if row.def.Rule.Every == 0 && !b.writeBack && (b.now < row.start || b.now >= row.start+row.length) {
			turned = true
			if known := row.windows.Load(); known != nil {
				row.windows.Store(&boundaries{at: known.at, asked: known.asked, now: b.now - time.Since(known.asked).Microseconds()})
			}
		}
	}
	return turned
}
