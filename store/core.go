package store

import "github.com/dipwell/dipwell/internal/door"

// Core returns what only the stores, decorators and front ends of this module call, for
// example to keep records in a layout of their own. Other modules cannot call it, because
// they cannot import the package of its argument: what it has changes with them, and in
// any release.
func Core(door.Key) core { return core{} }

// A core has the methods of the types of this package that it would otherwise export. The
// documentation is at the methods that it calls. It is empty, and these calls are inlined,
// so that a call through it costs no more than a method.
type core struct{}

// Rows and records of a store that does itself what DecideIn does.

func (core) StepRow(op *Op, now int64, row *State, dry bool) (write bool, err error) {
	return op.stepRow(now, row, dry)
}

func (core) RuleFor(d *Definition, key string, scratch *Rule) *Rule {
	return d.ruleForKey(key, scratch)
}

func (core) Carry(d *Definition, s State, key string, now int64) (carried State, ok bool) {
	return d.carryRow(s, key, now)
}

func (core) Own(d *Definition, s State, t int64) *Definition { return d.own(s, t) }

func (core) Took(op *Op) int64 { return op.took() }

func (core) Record(op *Op, row *State, id Reservation, now, ends int64) Record {
	return op.reservationRecord(row, id, now, ends)
}

func (core) Advance(d *Definition, row State, key string, now int64, rs []Record) (State, []Record, error) {
	return d.advanceRow(row, key, now, rs)
}

func (core) GiveBack(d *Definition, row State, key string, now int64, rs []Record, number, mark int64) (State, []Record, error) {
	return d.giveBackRecord(row, key, now, rs, number, mark)
}

func (core) Due(g *Group) int64 { return g.due() }

func (core) Settles(g *Group) bool { return g.settles() }

// Overrides that a store keeps.

func (core) Prepare(o *Override) { o.prepare() }

func (core) WithOverride(d *Definition, o *Override) *Definition { return d.overriddenBy(o) }

func (core) CheckOverride(d *Definition, o *Override, now int64) error {
	return d.checkOverride(o, now)
}

// Limits that a store keeps.

func (core) CheckParents(r *Registry, l *Limit) error { return r.checkParents(l) }

func (core) CheckDrop(r *Registry, name string) error { return r.checkDrop(name) }

func (core) Missing(r *Registry, name string) error { return r.missing(name) }

func (core) Differs(d *Definition, l Limit) error { return d.differs(l) }

// Calls before they reach a store, and what decorators do with them.

func (core) CheckVerb(d *Definition, v Verb, hold bool) error { return d.checkVerb(v, hold) }

func (core) CheckHold(c *HoldCall, ops []Op) error { return c.check(ops) }

func (core) FailsOpen(op *Op) bool { return op.failsOpen() }

func (core) AddMetrics(ab *Abilities, f func() []Metric) { ab.addMetrics(f) }
