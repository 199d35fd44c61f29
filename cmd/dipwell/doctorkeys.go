package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// maxCounted is how many overrides of a limit are counted.
const maxCounted = 1000

// overrides counts the overrides of each limit, and those that decide nothing because
// their plan is gone.
func (x *examination) overrides(ctx context.Context, l *dipwell.Limiter) {
	var some, gone []string
	for _, d := range l.Limits() {
		list, err := l.Overrides(ctx, d.Name, "", "", maxCounted)
		if errors.Is(err, store.ErrNotSupported) {
			return
		}
		if err != nil {
			x.problem("overrides", "", "limit %s: %v", d.Name, timeoutError(err))
			return
		}
		void := 0
		for i := range list {
			if d.WithPlan(list[i].Plan) == nil {
				void++
			}
		}
		if len(list) > 0 {
			more := ""
			if len(list) == maxCounted {
				more = " or more"
			}
			some = append(some, fmt.Sprintf("%s %d%s", d.Name, len(list), more))
		}
		if void > 0 {
			gone = append(gone, fmt.Sprintf("%s %d", d.Name, void))
		}
	}
	if len(some) == 0 {
		x.ok("overrides", "no key has one")
		return
	}
	x.ok("overrides", "keys that have one, by limit: %s", names(some))
	x.judge(len(gone) > 0, verdictWarning, "overrides", "define the plan again, or end them: dipwell override list LIMIT",
		"overrides of a plan that the limit does not have any more, so that the limit decides: %s", "the plans that they name are there%.0s", strings.Join(gone, ", "))
}

// manyExpired is the number of expired holds that nobody has given back from which on
// there is a warning.
const manyExpired = 10000

// postgresHolds counts the holds in a database.
func (x *examination) postgresHolds(ctx context.Context, conn *pgx.Conn) {
	var live, expired, ended int64
	var limits []string
	err := conn.QueryRow(ctx, `select count(distinct h.id) filter (where h.live and h.expires > t.now), count(distinct h.id) filter (where h.live and h.expires <= t.now),
			count(distinct h.id) filter (where not h.live), coalesce(array_agg(distinct l.name) filter (where h.live), '{}')
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
