// Package shards is the Go form of the protocol by which transactions of PostgreSQL take
// from keys with shards: of pgstore/templates/schema/repeatable/2_shards.sql, and of what
// 4_plain.sql and 2_decide.sql do with such keys. The simulator plays it, with many
// transactions open at the same time. A test of pgstore compares it with the SQL, step by
// step.
//
// A Table has the rows. Each statement of the SQL is one step, which sees what is
// committed when it begins, and what its own transaction wrote. Between two statements
// Table.Pause is called, so that other transactions may run.
package shards

import (
	"errors"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// ErrDeadlock is the error of a call that would wait for a transaction which waits for its
// own. The transaction must be rolled back.
var ErrDeadlock = errors.New("deadlock detected")

// A Table is the tables buckets and shards, with their locks.
type Table struct {
	Limits   *store.Registry
	Now      func() int64           // the server's clock
	Pause    func(x *Tx)            // between two statements
	Wait     func(x *Tx)            // returns after Wake
	Wake     func(x *Tx)            // ends Wait
	Sleep    func(x *Tx, d int64)   // pg_sleep of d µs
	Random   func(n int64) int64    // for the order of a sweep; below n
	Unlogged bool                   // the tables are unlogged
	Deadlock func(cycle []*Tx)      // called with the transactions that wait for each other
	Tied     func()                 // if set, called before one of two shards is chosen that are equally good
	keys     map[Key]map[int]*slot  // by shard; -1 is the row of buckets
	order    []Key                  // of keys, as they were first used
	advisory map[lockNumber]*waited // advisory locks
	inserted int
	versions map[string][]*store.Definition // older versions of a limit
	running  map[*Tx]int64                  // when the statement began that runs in a transaction
}

// A Key is a key of a limit.
type Key struct{ Limit, Key string }

type lockNumber struct {
	k     Key
	shard int
}

type waited struct {
	owner *Tx
	queue []*Tx
}

// A Row is a row of buckets or shards.
type Row struct {
	store.State
	Spread bool // the lows are {0}: what is used is in rows of shards
	insert int  // number of the INSERT that made it
}

// A slot is the place of a row, or of none.
type slot struct {
	committed, pending *Row // nil: there is no row
	owner              *Tx  // has it locked
	written            bool // pending is what it becomes if the owner commits
}

// whole is the number of the row of buckets among the rows of a key.
const whole = -1

// NewTable returns an empty table. Its functions must be set before use.
func NewTable(limits *store.Registry) *Table {
	return &Table{Limits: limits, keys: map[Key]map[int]*slot{}, advisory: map[lockNumber]*waited{}, versions: map[string][]*store.Definition{}, running: map[*Tx]int64{}}
}

// A Session is a connection. Hint is its setting dipwell.read_first, which a rollback sets
// back.
type Session struct {
	PID  int64
	Hint string
}

// A Tx is a transaction, which is open until Commit or Rollback.
type Tx struct {
	*Session
	t        *Table
	slots    []*slot // that it has locked, in this order
	advisory []lockNumber
	waiting  []*Tx // for the end of this transaction
	waitsFor func() *Tx
	wrote    bool
	hint     string // when it began
}

// Begin begins a transaction.
func (t *Table) Begin(s *Session) *Tx { return &Tx{Session: s, t: t, hint: s.Hint} }

func (t *Table) slot(k Key, shard int) *slot {
	m := t.keys[k]
	if m == nil {
		m = map[int]*slot{}
		t.keys[k] = m
		t.order = append(t.order, k)
	}
	if m[shard] == nil {
		m[shard] = &slot{}
	}
	return m[shard]
}

// version returns the definition that rows of a version are under.
func (t *Table) version(limit string, number uint32) *store.Definition {
	d := t.Limits.Lookup(limit)
	if d.Number == number {
		return d
	}
	for i := len(t.versions[limit]); i < len(d.Past); i++ {
		past, err := store.NewDefinition(d.Past[i].Limit)
		if err != nil {
			panic(err) // it was defined before
		}
		t.versions[limit] = append(t.versions[limit], past)
	}
	return t.versions[limit][number-1]
}

// sees returns the row that a transaction sees, or nil. x may be nil.
func (s *slot) sees(x *Tx) *Row {
	if s.written && s.owner == x {
		return s.pending
	}
	return s.committed
}

// shards returns the rows of shards of a key that x sees, by their numbers.
func (t *Table) shards(x *Tx, k Key) (list []*Row) {
	for i := 0; ; i++ {
		s := t.keys[k][i]
		if s == nil {
			return list
		}
		if r := s.sees(x); r != nil {
			list = append(list, r)
		}
	}
}

// Rows returns what a transaction sees of a key: its one row, or those of its shards, of
// which shard i is at i; none if the key has no row. x may be nil: then it is what is
// committed.
func (t *Table) Rows(x *Tx, k Key) []store.State {
	r := t.slot(k, whole).sees(x)
	switch {
	case r == nil:
		return nil
	case !r.Spread:
		return []store.State{r.State}
	}
	var list []store.State
	for _, s := range t.shards(x, k) {
		list = append(list, s.State)
	}
	return list
}

// lock locks the row that x sees, and waits until no other transaction has it. It returns
// the row as it is then, or nil if it was deleted.
func (x *Tx) lock(s *slot) (*Row, error) {
	seen := s.sees(x)
	if seen == nil {
		return nil, nil
	}
	if err := x.await(s); err != nil {
		return nil, err
	}
	if r := s.sees(x); r == nil || r.insert != seen.insert {
		return nil, nil
	}
	x.own(s)
	return s.sees(x), nil
}

// await waits until no other transaction has locked a row.
func (x *Tx) await(s *slot) error {
	for s.owner != nil && s.owner != x {
		s.owner.waiting = append(s.owner.waiting, x)
		if err := x.wait(func() *Tx { return s.owner }); err != nil {
			return err
		}
	}
	return nil
}

func (x *Tx) own(s *slot) {
	if s.owner == nil {
		s.owner = x
		x.slots = append(x.slots, s)
	}
}

// tryLock is lock with SKIP LOCKED: it returns nil if another transaction has the row.
func (x *Tx) tryLock(s *slot) *Row {
	if s.owner != nil && s.owner != x || s.sees(x) == nil {
		return nil
	}
	x.own(s)
	return s.sees(x)
}

// unlock ends the lock of a row that was not written, as the end of a block with an
// exception does.
func (x *Tx) unlock(s *slot) {
	if s.owner == x && !s.written {
		s.owner = nil
		x.slots = slices.DeleteFunc(x.slots, func(o *slot) bool { return o == s })
		x.wakeAll()
	}
}

// write writes a locked row, or deletes it if r is nil.
func (x *Tx) write(s *slot, r *Row) {
	s.pending, s.written, x.wrote = r, true, true
}

// insert inserts a row, and reports whether there was none. If another transaction has
// written a row there, it waits for its end.
func (x *Tx) insert(s *slot, r Row) (bool, error) {
	for s.committed == nil && s.owner != nil && s.owner != x || s.owner != nil && s.owner != x && s.written && s.pending == nil {
		if err := x.await(s); err != nil {
			return false, err
		}
	}
	if s.sees(x) != nil {
		return false, nil
	}
	x.t.inserted++
	r.insert = x.t.inserted
	x.own(s)
	x.write(s, &r)
	return true, nil
}

// wait waits until another transaction wakes x. It is an error if they wait for each other.
func (x *Tx) wait(on func() *Tx) error {
	x.waitsFor = on
	defer func() { x.waitsFor = nil }()
	cycle := []*Tx{x}
	for o := on(); o != nil && o != cycle[len(cycle)-1]; o = o.waitsFor() { // one that has got the lock waits for itself
		if o == x {
			x.t.Deadlock(cycle)
			return ErrDeadlock
		}
		if cycle = append(cycle, o); o.waitsFor == nil {
			break
		}
	}
	x.t.Wait(x)
	return nil
}

func (x *Tx) wakeAll() {
	list := x.waiting
	x.waiting = nil
	for _, o := range list {
		x.t.Wake(o)
	}
}

// tryAdvisory is pg_try_advisory_xact_lock. It also fails if others wait for the lock.
func (x *Tx) tryAdvisory(k Key, shard int) bool {
	n := lockNumber{k, shard}
	l := x.t.advisory[n]
	switch {
	case l == nil:
		x.t.advisory[n] = &waited{owner: x}
		x.advisory = append(x.advisory, n)
	case l.owner != x:
		return false
	}
	return true
}

// lockAdvisory is pg_advisory_xact_lock. The lock passes to those that wait in their order.
func (x *Tx) lockAdvisory(k Key, shard int) error {
	if x.tryAdvisory(k, shard) {
		return nil
	}
	n := lockNumber{k, shard}
	l := x.t.advisory[n]
	l.queue = append(l.queue, x)
	for l.owner != x {
		if err := x.wait(func() *Tx { return l.owner }); err != nil {
			l.queue = slices.DeleteFunc(l.queue, func(o *Tx) bool { return o == x })
			return err
		}
	}
	return nil
}

// Commit makes what the transaction wrote visible, and ends it.
func (x *Tx) Commit() {
	for _, s := range x.slots {
		if s.written {
			s.committed = s.pending
		}
	}
	x.end()
}

// Rollback undoes what the transaction wrote, and ends it. It may be called while a call
// of the transaction waits, if that never goes on.
func (x *Tx) Rollback() {
	x.Hint = x.hint
	x.end()
}

func (x *Tx) end() {
	for _, s := range x.slots {
		s.pending, s.owner, s.written = nil, nil, false
	}
	for _, n := range x.advisory {
		l := x.t.advisory[n]
		if len(l.queue) == 0 {
			delete(x.t.advisory, n)
			continue
		}
		next := l.queue[0]
		l.owner, l.queue = next, l.queue[1:]
		next.advisory = append(next.advisory, n)
		x.t.Wake(next)
	}
	for _, l := range x.t.advisory {
		l.queue = slices.DeleteFunc(l.queue, func(o *Tx) bool { return o == x })
	}
	delete(x.t.running, x)
	x.slots, x.advisory = nil, nil
	x.wakeAll()
}

// A Change is what one call of a transaction made of a key.
type Change struct {
	x      *Tx
	k      Key
	before map[int]*Row // rows that the transaction had written before the call
}

// Watch begins to watch a key, before a call.
func (x *Tx) Watch(k Key) *Change {
	c := &Change{x, k, map[int]*Row{}}
	x.t.slot(k, whole)
	for i, s := range x.t.keys[k] {
		if s.owner == x && s.written {
			c.before[i] = s.pending
		}
	}
	return c
}

// Rows returns the rows of the key without and with what the call wrote, as Table.Rows
// does. Others can only have changed rows that the transaction did not write.
func (c *Change) Rows() (before, after []store.State) {
	t := &Table{keys: map[Key]map[int]*slot{c.k: {}}}
	for i, s := range c.x.t.keys[c.k] {
		r := s.committed
		if old, had := c.before[i]; had {
			r = old
		}
		t.keys[c.k][i] = &slot{committed: r}
	}
	return t.Rows(nil, c.k), c.x.t.Rows(c.x, c.k)
}
