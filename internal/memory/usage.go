package memory

import (
	"context"
	"sync"
	"time"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

const maxUsage = 200_000 // lines that are kept; the usage of further keys is counted together

const hour = int64(time.Hour / time.Microsecond)

// A usage has what keys used in each hour.
type usage struct {
	*Store
	mu    sync.Mutex
	lines map[usageName]*store.UsageLine
	swept int64 // the hour of the last sweep
}

type usageName struct {
	limit, key string
	hour       int64
}

func (u *usage) AddUsage(_ context.Context, lines []store.UsageLine) error {
	if u.isClosed() {
		return ErrClosed
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := u.now(); now/hour != u.swept {
		u.forget(now)
	}
	for i := range lines {
		if u.reg.Lookup(lines[i].Limit) != nil {
			u.add(&lines[i])
		}
	}
	return nil
}

func (u *usage) add(l *store.UsageLine) {
	name := usageName{l.Limit, l.Key, l.Hour}
	if u.lines[name] == nil && len(u.lines) >= maxUsage {
		name.key = ""
	}
	to := u.lines[name]
	if to == nil {
		to = &store.UsageLine{Limit: l.Limit, Key: name.key, Hour: l.Hour}
		u.lines[name] = to
	}
	to.Add(l)
}

func (u *usage) Usage(_ context.Context, d *store.Definition, key string, from, to int64) (list []store.UsageLine, err error) {
	if u.isClosed() {
		return nil, ErrClosed
	}
	now := u.now()
	u.mu.Lock()
	defer u.mu.Unlock()
	from = max(from, now-catalog.UsageAge)
	for at := (from + hour - 1) / hour * hour; at < min(to, now+catalog.UsageAge); at += hour {
		if l := u.lines[usageName{d.Name, key, at}]; l != nil {
			list = append(list, *l)
		}
	}
	return list, nil
}

func (u *usage) sweep() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(u.now())
}

// forget deletes the lines that are too old or of dropped limits. The caller holds mu.
func (u *usage) forget(now int64) {
	u.swept = now / hour
	for name := range u.lines {
		if name.hour < now-catalog.UsageAge || u.reg.Lookup(name.limit) == nil {
			delete(u.lines, name)
		}
	}
}
