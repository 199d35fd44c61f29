package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// limits gives each definition in use a short handle, which rows store. Calls
// look a definition up by pointer, rows by handle.
type limits struct {
	seed    [2]maphash.Seed // seeds for the limits' salts
	recent  [256]atomic.Pointer[binding]
	bound   sync.Map                   // by *store.Definition: *binding
	handles atomic.Pointer[[]handleOf] // read without a lock; readers never see it change, because it is replaced

	mu        sync.Mutex
	byName    map[string]*limit
	forgotten int // number of limits that forget has removed
	after     int // number of handles at which unused ones are searched for

	handlesMu sync.RWMutex // locked after all other locks
	free      []uint32
}

// A limit is all versions with one name, with their plans.
type limit struct {
	name      string
	salt      [2]uint64               // mixed into the hashes of its keys
	current   atomic.Pointer[binding] // binding of the base definition; nil: the limit was dropped, and its rows are void
	last      uint32                  // highest version seen
	bindings  []*binding              // the usable bindings, oldest first
	handles   map[numberOf]uint32     // guarded by handlesMu
	overrides atomic.Int64            // number of keys that have an override
}

// A binding is a definition that calls may use: a base or a plan.
type binding struct {
	def    *store.Definition
	limit  *limit
	salt   [2]uint64
	handle uint32
	dead   atomic.Bool // set once superseded; read under a shard's lock
	takeRule
}

// A numberOf is the number of a definition: see package number. All overrides of a
// limit share overrideNumber, because a key has at most one.
type numberOf struct {
	number uint32
	list   bool // rows under it keep the text of their keys
}

type handleOf struct {
	limit  *limit
	number uint32
}

var overrideNumber = terms.OverrideNumber(0)

const (
	aliveMax  = 4    // definitions of one version of a limit, and of each of its plans, that calls may hold
	firstScan = 4096 // handles
	manyPast  = 64   // versions of a limit after which the rows of older ones are converted: so many steps take 2 µs
	keepPast  = 32   // versions that are kept although no row refers to them, for rows in a decorator
	renewWork = 256  // slots whose rows are converted under one lock, in well below a millisecond
)

func (l *limits) init() {
	l.seed = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	l.byName, l.after = map[string]*limit{}, firstScan
	l.handles.Store(&[]handleOf{{limit: &limit{}}})
}

// bind returns the binding of the limit's present base if the definition was superseded.
func (s *Store) bind(d *store.Definition) (*binding, error) {
	if b := s.limits.cached(d); b != nil && !b.dead.Load() {
		return b, nil
	}
	return s.bindSlow(d)
}

// cached returns a recently used definition's binding, or nil. It is a
// direct-mapped cache in front of the map, without which a Take is 20 % slower.
func (l *limits) cached(d *store.Definition) *binding {
	if b := l.recentOf(d).Load(); b != nil && b.def == d {
		return b
	}
	return nil
}

func (l *limits) recentOf(d *store.Definition) *atomic.Pointer[binding] {
	p := uintptr(unsafe.Pointer(d))
	return &l.recent[(p>>6^p>>14)%256]
}

func (s *Store) bindSlow(d *store.Definition) (*binding, error) {
	if terms.IsOverride(d.Number) { // the op was decided before, under an override
		return s.bind(d.Base())
	}
	l := &s.limits
	b, ok := l.bound.Load(d)
	if !ok {
		s.keepUp(d.Base())
		var err error
		if b, err = s.add(d); err != nil {
			return nil, err
		}
	}
	found := b.(*binding)
	l.recentOf(found.def).Store(found)
	return found, nil
}

// keepUp converts rows to a new version of their limit that no longer knows their own,
// because the store that has the limit has converted all of its rows.
func (s *Store) keepUp(d *store.Definition) {
	cur := s.limits.currentOf(d.Name)
	if cur == nil || cur.def.Number >= d.Number {
		return
	}
	first := d.Number
	if len(d.Past) > 0 {
		first = d.Past[0].Number
	}
	l := &s.limits
	l.handlesMu.RLock()
	older := false
	for n := range cur.limit.handles {
		older = older || !terms.IsOverride(n.number) && terms.VersionOf(n.number) < first
	}
	l.handlesMu.RUnlock()
	if older {
		_ = s.InstallOne(continued(cur.def, d))
		s.collect()
	}
}

// continued returns d with the older versions that cur, a version before it, knows and d does not.
func continued(cur, d *store.Definition) *store.Definition {
	past := append(slices.Clone(cur.Past), &store.Version{Number: cur.Number, Since: cur.Since, Rule: cur.Rule, Policy: cur.Policy, Limit: cur.Limit})
	if len(d.Past) > 0 {
		past = slices.DeleteFunc(past, func(v *store.Version) bool { return v.Number >= d.Past[0].Number })
	}
	return &store.Definition{Limit: d.Limit, Owner: d.Owner, Overridden: d.Overridden, Number: d.Number, Since: d.Since, Rule: d.Rule, Policy: d.Policy, Past: append(past, d.Past...), Paths: d.Paths}
}

// add binds a definition, or returns the base that has superseded it.
func (s *Store) add(d *store.Definition) (any, error) {
	l := &s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.named(d.Name)
	cur := of.current.Load()
	if cur == nil && of.last >= d.Base().Number {
		return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
	}
	if cur != nil && cur.def.Number > d.Base().Number {
		return cur, nil
	}
	for _, b := range of.bindings {
		if b.def == d {
			return b, nil
		}
	}
	if of.last < d.Base().Number || len(of.bindings) >= aliveMax*(1+len(d.Base().Plans.All())) {
		l.end(of)
		cur = nil // its binding has ended too
	}
	of.last = d.Base().Number
	if base := d.Base(); base == d || cur == nil || cur.def.Number < base.Number {
		of.current.Store(l.alive(of, base))
		if r := s.reg.Lookup(base.Name); r == nil || r.Number < base.Number { // the limits are kept in another store
			s.reg.InstallOne(base.Name, []*store.Definition{base})
		}
		if base == d {
			return of.current.Load(), nil
		}
	}
	return l.alive(of, d), nil
}

func (l *limits) alive(of *limit, d *store.Definition) *binding {
	b := &binding{def: d, limit: of, salt: of.salt, handle: l.handle(of, numberOf{d.Number, d.ListKeys}), takeRule: newTakeRule(d)}
	of.bindings = append(of.bindings, b)
	l.bound.Store(d, b)
	return b
}

func (l *limits) named(name string) *limit {
	of := l.byName[name]
	if of == nil {
		of = &limit{name: name, handles: map[numberOf]uint32{}}
		id := name + "\x00" + strconv.Itoa(l.forgotten) // renamed so that rows of a forgotten limit are not found
		of.salt = [2]uint64{maphash.String(l.seed[0], id), maphash.String(l.seed[1], id)}
		l.byName[name] = of
	}
	return of
}

// end makes the bindings unusable. Calls check that under their shard's lock.
func (l *limits) end(of *limit) {
	for _, b := range of.bindings {
		b.dead.Store(true)
		l.bound.Delete(b.def)
		l.recentOf(b.def).CompareAndSwap(b, nil) // otherwise the cache would keep the definition in memory
	}
	of.bindings = nil
}

func (l *limits) handle(of *limit, n numberOf) uint32 {
	if terms.IsOverride(n.number) {
		n.number = overrideNumber
	}
	l.handlesMu.RLock()
	h, ok := of.handles[n]
	l.handlesMu.RUnlock()
	if ok {
		return h
	}
	l.handlesMu.Lock()
	defer l.handlesMu.Unlock()
	if h, ok := of.handles[n]; ok {
		return h
	}
	all := *l.handles.Load()
	h = uint32(len(all))
	if n := len(l.free); n > 0 {
		h, l.free = l.free[n-1], l.free[:n-1]
		all = slices.Clone(all)
	} else {
		all = append(all, handleOf{})
	}
	all[h] = handleOf{of, n.number}
	l.handles.Store(&all)
	of.handles[n] = h
	return h
}

func (l *limits) of(handle uint32) *handleOf { return &(*l.handles.Load())[handle&^marks] }

func (l *limits) currentOf(name string) *binding {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.byName[name]; of != nil {
		return of.current.Load()
	}
	return nil
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

// forget is drop for a limit after which the name may get any version.
func (l *limits) forget(name string) {
	l.drop(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.byName[name]; of != nil {
		l.forgotten++
		l.byName["\x00"+strconv.Itoa(l.forgotten)] = of // kept until no row has its handles
		delete(l.byName, name)
	}
}

// Define changes a limit at the present instant of the store's clock.
func (s *Store) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
	if s.isClosed() {
		return nil, ErrClosed
	}
	s.fitting.Lock()
	defer s.fitting.Unlock()
	d, err := s.reg.Define(s.now(), l, owner)
	if err != nil {
		return nil, err
	}
	if cur := s.limits.currentOf(l.Name); cur != nil && cur.def.Number == d.Number && cur.def.Limit == d.Limit {
		return d, nil // at most the owner has changed: the first call with d binds it
	}
	if _, err = s.add(d); err != nil {
		return nil, err
	}
	if len(d.Past)%manyPast == manyPast-1 || s.limits.crowded() { // if rows could not be converted, this is tried again at every manyPast-th change
		s.collect()
		d = s.reg.Lookup(l.Name)
	}
	return d, nil
}

// Drop ends a limit. Its rows are reclaimed as others need their room.
func (s *Store) Drop(_ context.Context, name, owner string) error {
	if s.isClosed() {
		return ErrClosed
	}
	err := s.reg.Drop(name, owner)
	if err == nil {
		s.Remove(name)
		s.usage.sweep()
	}
	return err
}

func (l *limits) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handlesMu.RLock()
	defer l.handlesMu.RUnlock()
	return len(*l.handles.Load())-len(l.free) > l.after
}

// collect converts the rows of older versions to the present one, and forgets the
// versions that no row refers to then. No row can refer to one of them later: while a call
// holds the shard's lock, it has either the present version from the registry or a
// binding that is not dead.
func (s *Store) collect() {
	now := s.now()
	s.eachExtras(func(sh *shard, k *keyExtras) {
		if b := k.current.Load(); b != nil && sh.oldest(k) < b.def.Number {
			sh.sweepKey(k, b, now)
		}
	})
	l := &s.limits
	l.mu.Lock()
	used := make([]bool, len(*l.handles.Load()))
	for i := range s.shards {
		sh := &s.shards[i]
		sh.scan(renewWork, func(p *slot, j int) {
			sh.renew(p, j, now)
			if h := p.handle &^ marks; int(h) < len(used) {
				used[h] = true
			}
		})
	}
	oldest := l.retire(used)
	l.mu.Unlock()
	s.eachExtras(func(sh *shard, k *keyExtras) {
		if v, ok := oldest[k.name]; ok {
			oldest[k.name] = min(v, sh.oldest(k))
		}
	})
	for name, version := range oldest {
		if d := s.reg.Lookup(name); d != nil && d.Number > keepPast {
			s.reg.Retire(name, min(version, d.Number-keepPast))
		}
		if d := s.reg.Lookup(name); d != nil {
			_, _ = s.add(d)
		}
	}
}

// renew converts the row at i to the present version of its limit, if it is of an older
// one. A row stays as it is if its windows are spread by a key that the table does not
// know: its next call converts it.
func (sh *shard) renew(p *slot, i int, now int64) {
	h := sh.store.limits.of(p.handle)
	b := h.limit.current.Load()
	if b == nil || p.handle&marks != 0 || terms.IsOverride(h.number) || terms.VersionOf(h.number) >= b.def.Number {
		return
	}
	key, text := "", sh.refs.get(i)
	if text != 0 {
		key = string(sh.texts.get(text, nil))
	}
	if row, ok := b.def.Renew(store.State{Used: p.used, TS: p.ts, Version: h.number}, key, sh.phases.get(i), now); ok {
		p.used, p.ts = row.Used, row.TS
		p.handle = sh.store.limits.handle(h.limit, numberOf{row.Version, b.def.ListKeys && text != 0})
	}
}

// retire frees the handles that neither rows nor calls use. retire keeps those of the
// present version, because a row may get one without a binding. retire returns the oldest
// version in use of each limit that has past versions.
func (l *limits) retire(used []bool) map[string]uint32 {
	l.handlesMu.Lock()
	defer l.handlesMu.Unlock()
	oldest := map[string]uint32{}
	for name, of := range l.byName {
		for _, b := range of.bindings {
			used[b.handle] = true
		}
		cur, low := of.current.Load(), of.last
		for n, h := range of.handles {
			switch version := terms.VersionOf(n.number); {
			case cur != nil && (terms.IsOverride(n.number) || version >= of.last) || int(h) >= len(used): // the handle was made after the scan
			case used[h]:
				if !terms.IsOverride(n.number) {
					low = min(low, version)
				}
			default:
				delete(of.handles, n)
				l.free = append(l.free, h)
			}
		}
		if cur != nil && len(cur.def.Past) > 0 {
			oldest[name] = low
		} else if cur == nil && len(of.handles) == 0 {
			delete(l.byName, name)
		}
	}
	l.after = max(firstScan, 2*(len(used)-len(l.free)))
	return oldest
}
