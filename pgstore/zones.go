package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/store"
)

// SQL functions step windows that follow a calendar, with the database's time zone data.
// This program has data of its own, which may be from another year. zoneYears is how far
// ahead the two are compared.
const zoneYears = 10

// zoneSQL finds the first of some times, in Unix seconds, at which the database gives a
// zone another offset from UTC than this program does.
const zoneSQL = `select min(u.at) from unnest($2::bigint[], $3::bigint[]) u (at, ahead) where dipwell_internal.zone_offset($1::text, u.at) <> u.ahead`

// zoneWarning returns a warning if the database's data of a limit's zone differ from this
// program's, with the first date, or if the database does not have the zone. Limits that
// share a calendar are compared once.
func (l *limits) zoneWarning(ctx context.Context, limit store.Limit) (string, error) {
	d, err := store.NewDefinition(limit) // a definition of its own, because a calendar caches the last window that it computed
	if err != nil {
		return "", err
	}
	cal := d.Rule.Calendar.Spec()
	if !l.s.engine().hasFunctions() || cal.Zone == "" || cal.Zone == time.UTC.String() {
		return "", nil // Go decides, or no difference is possible
	}
	found, known := l.zones.Load(cal)
	if !known {
		if found, err = compareZone(ctx, l.db, &d.Rule, cal.Zone); err != nil {
			return "", err
		}
		l.zones.Store(cal, found)
	}
	if found == "" {
		return "", nil
	}
	return fmt.Sprintf("limit %s: start: %s", limit.Name, found), nil
}

// errNoZone means that the database does not have the time zone, so that every take would
// fail.
var errNoZone = errors.New("the database does not know the time zone")

// checkZone refuses a limit in a time zone that the database does not have.
func (l *limits) checkZone(ctx context.Context, limit store.Limit) error {
	if _, err := l.zoneWarning(ctx, limit); errors.Is(err, errNoZone) {
		return &store.FieldError{Limit: limit.Name, Field: "start", Reason: fmt.Sprintf("%q: %v", limit.Start, err)}
	}
	return nil // storing the limit will return the error
}

// compareZone compares a zone's offsets at the boundaries of a calendar's windows.
func compareZone(ctx context.Context, db rower, rule *store.Rule, zone string) (string, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return "", err
	}
	var instants, ahead []int64
	now := time.Now()
	for at, end := now.UnixMicro(), now.AddDate(zoneYears, 0, 0).UnixMicro(); at < end; {
		_, at = rule.Window(at)
		for _, x := range []int64{at/1e6 - 1, at / 1e6} {
			_, offset := time.Unix(x, 0).In(loc).Zone()
			instants, ahead = append(instants, x), append(ahead, int64(offset))
		}
	}
	var first *int64
	err = db.QueryRow(ctx, zoneSQL, zone, instants, ahead).Scan(&first)
	switch {
	case codeOf(err) == codeInvalid: // the database does not have the zone
		return "", errNoZone
	case denied(err):
		return "", nil // a role without the privilege to compare may not decide either
	case err != nil || first == nil:
		return "", err
	}
	return fmt.Sprintf("from %s on the clock of %s differs between the database and this program, because their time zone data are from different years; windows follow the database's",
		time.Unix(*first, 0).In(loc).Format(time.DateOnly), zone), nil
}
