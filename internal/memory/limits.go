package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dipwell/dipwell/store"
)

// limits gives each definition in use a short handle, which rows store. Calls
// look a definition up by pointer, rows by handle.
type limits struct {
	seed    [2]maphash.Seed // of the salts
	recent  [256]atomic.Pointer[binding]
	bound   sync.Map                   // *store.Definition → *binding
	handles atomic.Pointer[[]handleOf] // read without a lock; replaced, never changed where it can be read

	mu     sync.Mutex
	byName map[string]*limit
	free   []uint32
	after  int // handles at which the unused ones are looked for
}

// A limit is all versions of a name.
type limit struct {
	name     string
	salt     [2]uint64               // mixed into the hashes of its keys
	current  atomic.Pointer[binding] // nil: dropped, and its rows are void
	last     uint32                  // the highest version seen
	bindings []*binding              // alive, oldest first
	handles  map[versionOf]uint32
}

// A binding is a definition that calls may use.
type binding struct {
	def    *store.Definition
	limit  *limit
	salt   [2]uint64
	handle uint32
	dead   atomic.Bool // superseded; read under a shard's lock
	takeRule
}

type versionOf struct {
	number uint32
	list   bool // a row of it has its key's text
}

type handleOf struct {
	limit   *limit
	version uint32
}

const (
	aliveMax  = 8    // definitions of one version of a limit that calls may hold
	firstScan = 4096 // handles
	manyPast  = 512  // versions after which the oldest are retired
)

func (l *limits) init() {
	l.seed = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	l.byName, l.after = map[string]*limit{}, firstScan
	l.handles.Store(&[]handleOf{{limit: &limit{}}})
}

// bind returns the binding of the op's definition. A definition that has been
// superseded is replaced in the op.
func (l *limits) bind(op *store.Op) (*binding, error) {
	if b := l.cached(op.Def); b != nil && !b.dead.Load() {
		return b, nil
	}
	return l.bindSlow(op)
}

// cached returns a recently used definition's binding, or nil. It is a
// direct-mapped cache in front of the map, without which a Take is 20 % slower.
func (l *limits) cached(d *store.Definition) *binding {
	p := uintptr(unsafe.Pointer(d))
	if b := l.recent[(p>>6^p>>14)%256].Load(); b != nil && b.def == d {
		return b
	}
	return nil
}

func (l *limits) bindSlow(op *store.Op) (*binding, error) {
	b, ok := l.bound.Load(op.Def)
	if !ok {
		var err error
		if b, err = l.add(op.Def); err != nil {
			return nil, err
		}
	}
	found := b.(*binding)
	op.Def = found.def
	p := uintptr(unsafe.Pointer(op.Def))
	l.recent[(p>>6^p>>14)%256].Store(found)
	return found, nil
}

// add binds a definition, or returns the one that has superseded it.
func (l *limits) add(d *store.Definition) (any, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.named(d.Name)
	cur := of.current.Load()
	if cur == nil && of.last >= d.Number {
		return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
	}
	if cur != nil && cur.def.Number > d.Number {
		return cur, nil
	}
	for _, b := range of.bindings {
		if b.def == d {
			return b, nil
		}
	}
	if of.last < d.Number || len(of.bindings) >= aliveMax {
		l.end(of)
	}
	b := &binding{def: d, limit: of, salt: of.salt, handle: l.handle(of, versionOf{d.Number, d.ListKeys}), takeRule: newTakeRule(d)}
	of.last, of.bindings = d.Number, append(of.bindings, b)
	of.current.Store(b)
	l.bound.Store(d, b)
	return b, nil
}

func (l *limits) named(name string) *limit {
	of := l.byName[name]
	if of == nil {
		of = &limit{name: name, handles: map[versionOf]uint32{}}
		of.salt = [2]uint64{maphash.String(l.seed[0], name), maphash.String(l.seed[1], name)}
		l.byName[name] = of
	}
	return of
}

// end makes the limit's bindings unusable. Calls that hold one check for this
// under their shard's lock.
func (l *limits) end(of *limit) {
	for _, b := range of.bindings {
		b.dead.Store(true)
		l.bound.Delete(b.def)
	}
	of.bindings = nil
}

func (l *limits) handle(of *limit, v versionOf) uint32 {
	if h, ok := of.handles[v]; ok {
		return h
	}
	all := *l.handles.Load()
	h := uint32(len(all))
	if n := len(l.free); n > 0 {
		h, l.free = l.free[n-1], l.free[:n-1]
		all = slices.Clone(all)
		all[h] = handleOf{of, v.number}
	} else {
		all = append(all, handleOf{of, v.number})
	}
	l.handles.Store(&all)
	of.handles[v] = h
	return h
}

// drop ends a limit. Its rows no longer count.
func (l *limits) drop(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.byName[name]; of != nil {
		l.end(of)
		of.current.Store(nil)
	}
}

// Define changes a limit at the present instant of the store's clock.
func (s *Store) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
	d, err := s.reg.Define(s.now(), l, owner)
	if err != nil {
		return nil, err
	}
	if _, err = s.limits.add(d); err != nil {
		return nil, err
	}
	if len(d.Past) > manyPast || s.limits.crowded() {
		s.collect()
		d = s.reg.Lookup(l.Name)
	}
	return d, nil
}

// Drop ends a limit. Its rows are reclaimed as others need their room.
func (s *Store) Drop(_ context.Context, name, owner string) error {
	err := s.reg.Drop(name, owner)
	if err == nil {
		s.limits.drop(name)
		s.ForgetReservations(name)
	}
	return err
}

// ForgetReservations drops the reservations that hold tokens of a limit, and its
// records, for a store whose definitions are kept by another.
func (s *Store) ForgetReservations(limit string) {
	s.reservations.drop(limit)
	s.dropLimitRecords(limit)
}

func (l *limits) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(*l.handles.Load())-len(l.free) > l.after
}

// collect forgets the versions that no row names. No row can name one of them
// later: the bindings that could write it were dead before its shard was scanned.
func (s *Store) collect() {
	l := &s.limits
	l.mu.Lock()
	all := *l.handles.Load()
	used := make([]bool, len(all))
	for i := range s.shards {
		s.shards[i].scan(func(p *slot, _ int) { used[p.handle&^withLows] = true })
	}
	oldest := l.retire(used)
	l.mu.Unlock()
	s.eachRecord(func(limit string, version uint32) {
		if v, ok := oldest[limit]; ok && version < v {
			oldest[limit] = version
		}
	})
	for name, version := range oldest {
		s.reg.Retire(name, version)
		if d := s.reg.Lookup(name); d != nil {
			_, _ = l.add(d)
		}
	}
}

// retire frees the handles that neither rows nor calls use, and returns the
// oldest version in use of each limit that has a past.
func (l *limits) retire(used []bool) map[string]uint32 {
	oldest := map[string]uint32{}
	for name, of := range l.byName {
		for _, b := range of.bindings {
			used[b.handle] = true
		}
		low := of.last
		for v, h := range of.handles {
			if !used[h] {
				delete(of.handles, v)
				l.free = append(l.free, h)
			} else {
				low = min(low, v.number)
			}
		}
		if cur := of.current.Load(); cur != nil && len(cur.def.Past) > 0 {
			oldest[name] = low
		} else if cur == nil && len(of.handles) == 0 {
			delete(l.byName, name)
		}
	}
	l.after = max(firstScan, 2*(len(used)-len(l.free)))
	return oldest
}
