package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// The last minute is counted in slices of time.
const (
	topSlice  = 10 * time.Second
	topSlices = 6
)

// keepTime is how long the store may take to store the lists of an hour.
const keepTime = 2 * time.Second

// keyCounts counts the decisions of each key: in the last minute, and in the present hour.
type keyCounts struct {
	process      string
	all, refused *bounded.Window
	last         lastRefusals
	usage        *usageLog // nil if the store keeps no usage
	minutes      *minuteLog
	lost         atomic.Uint64 // number of hours that could not be stored
	before       *tally        // the counts at the beginning of the present hour

	mu    sync.Mutex
	turns []time.Time // times at which the slices began
}

// CountKeys counts the decisions of each key until ctx ends, and remembers the last
// refusals of each. At the end of each hour, and when ctx ends, it stores the keep
// busiest and the keep most refused keys under the name of this process; if keep is 0 it
// stores none. If the store fails, that hour is lost, and counted as lost. CountKeys must
// be called before the server is used. wait returns when the last hour has been stored.
//
// Once a minute it stores or notes what was decided in that minute, and then, and when ctx
// ends, it adds the usage of keys of limits with usage to the store.
func (s *Server) CountKeys(ctx context.Context, process string, keep int) (wait func()) {
	k := &keyCounts{process: process, turns: []time.Time{time.Now()}, refused: bounded.NewWindow(bounded.WindowConfig{Slices: topSlices}),
		all: bounded.NewWindow(bounded.WindowConfig{Slices: topSlices, Uses: usageKeys})}
	k.before = s.tally()
	k.minutes = &minuteLog{server: s, to: s.can.Minutes, minute: time.Now().Truncate(time.Minute), before: k.before}
	k.usage = s.usageLog(k.all)
	k.last.keys.Most = refusedKeys
	s.metrics.keys = k
	s.metrics.counter("dipwell_top_hours_lost_total", "Hours whose busiest keys the store did not keep.", k.lost.Load)
	to := s.can.TopKeys
	if keep == 0 {
		to = nil
	}
	if k.minutes.to != nil {
		s.metrics.counter("dipwell_minutes_lost_total", "Minutes whose decisions the store did not keep.", k.minutes.lost.Load)
	}
	var done sync.WaitGroup
	done.Go(func() { k.run(ctx, to, keep) })
	return done.Wait
}

// add counts a decision. add is on the hot path.
func (k *keyCounts) add(d *dipwell.Decision, as uses, allowed bool) {
	limit := d.Limit
	if def := d.Definition; def != nil {
		limit = def.Name // d.Limit may be part of a larger text of the caller's, which would be kept
	}
	if as != usesNothing && k.usage != nil && d.Definition != nil && d.Definition.Usage {
		calls, refusals, tokens := as.counts(d, allowed)
		k.all.AddUse(limit, d.Key, calls, refusals, tokens)
	} else {
		k.all.Add(limit, d.Key)
	}
	if !d.Allowed || d.Shadow {
		if front.Known(d) { // otherwise the limit refused nobody
			k.refused.Add(limit, d.Key)
		}
		k.last.add(limit, d)
	}
}

// run begins a slice at each multiple of topSlice, and stores hours, minutes and usage.
func (k *keyCounts) run(ctx context.Context, to store.Auditor, keep int) {
	began := time.Now() // when the present minute began
	hour := began.Truncate(time.Hour)
	for {
		now := time.Now()
		select {
		case <-ctx.Done():
			var last sync.WaitGroup
			last.Go(func() { k.keep(ctx, to, keep, hour) })
			k.usage.take(began)
			k.usage.write(ctx)
			last.Wait()
			return
		case now = <-time.After(now.Truncate(topSlice).Add(topSlice).Sub(now)):
		}
		ended := k.minutes.turn(now)
		if ended != nil {
			k.usage.take(began) // before a store that is slow
			began = now
		}
		if next := now.Truncate(time.Hour); !next.Equal(hour) {
			k.keep(ctx, to, keep, hour)
			hour = next
		} else {
			k.all.Turn()
			k.refused.Turn()
		}
		k.mu.Lock()
		k.turns = append(k.turns[max(0, len(k.turns)-topSlices+1):], now)
		k.mu.Unlock()
		if ended != nil {
			k.minutes.store(ctx, ended)
			k.usage.write(ctx)
		}
	}
}

// keep ends the counts of an hour, and adds them to the store.
func (k *keyCounts) keep(ctx context.Context, to store.Auditor, n int, hour time.Time) {
	after := k.minutes.server.tally()
	r := after.since(k.before)
	k.before = after
	counts := hourCounts{}
	for _, c := range r.Limits {
		counts[c.Limit] = [2]uint64{c.Calls(), c.Refused}
	}
	h := bounded.Hour{Hour: hour.UTC(), Busiest: k.all.Restart(n), Refused: k.refused.Restart(n), Counts: asJSON(counts)}
	if to == nil || h.Busiest.Events == 0 {
		return
	}
	k.record(context.WithoutCancel(ctx), to, "top", h, &k.lost, "the busiest keys of the hour "+h.Hour.Format(time.RFC3339))
}

// record adds what was counted to the store. If the store fails, they are lost.
func (k *keyCounts) record(ctx context.Context, to store.Auditor, action string, h bounded.Hour, lost *atomic.Uint64, what string) {
	text, err := json.Marshal(h)
	if err == nil {
		within, cancel := context.WithTimeout(ctx, keepTime)
		defer cancel()
		err = to.Record(within, store.AuditEntry{Who: k.process, Action: action, What: string(text)})
	}
	if err != nil && ctx.Err() == nil {
		lost.Add(1)
		slog.Warn(what + " could not be stored: " + err.Error())
	}
}

// lists returns the n busiest and the n most refused keys of the last minute, of one
// limit or of all, and the time at which that minute began.
func (k *keyCounts) lists(n int, may func(limit string) bool) (since time.Time, busiest, refused bounded.Top) {
	k.mu.Lock()
	since = k.turns[0]
	k.mu.Unlock()
	return since, k.all.Top(n, may), k.refused.Top(n, may)
}
