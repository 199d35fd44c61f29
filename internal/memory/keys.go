package memory

import (
	"context"
	"unsafe"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

const scanWork = 4096 // slots that are read while a shard is locked

// scan calls do with every row, in order of hashes. It releases the lock after
// every work slots; a row that exists all the time is seen exactly once, even if the
// table grows meanwhile.
func (sh *shard) scan(work int, do func(p *slot, i int)) {
	from, done := ^uint64(0), false
	for !done {
		from, done = sh.scanSome(from, work, do)
	}
}

// scanSome scans from the first row whose hash is at or after from in their order.
func (sh *shard) scanSome(from uint64, work int, do func(p *slot, i int)) (next uint64, done bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if len(sh.ext) == 0 {
		return 0, true
	}
	i := sh.first(from)
	for stop := i + work; i < sh.top; i++ {
		p := sh.at(i)
		if p.id == 0 {
			continue
		}
		if i >= stop && p.id != sh.at(i-1).id {
			return p.id, false
		}
		do(p, i)
	}
	return 0, true
}

// first returns the slot of the first row whose hash is at or after from in their order.
func (sh *shard) first(from uint64) int {
	i, _ := sh.find(from, 0)
	for i > 0 && sh.at(i-1).id == from { // find stops after rows with the same hash and another tag
		i--
	}
	return i
}

// Keys pages through the live keys of a limit with ListKeys, in byte order. For other
// limits the error is store.ErrNotSupported. Keys that the store held before the limit
// had ListKeys appear after their next call. The shared bucket comes first; to continue
// after it, pass dipwell.Shared as after. A call scans the whole table, at most scanWork
// slots of a shard under one lock.
func (s *Store) Keys(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.KeyState, error) {
	if !d.ListKeys {
		return nil, store.ErrNotSupported
	}
	page := catalog.NewPage(prefix, after, n, func(k *store.KeyState) string { return k.Key })
	now := s.now()
	var buf [cellText + store.MaxKey + cellText]byte
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		sh := &s.shards[i]
		sh.scan(scanWork, func(p *slot, j int) {
			of, ref := s.limits.of(p.handle).limit, sh.refs.get(j)
			b := of.current.Load()
			if ref == 0 || of.name != d.Name || b == nil {
				return
			}
			key := sh.texts.get(ref, buf[:])
			if text := unsafe.String(unsafe.SliceData(key), len(key)); !page.Wants(text) {
				return
			}
			row := store.KeyState{Key: string(key)}
			sh.state(&row.State, j, &place{binding: b})
			row.Lows = nil
			if catalog.Live(d, &row, now) {
				page.Add(row)
			}
		})
	}
	return page.Rows(), nil
}

const sweepDueWork = 256 // keys whose records or overrides ended that are swept under one lock

// Sweep deletes full rows, at most n, and returns how many. It looks at every row
// at most once, and removes records that have ended.
func (s *Store) Sweep(ctx context.Context, n int) (swept int, err error) {
	now := s.now()
	s.reservations.sweep(now)
	s.holds.sweep(now)
	s.topKeys.sweep(now)
	s.usage.sweep()
	for i := range s.shards {
		from, done := ^uint64(0), false
		for !done && swept < n && err == nil {
			var some int
			some, from, done = s.shards[i].sweepFrom(from, now, n-swept)
			swept += some
			err = ctx.Err()
		}
	}
	return swept, err
}

func (sh *shard) sweepFrom(from uint64, now int64, most int) (swept int, next uint64, done bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sweepDue(now, sweepDueWork)
	if len(sh.ext) == 0 {
		return 0, 0, true
	}
	i := sh.first(from)
	for work := 0; i < sh.top; work++ {
		p := sh.at(i)
		if work >= scanWork && p.id != 0 || swept >= most {
			return swept, p.id, false
		}
		if p.id == 0 || !sh.full(p, now) {
			i++
			continue
		}
		sh.remove(i)
		swept++
	}
	return swept, 0, true
}
