package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// SQL functions step windows that follow a calendar, with the database's time zone data.
// This program has time zone data of its own, which may be from another year.
const (
	zoneYears = 10        // years ahead for which the two are compared
	zoneFor   = time.Hour // after this time they are compared again: the database's data may have been updated
)

// zoneSQL finds the first of some times, in Unix seconds, at which the database gives a
// zone another offset from UTC than this program does.
const zoneSQL = `select min(u.at) from unnest($2::bigint[], $3::bigint[]) u (at, ahead) where dipwell_internal.zone_offset($1::text, u.at) <> u.ahead`

// comparedZone is the result of a comparison of the data of a calendar's zone.
type comparedZone struct {
	differs string // how they differ; "" if they are equal
	asked   time.Time
}

// zoneDiffers returns how the database's data of the zone of a rule differ from this
// program's, with the first date, or "". The error is errNoZone if the database lacks the
// zone. Limits that share a calendar are compared once.
func (l *limits) zoneDiffers(ctx context.Context, db rower, r *store.Rule) (string, error) {
	cal := r.Calendar.Spec()
	if !l.s.engine().hasFunctions() || cal.Zone == "" || cal.Zone == time.UTC.String() {
		return "", nil // Go decides, or no difference is possible
	}
	now := time.Now()
	if last, known := l.zones.Load(cal); known {
		last := last.(comparedZone)
		if now.Sub(last.asked) < zoneFor || !l.zones.CompareAndSwap(cal, last, comparedZone{last.differs, now}) {
			return last.differs, nil // another call may be comparing them now
		}
	}
	differs, err := compareZone(ctx, db, r, cal.Zone)
	if err == nil {
		l.zones.Store(cal, comparedZone{differs, now})
	}
	return differs, err
}

// errNoZone means that the database does not have the time zone, so that every take would
// fail.
var errNoZone = errors.New("the database does not know the time zone")

// compareZone compares a zone's offsets at the boundaries of a calendar's windows.
func compareZone(ctx context.Context, db rower, rule *store.Rule, zone string) (string, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return "", err
	}
	var instants, ahead []int64
	now, c := time.Now(), rule.Calendar
	own := *rule // because a calendar caches the last window that it computed
	own.Calendar = &terms.Calendar{Location: loc, Days: c.Days, Months: c.Months, Clock: c.Clock}
	at, next := own.Window(now.UnixMicro())
	for end := now.AddDate(zoneYears, 0, 0).UnixMicro(); at < end; at, next = own.Window(next) {
		for _, x := range []int64{at/1e6 - 1, at / 1e6} {
			_, offset := time.Unix(x, 0).In(loc).Zone()
			instants, ahead = append(instants, x), append(ahead, int64(offset))
		}
	}
	var first *int64
	err = db.QueryRow(ctx, zoneSQL, zone, instants, ahead).Scan(&first)
	switch {
	case codeOf(err) == codeInvalid: // the database lacks the zone
		return "", errNoZone
	case denied(err):
		return "", nil // a role without the privilege to compare may not decide calls either
	case err != nil || first == nil:
		return "", err
	}
	return fmt.Sprintf("from %s on the clock of %s differs between the database and this program, because their time zone data are from different years; windows follow the database's",
		time.Unix(*first, 0).In(loc).Format(time.DateOnly), zone), nil
}

// knowsWindows reports whether this program computes the windows of a calendar limit as the
// database does. If so, set.sql gets the present window as a parameter, instead of computing
// it for each row. set.sql decides nothing outside of that window, and has a function step
// rows of earlier windows.
func (s *Store) knowsWindows(ctx context.Context, r *store.Rule) bool {
	differs, err := s.limits.zoneDiffers(ctx, s.db, r) // in the caller's transaction, if there is one: it may hold the only connection
	return differs == "" && err == nil
}

// windowMoved reports whether a row was not decided because its window is over
// or has not begun, and corrects the estimate of the clock.
func (s *Store) windowMoved(b *bundle) bool {
	for i := range b.buckets {
		row := &b.buckets[i]
		if row.def.Rule.Every == 0 && !b.writeBack && (b.now < row.start || b.now >= row.end) {
			s.limits.ahead.Store(b.now - time.Now().UnixMicro())
			return true
		}
	}
	return false
}
