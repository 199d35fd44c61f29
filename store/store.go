package store

import "context"

// A Store decides batches. It is the only thing that keeps buckets.
//
// Each group of a batch happens at one instant of the store's clock, all or
// nothing, and gets its own answers or its own error, in place; groups are
// independent. An error from Apply itself speaks for every group. Apply must
// not keep the batch, nor anything in it but key strings, once it has returned.
//
// Optional abilities are found by type assertion, through Unwrap where a
// decorator has it: Definer, Lister, Sweeper, Clock.
type Store interface {
	Apply(ctx context.Context, b *Batch) error
}

// A Batch is a number of independent groups.
type Batch struct {
	Groups []Group

	group [1]Group // backing for the common batch of one, so that it allocates nothing
	op    [1]Op
}

// A Group is what happens at one instant, all or nothing: at most MaxTakes
// operations on different keys, or the cancellation of one reservation.
type Group struct {
	Ops    []Op
	ID     Reservation // of the reservation to make, should one be due later than now; or to cancel
	Cancel bool        // give back the reservation ID; Ops is empty
	Err    error       // we do not know: nothing in the answers counts

	Allowed  bool // the verdict over all ops
	Reserved bool // the store keeps ID until it is due
}

// An Op asks one verb of one key, and holds the answer.
type Op struct {
	Def      *Definition
	Key      string // "" is the limit's shared bucket
	Verb     Verb
	Cost     int64 // tokens, 0 to MaxInt
	Bounded  bool  // a Reserve with a delay above MaxDelay is refused
	MaxDelay int64 // µs
	// Phase says where the windows of Key begin if they are spread, or is 0 if that
	// is not known yet: computing it costs more than the rest of a decision. Set it
	// to 0 when you change Key, or Def to another limit.
	Phase int64

	Answer
}

// Answer is what one op came to, had it been alone; in a group that is refused
// nothing was charged, and the answers describe the present state.
type Answer struct {
	Allowed   bool
	Never     bool   // no wait will help
	Shadow    bool   // allowed only because the limit is in shadow mode
	Source    Source // how the answer was made
	Granted   int64  // tokens taken
	Remaining int64  // whole tokens left
	Retry     int64  // µs from now to the first instant at which the same call would succeed
	Reset     int64  // µs from now until the bucket is full
	Delay     int64  // µs from now until a reservation is due

	// The row that the answer describes, for decorators that go on from it: units
	// used at TS, under Op.Def. A store that does not tell leaves TS at 0.
	Used, TS int64
}

// At is the instant of the store's clock at which the op was answered, in µs,
// as far as the answer lets one tell: a full row is the same at any time.
func (op *Op) At() int64 {
	if op.Used == 0 {
		return op.TS
	}
	var scratch Rule
	return op.RuleFor(&scratch).FullIn(op.Used, op.TS, 0) - op.Reset
}

// RuleFor returns the rule for the op's key as Definition.RuleFor does, and sets
// Phase if it is needed and not known.
func (op *Op) RuleFor(scratch *Rule) *Rule { return op.Def.ruleFor(op.Key, &op.Phase, scratch) }

// Source says how an answer was made.
type Source uint8

const (
	SourceStore Source = iota
	SourceDenyCache
	SourceFallbackOpen
	SourceFallbackClosed
	SourceFallbackLocal
)

var sources = []string{"store", "deny-cache", "fallback-open", "fallback-closed", "fallback-local"}

func (s Source) String() string { return nameOf(sources, int(s)) }

// A Definer keeps limits. Where a store is none, the Limiter keeps its own.
type Definer interface {
	Registry() *Registry
	// Define and Drop change a limit as Registry.Define and Registry.Drop do,
	// at the present instant of the store's clock.
	Define(ctx context.Context, l Limit, owner string) (*Definition, error)
	Drop(ctx context.Context, name, owner string) error
}

// A Lister pages through the live keys of a limit in byte order: at most n
// after the key after, beginning with prefix. The shared bucket is the key "" and
// comes first: after "" is the beginning, and after Shared is what follows it.
type Lister interface {
	Keys(ctx context.Context, d *Definition, prefix, after string, n int) ([]KeyState, error)
}

// KeyState is one live key and its row.
type KeyState struct {
	Key string
	State
}

// A Sweeper deletes rows that are full, at most n, and says how many.
type Sweeper interface {
	Sweep(ctx context.Context, n int) (int, error)
}

// A Clock tells the store's time, in µs since the Unix epoch.
type Clock interface {
	Now(ctx context.Context) (int64, error)
}

// As finds an optional ability of a store, looking through decorators that have
// an Unwrap method.
func As[T any](s Store) (T, bool) {
	for s != nil {
		if t, ok := s.(T); ok {
			return t, true
		}
		u, ok := s.(interface{ Unwrap() Store })
		if !ok {
			break
		}
		s = u.Unwrap()
	}
	var none T
	return none, false
}

// Single resets the batch to one group of one op and returns both.
func (b *Batch) Single() (*Group, *Op) {
	b.op[0] = Op{}
	b.group[0] = Group{Ops: b.op[:]}
	b.Groups = b.group[:]
	return &b.group[0], &b.op[0]
}

// Step decides the op at now on its row as if it stood alone, and fills the
// answer. It returns the row to store and whether storing it is needed; a row
// with nothing used may be deleted instead. dry answers without charging.
func (op *Op) Step(now int64, row State, dry bool) (State, bool, error) {
	var scratch Rule
	rule := op.RuleFor(&scratch)
	if row.Version != op.Def.Number && row != (State{}) {
		var ok bool
		if row, ok = op.Def.carry(row, op.Key, &op.Phase); !ok {
			return row, false, ErrStaleDefinition
		}
	}
	var o Outcome
	rule.apply(&o, row, now, op.Verb, op.Cost)
	if op.Bounded && op.Verb == VerbReserve {
		bound(&o, rule, op, now)
	}
	op.fill(&o, rule, now, dry)
	next, write := State{Used: o.After, TS: o.TS, Version: op.Def.Number}, !dry && !op.Shadow && o.After != o.Before
	if row.Lows != nil && !dry && (write || op.clipped(&o)) {
		next.Lows, write = op.touch(row.Lows, &o), true
	}
	return next, write, nil
}

// touch returns what becomes of the row's lows when it is written. A row that
// was full, or is now, has none: a store may delete it, and the list with it.
func (op *Op) touch(l *Lows, o *Outcome) *Lows {
	if isNone(o.Before) || isNone(o.After) {
		return nil
	}
	next := l.clone()
	if next.touch(o.Before); op.clipped(o) {
		next.clear()
	}
	return &next
}

// clipped reports whether less is used after a charge than what was taken, as
// used stops at MaxUsed. Nothing may be given back then of what was taken before.
func (op *Op) clipped(o *Outcome) bool {
	return op.Verb == VerbCharge && o.Allowed && clipped(o.Before, unitsOf(op.Cost, op.Def.Rule.Unit), o.After)
}

// bound refuses a reservation that is due too late. The instant at which it is
// due does not move while nobody else comes, so it may be asked again when that
// instant is near enough; never, where even a full bucket would be due too late.
func bound(o *Outcome, r *Rule, op *Op, now int64) {
	if o.Never {
		return
	}
	units, delay := unitsOf(op.Cost, r.Unit), o.Delay
	if !o.Allowed {
		delay = r.wait(o.Before+units-r.Cap, o.TS, now)
	}
	if delay <= op.MaxDelay {
		return
	}
	late := Outcome{Before: o.Before, After: o.Before, TS: o.TS}
	if late.Never = soonest(units, r.Cap, r.shortest(), r.Add) > op.MaxDelay; !late.Never {
		late.Retry = max(o.Retry, delay-op.MaxDelay)
	}
	*o = late
}

func (op *Op) fill(o *Outcome, r *Rule, now int64, dry bool) {
	a := &op.Answer
	*a = Answer{Allowed: o.Allowed, Never: o.Never, Retry: o.Retry, Delay: o.Delay}
	used := o.Before
	switch {
	case !o.Allowed:
		if op.Def.Mode == Shadow {
			a.Allowed, a.Shadow = true, true
		}
	case dry:
		a.Delay = 0
	default:
		a.Granted, used = o.Granted, o.After
	}
	a.Used, a.TS = used, o.TS
	a.Remaining = r.Remaining(used)
	a.Reset = r.FullIn(used, o.TS, now)
}

// Decide decides a group at now, all or nothing, on the rows of its ops, in
// their order. Afterwards a row is the one to store where write says so.
func (g *Group) Decide(now int64, rows []State, write []bool) error {
	g.Allowed, g.Reserved = true, false
	var old [MaxTakes]State
	copy(old[:], rows)
	for i := range g.Ops {
		op := &g.Ops[i]
		var err error
		if rows[i], write[i], err = op.Step(now, rows[i], false); err != nil {
			return err
		}
		g.Allowed = g.Allowed && op.Allowed
		g.Reserved = g.Reserved || op.Delay > 0 && op.Granted > 0
	}
	if g.Allowed {
		return nil
	}
	g.Reserved = false
	for i := range g.Ops {
		write[i] = false
		g.Ops[i].Delay = 0 // nothing is due, whichever verb said so
		if g.Ops[i].Granted > 0 || g.Ops[i].Verb >= VerbRefund {
			if _, _, err := g.Ops[i].Step(now, old[i], true); err != nil {
				return err
			}
		}
	}
	return nil
}

// Due is how long after now, in µs, the group's reservation is due: a call has
// one due time, the latest of its ops'.
func (g *Group) Due() int64 {
	var due int64
	for i := range g.Ops {
		due = later(due, g.Ops[i].Delay)
	}
	return due
}
