package server

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
)

// refusals logs a sample of the refusals, at most perSecond, so that a flood of
// calls is not a flood of log lines.
type refusals struct {
	perSecond int64
	redact    func(limit, key string) string
	second    atomic.Int64 // the current second, as Unix time
	n         atomic.Int64 // lines logged in that second
	unlogged  atomic.Int64 // refusals since the last logged line
	lines     chan []slog.Attr
}

// LogRefusals logs at most perSecond refusals a second until ctx ends, with keys as
// redact returns them. Calls do not wait for the log: if it is slow, lines are
// dropped. Denied calls are logged as often, in addition to the refusals. LogRefusals
// must be called before the server is used.
func (s *Server) LogRefusals(ctx context.Context, log *slog.Logger, perSecond int, redact func(limit, key string) string) {
	if perSecond <= 0 {
		return
	}
	for _, r := range [...]**refusals{&s.metrics.refusals, &s.metrics.denials} {
		*r = &refusals{perSecond: int64(perSecond), redact: redact, lines: make(chan []slog.Attr, min(perSecond, 256))}
		go (*r).write(ctx, log)
	}
}

func (r *refusals) add(d *dipwell.Decision) {
	if !r.sample() {
		return
	}
	line := []slog.Attr{slog.String("limit", d.Limit), slog.Int64("cost", d.Cost), slog.String("source", d.Source.String())}
	if d.Key != "" {
		line = append(line, slog.String("key", r.redact(d.Limit, d.Key)))
	}
	if d.Never {
		line = append(line, slog.Bool("never", true))
	} else if d.RetryAfter > 0 {
		line = append(line, slog.Duration("retry_after", d.RetryAfter))
	}
	r.send(line)
}

// note logs why a call had no decision, with one more attribute if that is known.
func (r *refusals) note(name, value, reason string) {
	if !r.sample() {
		return
	}
	line := []slog.Attr{slog.String("reason", reason)}
	if value != "" {
		line = append([]slog.Attr{slog.String(name, value)}, line...)
	}
	r.send(line)
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

func (r *refusals) send(line []slog.Attr) {
	n := r.unlogged.Swap(0)
	if n > 0 {
		line = append(line, slog.Int64("not_logged", n))
	}
	select {
	case r.lines <- line:
	default:
		r.unlogged.Add(n + 1)
	}
}

func (r *refusals) write(ctx context.Context, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case line := <-r.lines:
			log.LogAttrs(ctx, slog.LevelInfo, "refused", line...)
		}
	}
}
