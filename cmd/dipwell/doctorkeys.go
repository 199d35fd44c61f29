package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// maxCounted is how many overrides of a limit are counted.
const maxCounted = 1000

// overrides counts the overrides of each limit.
func (x *examination) overrides(ctx context.Context, l *dipwell.Limiter) {
	var some []string
	for _, d := range l.Limits() {
		list, err := l.Overrides(ctx, d.Name, "", "", maxCounted)
		if errors.Is(err, store.ErrNotSupported) {
			return
		}
		if err != nil {
			x.problem("overrides", "", "limit %s: %v", d.Name, timeoutError(err))
			return
		}
		if len(list) > 0 {
			more := ""
			if len(list) == maxCounted {
				more = " or more"
			}
			some = append(some, fmt.Sprintf("%s %d%s", d.Name, len(list), more))
		}
	}
	if len(some) == 0 {
		x.ok("overrides", "no key has one")
		return
	}
	x.ok("overrides", "keys that have one, by limit: %s", names(some))
}

// manyExpired is the number of expired holds that nobody has given back from which on
// there is a warning.
const manyExpired = 10000

// postgresHolds counts the holds in a database.
func (x *examination) postgresHolds(ctx context.Context, conn *pgx.Conn) {
	var live, expired, ended int64
	var limits []string
	err := conn.QueryRow(ctx, `select count(distinct h.id) filter (where h.live and h.expires > t.now), count(distinct h.id) filter (where h.live and h.due <= t.now),
			count(distinct h.id) filter (where not h.live or h.expires <= t.now and h.due > t.now), coalesce(array_agg(distinct l.name) filter (where h.live), '{}')
		from (select (extract(epoch from clock_timestamp()) * 1e6)::bigint as now) t, dipwell.hold_parts h join dipwell.limits l on l.id = h.limit_id`).Scan(&live, &expired, &ended, &limits)
	if err != nil {
		x.warn("holds", "", "they cannot be counted: %v", timeoutError(err))
		return
	}
	of := ""
	if len(limits) > 0 {
		of = ", of " + names(limits)
	}
	x.judge(expired > manyExpired, verdictWarning, "holds", "run a service, or call dipwell.sweep(10000) while it returns 10000",
		"%d live, %d expired and not yet given back, %d ended and kept for repeated calls%s", "%d live, %d expired and not yet given back, %d ended and kept for repeated calls%s", live, expired, ended, of)
}
