package server

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// refusals logs a sample of the refusals, at most perSecond, so that a flood of
// calls is not a flood of log lines.
type refusals struct {
	perSecond int64
	redact    func(limit, key string) string
	second    atomic.Int64 // current second, Unix time
	n         atomic.Int64 // lines in that second
	unlogged  atomic.Int64 // refusals since the last line
	lines     chan refusal
}

type refusal struct {
	limit, key string
	cost       int64
	retry      time.Duration
	never      bool
	source     store.Source
	reason     string // why there was no decision
	from       string // address of who was denied the call
	unlogged   int64
}

// LogRefusals logs at most perSecond refusals a second until ctx ends, with keys as
// redact returns them. Calls do not wait for the log: if it is slow, lines are
// dropped. Calls that are denied to those who make them are logged as often, beside the
// refusals. LogRefusals must be called before the server is used.
func (s *Server) LogRefusals(ctx context.Context, log *slog.Logger, perSecond int, redact func(limit, key string) string) {
	if perSecond <= 0 {
		return
	}
	for _, r := range [...]**refusals{&s.metrics.refusals, &s.metrics.denials} {
		*r = &refusals{perSecond: int64(perSecond), redact: redact, lines: make(chan refusal, min(perSecond, 256))}
		go (*r).write(ctx, log)
	}
}

func (r *refusals) add(d *dipwell.Decision) {
	if !r.sample() {
		return
	}
	line := refusal{limit: d.Limit, cost: d.Cost, retry: d.RetryAfter, never: d.Never, source: d.Source}
	if d.Key != "" {
		line.key = r.redact(d.Limit, d.Key)
	}
	r.send(line)
}

// keyless logs a request that was refused because it has no key.
func (r *refusals) keyless(limit string, err error) {
	if r.sample() {
		r.send(refusal{limit: limit, reason: err.Error()})
	}
}

// sample reports whether a refusal may be logged in this second.
func (r *refusals) sample() bool {
	now := time.Now().Unix()
	if last := r.second.Load(); last != now && r.second.CompareAndSwap(last, now) {
		r.n.Store(0)
	}
	if r.n.Load() >= r.perSecond || r.n.Add(1) > r.perSecond {
		r.unlogged.Add(1)
		return false
	}
	return true
}

func (r *refusals) send(line refusal) {
	line.unlogged = r.unlogged.Swap(0)
	select {
	case r.lines <- line:
	default:
		r.unlogged.Add(line.unlogged + 1)
	}
}

func (r *refusals) write(ctx context.Context, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-r.lines:
			var attrs []slog.Attr
			if l.limit != "" {
				attrs = append(attrs, slog.String("limit", l.limit))
			}
			if l.from != "" {
				attrs = append(attrs, slog.String("from", l.from))
			}
			if l.reason != "" {
				attrs = append(attrs, slog.String("reason", l.reason))
			} else {
				attrs = append(attrs, slog.Int64("cost", l.cost), slog.String("source", l.source.String()))
			}
			if l.key != "" {
				attrs = append(attrs, slog.String("key", l.key))
			}
			if l.never {
				attrs = append(attrs, slog.Bool("never", true))
			} else if l.retry > 0 {
				attrs = append(attrs, slog.Duration("retry_after", l.retry))
			}
			if l.unlogged > 0 {
				attrs = append(attrs, slog.Int64("not_logged", l.unlogged))
			}
			log.LogAttrs(ctx, slog.LevelInfo, "refused", attrs...)
		}
	}
}
