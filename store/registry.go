package store

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dipwell/dipwell/internal/terms"
)

// maxVersions bounds Definition.Past, because a row is stepped through each version. The
// bound is for stores that do not call Retire earlier.
const maxVersions = 1024

// A Registry holds the limits of a store. Its methods are safe for concurrent use: Lookup
// never waits, and changes happen one at a time. The zero Registry is empty and ready to use.
//
// A store whose limits are in this process calls Define and Drop. A store that keeps its
// limits elsewhere reads and compiles them, and calls Install with all of them after each
// change.
//
//	var limits store.Registry
//	_, err := limits.Define(now, store.Limit{Name: "login", Rate: 5, Period: time.Minute}, store.OwnerCode)
//	def := limits.Lookup("login") // nil if there is no such limit
type Registry struct {
	// Unreadable is called for names that Lookup does not find. It returns an error if the store
	// has such a limit but cannot read it, for example because a newer program has defined it.
	// Set it before the registry is used; nil means that all limits can be read.
	Unreadable func(name string) error

	// Partial is set before use if the registry has only some of the store's limits: then
	// Define and Drop do not check parents, and the caller must.
	Partial bool

	// EachOverride is set before use by a store with overrides. It calls check for each
	// override of a limit, in any order; overrides that have ended may be among them. Define
	// calls it before a change under which an override may not fit, and refuses the change
	// if one does not: from that call until the store has the definition, no override of the
	// limit may be set under the one before.
	EachOverride func(limit string, check func(o *Override)) error

	mu      sync.Mutex // held while EachOverride waits for calls: no code of a decision may lock it
	dropped sync.Map   // by name, a uint32: the last version of each dropped limit, so that numbers never repeat

	names    sync.RWMutex // held while definitions are published, so that All sees those of one instant
	children map[string]int
	byName   sync.Map                               // by name: *Definition
	cache    [cacheSlots]atomic.Pointer[Definition] // a direct-mapped cache of byName, without which a Take in memory is 6 % slower
}

const cacheSlots = 64

func cacheSlot(name string) uint {
	n := uint(len(name))
	return n + 5*uint(name[0]) + 3*uint(name[n-1]) + 7*uint(name[n/2])
}

// Lookup returns the present base definition of a limit, or nil if there is none, and takes no
// lock. A definition never changes; after a change of the limit there is a new one: look it up
// for each call.
func (r *Registry) Lookup(name string) *Definition {
	if name == "" {
		return nil
	}
	if d := r.cache[cacheSlot(name)%cacheSlots].Load(); d != nil && sameString(d.Name, name) {
		return d
	}
	d, _ := r.byName.Load(name)
	def, _ := d.(*Definition)
	return def
}

// sameString reports whether a == b. If both are the same constant, it avoids the call of a
// comparison function.
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
	r.names.RLock()
	defer r.names.RUnlock()
	var all []*Definition
	for _, d := range r.byName.Range {
		all = append(all, d.(*Definition))
	}
	slices.SortFunc(all, func(a, b *Definition) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Define adds or changes a limit at the time now, in µs on the store's clock, and
// returns its definition. If the change affects how calls are counted, a new
// version begins, and rows of older versions are converted at their next call.
//
// by is the owner of the limit, such as OwnerCode. The error is a *FieldError if l or its
// Parent is invalid (see CheckParents) or an override would not fit (see EachOverride). It
// wraps ErrOwner if the limit has another owner.
//
// Defining a limit again without a difference, by the same owner, changes nothing. A new
// version begins at now, or if the clock has stepped back, when the version before began.
// If a limit is defined again after Drop, its versions continue with the next number, so
// that no old row can be taken for one of the new limit. A limit has at most 2^20-1 versions.
func (r *Registry) Define(now int64, l Limit, by string) (*Definition, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.Lookup(l.Name)
	if old != nil && old.Limit == l {
		return r.give(old, by)
	}
	d, err := NewDefinition(l)
	if err != nil {
		return nil, err
	}
	if by == terms.OwnerCallSite {
		if old != nil {
			return old, nil
		}
		by = terms.OwnerCode
	}
	if err := r.CheckParents(&l); err != nil {
		return nil, err
	}
	d.Owner, d.Since, d.Number = by, now, r.lastDropped(l.Name)+1
	if old != nil {
		if err := checkOwner(l.Name, old.Owner, by); err != nil {
			return nil, err
		}
		if (old.Algorithm == Concurrency) != (l.Algorithm == Concurrency) {
			return nil, &FieldError{Limit: l.Name, Field: "algorithm", Reason: fmt.Sprintf("%s cannot become %s, because what is used means something else; drop the limit first", old.Algorithm, l.Algorithm)}
		}
		d.Overridden = d.Overridden || old.Overridden
		d.setVersion(old, now)
		if d.Number > terms.MaxVersion {
			return nil, &FieldError{Limit: l.Name, Field: "version", Reason: "was changed 1048575 times; drop it and define it again"}
		}
		if len(d.Past) > maxVersions {
			return nil, &FieldError{Limit: l.Name, Field: "version", Reason: "was changed more than 1024 times while its keys were in use; wait until they fill up"}
		}
		if err := d.checkFit(old, now, r.EachOverride); err != nil {
			return nil, err
		}
	}
	r.store(l.Name, d)
	return r.Lookup(l.Name), nil
}

// give gives a limit another owner, and changes nothing else. A new revision of a file gives
// each of its limits one.
func (r *Registry) give(old *Definition, by string) (*Definition, error) {
	if old.Owner == by || by == terms.OwnerCallSite {
		return old, nil
	}
	if err := checkOwner(old.Name, old.Owner, by); err != nil {
		return nil, err
	}
	d := *old
	d.Owner, d.plans = by, nil
	r.store(d.Name, &d)
	return &d, nil
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
	r.dropped.Store(name, old.Number)
	r.store(name, nil)
	return nil
}

// hasDropped reports whether Drop has removed the limit that a definition belongs to.
func (r *Registry) hasDropped(d *Definition) bool { return d.Number <= r.lastDropped(d.Name) }

// lastDropped returns the last version of a dropped name, or 0.
func (r *Registry) lastDropped(name string) uint32 {
	last, _ := r.dropped.Load(name)
	n, _ := last.(uint32)
	return n
}

// Install replaces all definitions, for stores that keep their limits elsewhere.
// Install checks neither owners nor parents, and still remembers the version numbers of
// dropped limits. The definitions must not change afterwards.
func (r *Registry) Install(defs []*Definition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := make(map[string]bool, len(defs))
	for _, d := range defs {
		keep[d.Name] = true
	}
	old := r.All()
	r.names.Lock()
	defer r.names.Unlock()
	for _, d := range defs {
		r.change(d.Name, d)
	}
	for _, d := range old {
		if !keep[d.Name] {
			r.change(d.Name, nil)
		}
	}
}

// InstallOne replaces the definition of one limit by that in defs. If defs is empty, it removes
// the limit. All else is as in Install.
func (r *Registry) InstallOne(name string, defs []*Definition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var d *Definition
	if len(defs) > 0 {
		d = defs[0]
	}
	r.store(name, d)
}

// store publishes the definition of a limit, or removes the limit if d is nil. r.mu is held.
func (r *Registry) store(name string, d *Definition) {
	r.names.Lock()
	defer r.names.Unlock()
	r.change(name, d)
}

// change works like store, and also publishes parents that have got their first child or
// lost their last. r.names is held.
func (r *Registry) change(name string, d *Definition) {
	old := r.Lookup(name)
	if d == old {
		return
	}
	if r.children == nil {
		r.children = map[string]int{}
	}
	count := func(d *Definition, n int) {
		if d == nil || d.Parent == "" {
			return
		}
		if r.children[d.Parent] += n; r.children[d.Parent] == 0 {
			delete(r.children, d.Parent)
		}
		if p := r.Lookup(d.Parent); p != nil && d.Parent != name {
			r.publish(p.Name, p)
		}
	}
	count(d, 1)
	count(old, -1)
	r.publish(name, d)
}

// publish sets Paths of a definition that others may have seen, and lets calls find it.
func (r *Registry) publish(name string, d *Definition) {
	if d != nil {
		if paths := d.Parent != "" || d.Parts != 0 || r.children[name] > 0; paths != d.Paths {
			if d.plans != nil { // published
				c := *d
				d, c.plans = &c, nil
			}
			d.Paths = paths
		}
		d.publish()
		r.byName.Store(name, d)
	} else {
		r.byName.Delete(name)
	}
	cached := &r.cache[cacheSlot(name)%cacheSlots]
	if c := cached.Load(); d != nil || c != nil && c.Name == name {
		cached.Store(d)
	}
}

// Retire removes the versions of a limit before oldest from its past. Call Retire when no
// row is of such a version, for example after SweepRow for each row of an older one: any
// row left becomes a full bucket at its next call. Unknown limits are ignored. If a store
// never calls Retire, a limit can be changed about 1024 times.
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
		d.Policy = StartOver // the number of rows per key changed, so the keys of rows name other shards
	}
	d.Number, d.Since = old.Number+1, max(now, old.Since)
	d.Past = append(slices.Clone(old.Past), &Version{Number: old.Number, Since: old.Since, Rule: old.Rule, Policy: old.Policy, Limit: old.Limit})
}

// sameCounting reports whether a change from a to b begins no new version: rows keep their
// meaning without a conversion, and programs that have not heard of it may decide them. Such
// programs would begin no block, or one of another length.
func sameCounting(a, b *Definition) bool {
	ra, rb := a.Rule, b.Rule
	ra.Calendar, rb.Calendar = nil, nil // calendars are compiled from Start and Period, which are compared
	if ra != rb || a.Shared != b.Shared || max(a.Shards, 1) != max(b.Shards, 1) || a.Start != b.Start || a.Period != b.Period || a.Block != b.Block {
		return false
	}
	// Plans and overrides depend on the settings as written, not on the rule compiled
	// from them.
	return !a.Overridden && !b.Overridden && a.Plans == (Plans{}) && b.Plans == (Plans{}) ||
		a.Plans == b.Plans && a.Lease == b.Lease && a.Rate == b.Rate && a.Burst == b.Burst && a.MaxDebt == b.MaxDebt
}
