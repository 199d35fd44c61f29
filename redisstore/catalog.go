package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// limits holds the limits of one Redis server or cluster. The limits are in a hash with a
// field for each limit; the field "" has the revision.
type limits struct {
	s       *Store
	config  Config
	reg     store.Registry
	entries atomic.Pointer[map[string]*entry]

	revision atomic.Int64      // the revision that was read last; or, after a change that showed that the server had lost others, one later than the server's
	fields   map[string]string // fields of the limits in force
	read     map[string]string // fields as last read, for Install
}

var _ catalog.Backend = (*limits)(nil)

// An entry is a limit, with the values that its scripts need.
type entry struct {
	def   *store.Definition
	names *names
	begin string // beginning of the names of its buckets
	even  bool   // all its windows have the same length, and a take only takes tokens
	plans map[string]*entry
	until any // for scripts: when override ends; forever; or "" without an override

	override *store.Override // the override from which def is made, or nil
	parts    int             // in a cluster, for a limit with a parent: how many parts of its keys belong to the topmost limit; otherwise wholeKey
}

func (e *entry) row(key string) string { return e.names.keyWith(e.begin, key, e.parts) }

func newLimits(s *Store, c Config) *limits {
	l := &limits{s: s, config: c}
	l.entries.Store(&map[string]*entry{})
	return l
}

// catalog returns the catalogue of these limits.
func (l *limits) catalog() *catalog.Catalog {
	return catalog.New(l, &l.reg, catalog.Config{Lazy: l.config.Lazy, WaitForAccess: l.config.WaitForAccess,
		Report: func(err error) { l.config.OnError(changeError(err, false)) },
		Unread: func(err error) error {
			if err == nil {
				return errUnread
			}
			return fmt.Errorf("%w: %w", errUnread, err)
		},
		Error:       func(err error) error { return storeError(err, false) },
		Unavailable: unavailable,
		Denied:      noAccess,
		Unfit:       func(err error) bool { return errors.As(err, new(*evictionError)) },
	})
}

// errUnread is the error of calls before the limits were read for the first time.
var errUnread = fmt.Errorf("%w: Redis could not be reached yet", store.ErrStore)

func (l *limits) entry(name string) *entry { return (*l.entries.Load())[name] }

// resolve finds the entries that decide a group, as far as this program knows: entries
// of overrides that it remembers, or else those that the ops name.
func (l *limits) resolve(ctx context.Context, g *store.Group, out []*entry) (err error) {
	for i := range g.Ops {
		op := &g.Ops[i]
		if out[i], err = l.named(ctx, op); err != nil {
			return err
		}
		if e := l.overriding(out[i], op); e != nil {
			out[i] = e
			op.Asked, op.Def = op.Def, e.def
		}
	}
	return nil
}

// named finds the entry that an op names. A definition from another store, or an older
// one, is replaced by this store's definition.
func (l *limits) named(ctx context.Context, op *store.Op) (*entry, error) {
	e := l.entry(op.Def.Name)
	if e == nil {
		if err := l.s.cat.LoadForCall(ctx); err != nil {
			return nil, err
		}
		if e = l.entry(op.Def.Name); e == nil {
			return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, op.Def.Name)
		}
	}
	if op.Def.Override != nil { // an earlier try has set the override's definition
		if op.Def = op.Def.Base(); op.Asked != nil {
			op.Def = op.Asked
		}
	}
	if op.Def.Plan != "" {
		plan := e.plans[op.Def.Plan]
		if plan == nil {
			return nil, &store.FieldError{Field: "plan", Reason: fmt.Sprintf("limit %s has no plan %q", e.def.Name, op.Def.Plan), Err: store.ErrUnknownPlan}
		}
		e = plan
	}
	op.Def = e.def
	return e, nil
}

// find reads the limits if it does not know one of them. find returns an error if
// this program cannot read the limit, and none if the limit was dropped.
func (l *limits) find(ctx context.Context, name string) error {
	if l.entry(name) != nil {
		return nil
	}
	if err := l.s.cat.LoadForCall(ctx); err != nil || l.entry(name) != nil {
		return err
	}
	return l.reg.Unreadable(name)
}

// Prepare checks the Redis server.
func (l *limits) Prepare(ctx context.Context) error { return l.s.checkServer(ctx, &l.config) }

// Revision reads the revision of the limits, which is 0 if it is missing, as the limits then
// are too.
func (l *limits) Revision(ctx context.Context) (int64, error) {
	text, err := l.field(ctx, "")
	revision, _ := strconv.ParseInt(text, 10, 64)
	return revision, err
}

// Read reads the hash of limits, or one field of it. Fields that have not changed
// keep their definitions.
func (l *limits) Read(ctx context.Context, only string) (*catalog.Limits, error) {
	readFields := l.readFields
	if only != "" {
		readFields = func(ctx context.Context) (map[string]string, error) { return l.readField(ctx, only) }
	}
	fields, err := readFields(ctx)
	if err != nil {
		return nil, err
	}
	read := &catalog.Limits{Only: only, Revision: l.revision.Load(), Bad: map[string]error{}}
	for name, text := range fields {
		var d *store.Definition
		if e := l.entry(name); e != nil && l.fields[name] == text {
			d = e.def
		} else if d, err = decodeDefinition(name, text, l.reg.Lookup(name)); err != nil {
			read.Bad[name] = err
		}
		if d != nil { // not dropped
			read.Defs = append(read.Defs, d)
		}
	}
	l.read = fields
	return read, nil
}

// readField reads one field of the hash, and the revision. If the server has lost changes,
// readField leaves the revision as it is, so that the catalogue reads all fields.
func (l *limits) readField(ctx context.Context, name string) (map[string]string, error) {
	v, err := l.s.db.HMGet(ctx, l.s.names.limits, name, "").Result()
	if err != nil {
		return nil, err
	}
	if revision, _ := strconv.ParseInt(textOf(v[1]), 10, 64); revision > l.revision.Load() {
		l.revision.Store(revision)
	}
	return map[string]string{name: textOf(v[0])}, nil
}

// readFields reads the hash of limits. If the server has lost what it had not saved or
// replicated, this program stores what it knows of the limits: rows may refer to their
// versions. The revision has gone back then, unless another program has made a change
// since. Which limits were lost is seen from the fields.
func (l *limits) readFields(ctx context.Context) (map[string]string, error) {
	for {
		fields, err := l.s.db.HGetAll(ctx, l.s.names.limits).Result()
		if err != nil {
			return nil, err
		}
		revision, _ := strconv.ParseInt(fields[""], 10, 64)
		delete(fields, "")
		lost := false
		for name, text := range l.fields {
			restored := restore(fields[name], text)
			if restored == fields[name] {
				continue
			}
			lost = true
			if _, err = l.swap(ctx, name, fields[name], restored); err != nil {
				return nil, err
			}
		}
		if l.revision.Store(revision); !lost {
			return fields, nil
		}
	}
}

// Install makes entries for definitions that are new.
func (l *limits) Install(read *catalog.Limits) error {
	entries := map[string]*entry{}
	if read.Only == "" {
		l.fields = l.read
		l.reg.Install(read.Defs)
	} else {
		maps.Copy(l.fields, l.read)
		l.reg.InstallOne(read.Only, read.Defs)
		entries = maps.Clone(*l.entries.Load())
		delete(entries, read.Only)
	}
	for _, d := range read.Defs {
		d = l.reg.Lookup(d.Name) // Install may have made another definition of it
		e := l.entry(d.Name)
		if e == nil || e.def != d || e.parts != l.parts(d) {
			e = l.newEntry(d)
		}
		entries[d.Name] = e
	}
	l.entries.Store(&entries)
	return nil
}

func (l *limits) newEntry(d *store.Definition) *entry {
	e := &entry{def: d, parts: l.parts(d), names: &l.s.names, begin: l.s.names.start(l.s.names.base, d.Name), until: "",
		even: d.Even() && d.Mode <= store.Shadow}
	for _, p := range d.Plans.All() {
		if plan := d.WithPlan(p.Name); plan != nil {
			if e.plans == nil {
				e.plans = map[string]*entry{}
			}
			e.plans[p.Name] = l.newEntry(plan)
		}
	}
	return e
}

// parts returns, for a cluster, how many parts of a limit's keys belong to the topmost
// limit above it. parts returns wholeKey if the limit has no parent.
func (l *limits) parts(d *store.Definition) int {
	if !l.s.names.cluster {
		return wholeKey
	}
	return partsIn(&l.reg, d)
}

// partsIn is parts in a cluster, by the limits of a registry.
func partsIn(reg *store.Registry, d *store.Definition) int {
	if d.Parent == "" {
		return wholeKey
	}
	top := d
	for range terms.MaxLevels {
		if parent := reg.Lookup(top.Parent); parent != nil {
			top = parent
		}
	}
	return int(top.KeyParts())
}

// checkMove returns an error if the keys of a limit with overrides will be in other slots
// of a cluster once d is defined: of d itself, if its parent changes, or of a limit below
// it. Overrides, unlike rows, must not begin anew.
func (l *limits) checkMove(ctx context.Context, d *store.Definition) error {
	defs := append(slices.DeleteFunc(l.reg.All(), func(x *store.Definition) bool { return x.Name == d.Name }), d)
	reg := &store.Registry{Partial: true}
	reg.Install(defs)
	for _, x := range reg.All() {
		e := l.entry(x.Name)
		if e == nil || e.parts == partsIn(reg, x) {
			continue
		}
		list, err := overrides{l.s}.Overrides(ctx, e.def, "", "", 1)
		if err != nil {
			return err
		}
		if len(list) > 0 {
			return &store.FieldError{Limit: d.Name, Field: "parent", Reason: fmt.Sprintf("cannot change in a Redis Cluster while keys of limit %s have overrides, such as %q; end them first", x.Name, list[0].Key)}
		}
	}
	return nil
}

// swap changes one field of the hash from old to text, and returns by how much it has changed
// the revision, or 0 if somebody else has changed the field.
func (l *limits) swap(ctx context.Context, name, old, text string) (change int64, err error) {
	known := l.revision.Load()
	args := []any{nil, nil, 1, l.s.names.limits, name, old, text, l.s.names.limits}
	v, err := l.s.run(ctx, l.s.call(ctx, l.s.scripts.define, true, args))
	if err != nil || v[0] < 0 {
		return 0, err
	}
	if v[1] < known { // the server has lost changes, which this change would hide from readFields
		l.revision.Store(v[0] + 1)
	}
	return v[0] - v[1], nil
}

// maxRaces bounds how often a change is started again because somebody else made one.
const maxRaces = 100

// change replaces a limit by the definition that next returns, nil to drop it; old is nil if
// there is no such limit, and last the highest version that its name has had. If next returns
// old, nothing is changed. If somebody else makes a change meanwhile, change starts again. It
// returns by how much it has changed the revision.
func (l *limits) change(ctx context.Context, name string, next func(old *store.Definition, last uint32) (*store.Definition, error)) (int64, error) {
	for range maxRaces {
		text, err := l.field(ctx, name)
		if err != nil {
			return 0, err
		}
		old, err := decodeDefinition(name, text, l.reg.Lookup(name))
		if err != nil {
			return 0, err
		}
		last := numberOf(text)
		d, err := next(old, last)
		if err != nil || d == old {
			return 0, err
		}
		to := encodeDropped(last)
		if d != nil {
			to = encodeDefinition(d)
		}
		if to == text {
			return 0, nil
		}
		if change, err := l.swap(ctx, name, text, to); change > 0 || err != nil {
			return change, err
		}
	}
	return 0, fmt.Errorf("%w: limit %s is being changed over and over", store.ErrStore, name)
}

// Put stores a limit as a new version. Before a version in which buckets fill more slowly
// is published, the expiry of all buckets of the limit is lengthened.
func (l *limits) Put(ctx context.Context, limit store.Limit, by string) (change int64, err error) {
	var longer, before *store.Definition
	var moved bool
	change, err = l.change(ctx, limit.Name, func(old *store.Definition, last uint32) (*store.Definition, error) {
		now, err := l.s.now(ctx)
		if err == nil && old == nil && last > 0 {
			err = l.s.forgetOverrides(ctx, limit.Name, last)
		}
		if err != nil {
			return nil, err
		}
		d, err := l.successor(ctx, old, last, now, limit, by)
		if err != nil || d == old {
			return d, err
		}
		before = old
		if old != nil && d.Number != old.Number && d.Number%renewEvery == 0 {
			if err = l.s.renew(ctx, old); err != nil {
				return nil, err
			}
			trim(d, now)
		}
		longer = nil
		if old != nil && d.Number != old.Number && slower(old, d) {
			longer = d
			if err = l.s.lengthenExpiry(ctx, d); err != nil {
				return nil, err
			}
		}
		if moved = old != nil && d.Parent != old.Parent && l.s.names.cluster; moved {
			err = l.checkMove(ctx, d)
		}
		return d, err
	})
	if err == nil && before != nil {
		err = l.undoUnfit(ctx, before, limit, by)
	}
	if moved && err == nil {
		l.config.OnError(fmt.Errorf("redis: limit %s has another parent: its buckets are in other slots of the cluster now, and begin anew", limit.Name))
	}
	if longer != nil && err == nil && l.s.clock == nil {
		l.s.lengthenExpiryLater(longer)
	}
	return change, changeError(err, true)
}

// setOverridden tells all programs that keys of a limit may have overrides.
func (l *limits) setOverridden(ctx context.Context, name string) error {
	if d := l.reg.Lookup(name); d != nil && d.Overridden {
		return nil
	}
	_, err := l.change(ctx, name, func(old *store.Definition, _ uint32) (*store.Definition, error) {
		switch {
		case old == nil:
			return nil, l.reg.Missing(name)
		case old.Overridden:
			return old, nil
		}
		d := *old
		d.Overridden = true
		return &d, nil
	})
	if err != nil {
		return changeError(err, true)
	}
	return l.s.cat.Load(ctx)
}

// field reads one limit. field returns "" if there is no such limit.
func (l *limits) field(ctx context.Context, name string) (string, error) {
	text, err := l.s.db.HGet(ctx, l.s.names.limits, name).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return text, storeError(err, false)
}

// undoUnfit undoes a change of a limit from before if an override that does not fit the change
// was set while successor looked for such overrides. A program that sets one later reads the
// limit afterwards.
func (l *limits) undoUnfit(ctx context.Context, before *store.Definition, limit store.Limit, by string) error {
	now, err := l.s.now(ctx)
	if err != nil {
		return err
	}
	_, unfit := l.successor(ctx, before, 0, now, limit, by)
	if unfit == nil {
		return nil
	}
	_, err = l.change(ctx, limit.Name, func(d *store.Definition, _ uint32) (*store.Definition, error) {
		if d == nil || d.Limit != limit {
			return d, nil
		}
		return registryOf(d).Define(now, before.Limit, by)
	})
	return errors.Join(unfit, err)
}

// successor returns the definition that follows old, which is nil if the limit does not
// exist. last is the highest version that the name has had.
func (l *limits) successor(ctx context.Context, old *store.Definition, last uint32, now int64, limit store.Limit, owner string) (*store.Definition, error) {
	reg := registryOf(old)
	if old != nil && old.Overridden {
		reg.EachOverride = func(name string, check func(o *store.Override)) error { return l.s.eachOverride(ctx, name, "", check) }
	}
	d, err := reg.Define(now, limit, owner)
	if err == nil && old == nil {
		d.Number = last + 1
	}
	return d, err
}

// registryOf returns a registry with one limit, or an empty one if d is nil.
func registryOf(d *store.Definition) *store.Registry {
	reg := &store.Registry{Partial: true}
	if d != nil {
		reg.Install([]*store.Definition{d})
	}
	return reg
}

// Drop drops a limit with its overrides, and ends its parts of holds. The limit's
// buckets expire in Redis.
func (l *limits) Drop(ctx context.Context, name, by string) error {
	var last uint32
	_, err := l.change(ctx, name, func(old *store.Definition, number uint32) (*store.Definition, error) {
		last = number
		return nil, registryOf(old).Drop(name, by)
	})
	if err == nil {
		err = l.s.forget(ctx, name, last)
	}
	return changeError(err, true)
}
