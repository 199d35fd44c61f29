package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dipwell/dipwell/internal/terms"
)

// maxVersions bounds Definition.Past, because a row is stepped through each version. It is
// for stores that do not call Retire before.
const maxVersions = 1024

// A Registry holds the limits of a store. Its methods are safe for concurrent use:
// Lookup never waits, and changes happen one at a time. The zero Registry is empty
// and ready to use.
//
// A store whose limits are in this process calls Define and Drop. One that keeps them
// elsewhere reads them there, compiles them, and calls Install with all of them after each
// change.
//
//	var limits store.Registry
//	_, err := limits.Define(now, store.Limit{Name: "login", Rate: 5, Period: time.Minute}, store.OwnerCode)
//	def := limits.Lookup("login") // nil if there is no such limit
type Registry struct {
	// Unreadable returns an error if the store has a limit of this name but cannot read
	// it, for example because a newer program has defined it. It returns nil if there is
	// no such limit. It is called for names that Lookup does not find. Set it before the
	// registry is used. If it is nil, all limits can be read.
	Unreadable func(name string) error

	// Partial is set before use if the registry has only some of the store's limits: then
	// Define and Drop do not check parents, and the caller must.
	Partial bool

	mu      sync.Mutex
	current atomic.Pointer[snapshot]
	dropped map[string]uint32 // the last version of each dropped name, so that numbers never repeat
}

// A snapshot is all limits at one time. It never changes.
type snapshot struct {
	byName map[string]*Definition
	cache  [cacheSlots]*Definition // a direct-mapped cache in front of byName, without which a Take in memory is 6 % slower
}

const cacheSlots = 64

func newSnapshot(m map[string]*Definition) *snapshot {
	s := &snapshot{byName: m}
	markPaths(m)
	for name, d := range m {
		d.publish()
		s.cache[cacheSlot(name)%cacheSlots] = d
	}
	return s
}

func cacheSlot(name string) uint {
	n := uint(len(name))
	return n + 5*uint(name[0]) + 3*uint(name[n-1]) + 7*uint(name[n/2])
}

// Lookup returns the present definition of a limit, or nil if there is none. It is the
// base definition; Definition.WithPlan has those of its plans. It takes no lock. A
// definition never changes, so a caller may keep it, but after a change of the limit
// there is a new one: look it up for each call.
func (r *Registry) Lookup(name string) *Definition {
	s := r.current.Load()
	if s == nil || name == "" {
		return nil
	}
	if d := s.cache[cacheSlot(name)%cacheSlots]; d != nil && sameString(d.Name, name) {
		return d
	}
	return s.byName[name]
}

// sameString reports whether a == b. It saves a call if both are the same constant.
func sameString(a, b string) bool {
	return len(a) == len(b) && (unsafe.StringData(a) == unsafe.StringData(b) || a == b)
}

// Missing returns the error for a name that Lookup did not find: an
// ErrUnknownLimit with the name, or why the limit could not be read. Return it rather
// than ErrUnknownLimit, so that a store whose limits are not loaded yet says so.
func (r *Registry) Missing(name string) error {
	if r.Unreadable != nil {
		if err := r.Unreadable(name); err != nil {
			return err
		}
	}
	return unknownLimit(name)
}

// All returns the base definitions of all limits at one instant, sorted by name.
func (r *Registry) All() []*Definition {
	s := r.current.Load()
	if s == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(s.byName), func(a, b *Definition) int { return strings.Compare(a.Name, b.Name) })
}

// Define adds or changes a limit at the time now, in µs on the store's clock, and
// returns its definition. If the change affects how calls are counted, a new
// version begins, and rows of older versions are converted at their next call.
//
// by is the owner of the limit, such as OwnerCode. The error is a *FieldError if l or its
// Parent is invalid, and wraps ErrOwner if the limit has another owner. The Parent must be
// defined; no limit is its own parent, over any number of levels; no chain has more than
// 4 limits; a Concurrency limit has a Concurrency limit as parent, and is the parent of no
// other algorithm.
//
// Defining a limit again without a difference, by the same owner, changes nothing. A new
// version begins at now, or if the clock has stepped back, when the version before began.
// If a limit is defined again after Drop, its versions continue with the next number, so
// that no old row can be taken for one of the new limit. It has at most 2^20-1 versions.
func (r *Registry) Define(now int64, l Limit, by string) (*Definition, error) {
	d, err := NewDefinition(l)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.Lookup(l.Name)
	if by == terms.OwnerCallSite {
		if old != nil {
			return old, nil
		}
		by = terms.OwnerCode
	}
	if err := r.CheckParents(&l); err != nil {
		return nil, err
	}
	d.Owner, d.Since, d.Number = by, now, r.dropped[l.Name]+1
	if old != nil {
		if err := checkOwner(l.Name, old.Owner, by); err != nil {
			return nil, err
		}
		if old.Limit == l && old.Owner == by {
			return old, nil
		}
		if (old.Algorithm == Concurrency) != (l.Algorithm == Concurrency) {
			return nil, &FieldError{Limit: l.Name, Field: "algorithm", Reason: fmt.Sprintf("%s cannot become %s, because what is used means something else; drop the limit first", old.Algorithm, l.Algorithm)}
		}
		d.Overridden = old.Overridden
		d.setVersion(old, now)
		if d.Number > terms.MaxVersion {
			return nil, &FieldError{Limit: l.Name, Field: "version", Reason: "was changed 1048575 times; drop it and define it again"}
		}
		if len(d.Past) > maxVersions {
			return nil, &FieldError{Limit: l.Name, Field: "version", Reason: "was changed more than 1024 times while its keys were in use; wait until they fill up"}
		}
	}
	r.store(l.Name, d)
	return r.Lookup(l.Name), nil
}

// Drop removes a limit of the owner by. If a limit of this name is defined again, its
// buckets are full. The error wraps ErrUnknownLimit or ErrOwner, or is a *FieldError if
// the limit is the Parent of another. The store must delete the rows, with the records and
// overrides of their keys; SweepRow does so for each key.
func (r *Registry) Drop(name, by string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.Lookup(name)
	if old == nil {
		return unknownLimit(name)
	}
	if terms.OwnerName(old.Owner) != terms.OwnerName(by) {
		return &terms.OwnerError{Limit: name, Owner: old.Owner}
	}
	if err := r.CheckDrop(name); err != nil {
		return err
	}
	if r.dropped == nil {
		r.dropped = map[string]uint32{}
	}
	r.dropped[name] = old.Number
	r.store(name, nil)
	return nil
}

// hasDropped reports whether Drop has removed the limit that a definition belongs to.
func (r *Registry) hasDropped(d *Definition) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, dropped := r.dropped[d.Name]
	return dropped && d.Number <= last
}

// Install replaces all definitions, for stores that keep their limits elsewhere. It
// checks neither owners nor parents, and still remembers the version numbers of dropped
// limits. The definitions must not change afterwards.
func (r *Registry) Install(defs []*Definition) {
	m := make(map[string]*Definition, len(defs))
	for _, d := range defs {
		m[d.Name] = d
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.Store(newSnapshot(m))
}

// store publishes the definition of a limit, or removes the limit if d is nil. r.mu is held.
func (r *Registry) store(name string, d *Definition) {
	m := map[string]*Definition{}
	if old := r.current.Load(); old != nil {
		m = maps.Clone(old.byName)
	}
	if d == nil {
		delete(m, name)
	} else {
		m[name] = d
	}
	r.current.Store(newSnapshot(m))
}

// Retire removes the versions of a limit before oldest from its past. Call it when no row
// is of such a version, for example after SweepRow for each row of an older one: any that
// is left becomes a full bucket at its next call. Unknown limits are ignored. In a store
// that never calls it, a limit can be changed about 1024 times.
func (r *Registry) Retire(name string, oldest uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.Lookup(name)
	if old == nil || len(old.Past) == 0 || old.Past[0].Number >= oldest {
		return
	}
	d := *old
	d.Past = slices.DeleteFunc(slices.Clone(old.Past), func(v *Version) bool { return v.Number < oldest })
	r.store(name, &d)
}

// setVersion gives d its version: the one after old, or the same one if both count alike.
func (d *Definition) setVersion(old *Definition, now int64) {
	if sameCounting(old, d) {
		d.Number, d.Since, d.Policy, d.Past = old.Number, old.Since, old.Policy, old.Past
		return
	}
	if max(old.Shards, 1) != max(d.Shards, 1) {
		d.Policy = StartOver // the keys of rows name other shards now
	}
	d.Number, d.Since = old.Number+1, max(now, old.Since)
	d.Past = append(slices.Clone(old.Past), &Version{Number: old.Number, Since: old.Since, Rule: old.Rule, Policy: old.Policy, Limit: old.Limit})
}

// sameCounting reports whether a change from a to b begins no new version: rows keep their
// meaning without a conversion.
func sameCounting(a, b *Definition) bool {
	ra, rb := a.Rule, b.Rule
	ra.Calendar, rb.Calendar = nil, nil // they are compiled from Start and Period
	if ra != rb || a.Shared != b.Shared || max(a.Shards, 1) != max(b.Shards, 1) || a.Start != b.Start || a.Period != b.Period {
		return false
	}
	// Plans and overrides depend on the settings as written, not on the rule compiled
	// from them.
	return !a.Overridden && !b.Overridden && a.Plans == (Plans{}) && b.Plans == (Plans{}) ||
		a.Plans == b.Plans && a.Lease == b.Lease && a.Rate == b.Rate && a.Burst == b.Burst && a.MaxDebt == b.MaxDebt
}
