package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// uses says what of a call counts as usage of its keys.
type uses uint8

const (
	usesNothing uses = iota
	usesTokens       // the call and the tokens that it took
	usesCall         // only the call: one that makes a hold
	usesSettled      // only the tokens that a hold was settled to
)

var usesOf = [...]uses{store.VerbTake: usesTokens, store.VerbTakeUpTo: usesTokens, store.VerbReserve: usesTokens, store.VerbCharge: usesTokens,
	store.VerbCheck: usesNothing, store.VerbRefund: usesNothing, store.VerbReset: usesNothing}

// counts returns what counts for a decision. allowed tells whether the whole call is
// allowed: if another of its limits refused, it used nothing of this one.
func (u uses) counts(d *dipwell.Decision, allowed bool) (calls, refusals, tokens int64) {
	if u != usesCall && allowed {
		tokens = d.Granted
	}
	switch {
	case u == usesSettled, !d.Allowed && !front.Known(d): // an outage of the store refuses nobody
	case !d.Allowed:
		refusals = 1
	case allowed:
		calls = 1
	}
	return calls, refusals, tokens
}

const (
	usageKeys  = 8192            // keys that are counted one by one
	usageLines = 8 * usageKeys   // lines that may wait for a store that does not answer
	usageTime  = 5 * time.Second // how long the store may take
)

// A usageLog adds what keys used to the store.
type usageLog struct {
	of   *bounded.Window
	to   store.UsageKeeper
	lost atomic.Uint64 // number of lines that the store may have added in part

	waiting map[usageName]*store.UsageLine
}

type usageName struct {
	limit, key string
	hour       int64
}

// usageLog returns a log, or nil if the store keeps no usage.
func (s *Server) usageLog(of *bounded.Window) *usageLog {
	if s.can.Usage == nil {
		return nil
	}
	u := &usageLog{of: of, to: s.can.Usage, waiting: map[usageName]*store.UsageLine{}}
	s.metrics.counter("dipwell_usage_lost_total", "Lines of usage, of a key in an hour, that were given up because the store may have added some of them.", u.lost.Load)
	return u
}

// take takes what was used since its last call, in a minute that began at a time.
func (u *usageLog) take(began time.Time) {
	if u == nil {
		return
	}
	hour := began.Truncate(time.Hour).UnixMicro()
	for _, l := range u.of.TakeUses() {
		l.Hour = hour
		u.wait(&l)
	}
}

// write adds what was taken to the store, even if ctx has ended: a store does not say whether it
// has added what a call that was given up would add. What fails waits for the next write.
func (u *usageLog) write(ctx context.Context) {
	if u == nil || len(u.waiting) == 0 {
		return
	}
	lines := make([]store.UsageLine, 0, len(u.waiting))
	for _, l := range u.waiting {
		lines = append(lines, *l)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), usageTime)
	defer cancel()
	err := u.to.AddUsage(ctx, lines)
	if err == nil {
		clear(u.waiting)
		return
	}
	slog.Warn("what keys used could not be stored: " + err.Error())
	lost := 0 // lost lines: counting them twice would be worse than not at all
	if part, ok := errors.AsType[*store.UsageError](err); ok {
		clear(u.waiting)
		for _, i := range part.Rest {
			u.wait(&lines[i])
		}
		lost = part.Lost
	} else if errors.Is(err, store.ErrOutcomeUnknown) {
		clear(u.waiting)
		lost = len(lines)
	}
	u.lost.Add(uint64(lost))
}

// wait adds a line to those that are waiting to be written.
func (u *usageLog) wait(l *store.UsageLine) {
	name := usageName{l.Limit, l.Key, l.Hour}
	if u.waiting[name] == nil && len(u.waiting) >= usageLines {
		name.key = ""
	}
	if u.waiting[name] == nil {
		u.waiting[name] = &store.UsageLine{Limit: l.Limit, Key: name.key, Hour: l.Hour}
	}
	u.waiting[name].Add(l)
}

func (a *api) usage(w http.ResponseWriter, r *http.Request, q *query) error {
	if err := q.completeUsage(time.Now()); err != nil {
		return err
	}
	name, keyed := r.PathValue("name"), q.key != dipwell.Shared
	def := a.limiter.Limit(name)
	switch {
	case q.others && keyed:
		return bad("others", "is given together with key; give one of them")
	case !q.others && !keyed && def != nil && !def.Shared && def.Usage:
		return bad("key", "is missing; others=true has the keys that were not counted one by one, together")
	}
	lines, err := a.limiter.Usage(r.Context(), name, q.key, q.from, q.to)
	return answerJSON(w, jsonUsage(name, q, lines), err)
}

// usageSince returns the earliest time for which the store keeps usage.
func usageSince(now time.Time) time.Time { return now.AddDate(0, 0, -31) }

// completeUsage sets the defaults of a query of usage, and checks it.
func (q *query) completeUsage(now time.Time) (err error) {
	if q.key, err = q.bucket(); err != nil {
		return err
	}
	if q.to.IsZero() {
		q.to = now.UTC().Truncate(time.Second).Add(time.Second)
	}
	if q.from.IsZero() {
		q.from = usageSince(q.to)
	}
	if q.from = q.from.Truncate(time.Hour); q.from.After(q.to) {
		return bad("from", fmt.Sprintf("%s is after to, %s", q.from.Format(time.RFC3339), q.to.Format(time.RFC3339)))
	}
	return nil
}

type usageJSON struct {
	Limit string    `json:"limit"`
	Key   Nullable  `json:"key"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	UsageCounts
	Hours []usageHour `json:"hours"`
}

// UsageCounts are what a key used.
type UsageCounts struct {
	Allowed int64 `json:"allowed"`
	Refused int64 `json:"refused"`
	Tokens  int64 `json:"tokens"`
}

type usageHour struct {
	Hour time.Time `json:"hour"`
	UsageCounts
}

func jsonUsage(limit string, q *query, lines []store.UsageLine) *usageJSON {
	key := q.key
	if key == dipwell.Shared {
		key = ""
	}
	u := &usageJSON{Limit: limit, Key: Nullable(key), From: q.from, To: q.to, Hours: []usageHour{}}
	for i := range lines {
		l := &lines[i]
		u.Hours = append(u.Hours, usageHour{time.UnixMicro(l.Hour).UTC(), UsageCounts{l.Allowed, l.Refused, l.Tokens}})
	}
	u.UsageCounts = totalOf(lines)
	return u
}

func totalOf(lines []store.UsageLine) UsageCounts {
	var sum store.UsageLine
	for i := range lines {
		sum.Add(&lines[i])
	}
	return UsageCounts{sum.Allowed, sum.Refused, sum.Tokens}
}
