package store

import (
	"context"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/terms"
)

// A Store keeps buckets and decides calls about them. It is safe for concurrent use.
//
// Its Abilities say what else a store can do. A store that holds resources also has a
// method Close() error.
type Store interface {
	// Apply decides each group of a batch at one instant of the store's clock, all or nothing,
	// and writes its answers, or an error, into the group. Groups are independent of each
	// other, and two may use the same key, one after the other. If Apply returns an error, no
	// group was decided, and the error wraps ErrStore. Apply keeps nothing of the batch but
	// key strings and definitions after it returns.
	//
	// Apply returns when ctx ends, or soon after. A group whose charge may have been made
	// by then has an error that wraps ErrOutcomeUnknown.
	Apply(ctx context.Context, b *Batch) error
}

// A Batch is a list of groups, which one call of Apply decides. The Limiter makes batches of
// one group; a decorator that coalesces calls makes larger ones. A batch may be reused after
// Apply has returned: answers of an earlier Apply are overwritten.
type Batch struct {
	// Groups are decided as if one after the other, in any order. See also Single.
	Groups []Group

	group [1]Group // memory for Groups of a batch of one, so that it needs no allocation
	op    [1]Op
}

// A Group is a call: 1 to MaxTakes operations on different keys, all or nothing, or the
// cancellation of one reservation, or the end or extension of one hold. The caller sets Ops,
// ID, Cancel, Hold and NoWait; the store sets Err, Allowed and Reserved.
type Group struct {
	// Ops are the operations, each on a key of its own: the costs of two takes of one key
	// are added up by the caller. The order of Ops means nothing to the store. Ops is empty
	// if a reservation is cancelled or a hold is settled or extended; for a hold the store
	// then sets it, perhaps in the memory that it has.
	Ops []Op

	// ID identifies the reservation to cancel, or the one to make if an op has to wait for
	// its tokens. The caller makes a random one for each call that may reserve: a store may
	// refuse an ID of a reservation that is not due. With the zero ID an op may still be
	// allowed with a Delay, but it cannot be cancelled, and tokens that earlier reservations
	// give back may be granted to others before it is due.
	ID Reservation

	// Cancel gives back the tokens of the reservation ID, of all of its keys in one step. Ops
	// is then empty. Err is ErrReservation if Cancel finds nothing that can be given back.
	Cancel bool

	// Hold makes, settles or extends a hold. Hold is nil if the group is not about a hold.
	// The store writes its answers into it, so each call needs a HoldCall of its own.
	Hold *HoldCall

	// NoWait gives up at once if another transaction has locked a row: Err is then ErrLocked,
	// and the caller tries another row of the key. A store may ignore NoWait.
	NoWait bool

	// Err is the store's error if it could not decide the group; the other results then mean
	// nothing. A refusal is no error. The package comment has the classes of errors.
	Err error

	// Allowed is set if all ops are allowed, so that all were done: see also Answer.Shadow. The
	// end of a hold is allowed unless Err is set. After a cancellation only Err counts.
	Allowed bool

	// Reserved is set if the store keeps a reservation under ID until it is due. If no op has
	// to wait, there is nothing to cancel, and Reserved is false.
	Reserved bool
}

// An Op is a verb on one key of a limit, with its answer. The caller sets the fields up
// to Phase, and has checked them; the store sets Asked, Def if another definition
// decides, and the Answer.
type Op struct {
	// Def is the definition of the limit, or of the plan that the caller names, as
	// Registry.Lookup and Definition.WithPlan return it. Def may be out of date when
	// the store decides: the store then uses the newest of the same limit and plan.
	// After Apply, Def is the definition that decided.
	Def *Definition
	// Key is the bucket: at most MaxKey bytes, and 3 more if the limit has shards, compared
	// byte by byte. The same key of two limits is two buckets. "" is the limit's shared
	// bucket.
	Key string
	// Verb is the operation. All ops of a group have the same verb; see type Verb for those
	// that may be in a group of several.
	Verb Verb
	// Bounded refuses a VerbReserve whose delay would be longer than MaxDelay; its Retry is
	// the time until the delay would be short enough. A Limiter sets Bounded for all attempts
	// of a wait: a refusal of one begins no block, whatever the verb is.
	Bounded bool
	// Takes has a bit for each take of the call that the op is a part of, from the lowest: a
	// take is an op of its own limit and one of each parent, and ops of the same limit and
	// key are one. Settling a hold has a cost for each take. If Takes is 0 when a hold is made,
	// each op is a take.
	Takes uint16
	// Cost is in tokens, 0 to MaxInt. An op of cost 0 only reads the bucket, and makes no row.
	// VerbReset ignores the cost.
	Cost int64
	// MaxDelay is in µs, 0 or more; without Bounded it means nothing. With a MaxDelay of 0 only
	// free tokens are reserved.
	MaxDelay int64
	// Floor is how many tokens must stay free after a VerbTake or a VerbCheck, which is
	// refused otherwise, and is Never if Cost and Floor are more than the burst. With
	// other verbs Floor must be 0: front ends answer a *FieldError.
	Floor int64
	// Fraction is how much of the rate of an adaptive limit a VerbTake or a VerbCheck may use,
	// in 1024ths: its tokens cost 1024/Fraction times as many units, but at most all that are
	// left free by Floor. 0 is all of the rate, and must be so with other verbs.
	Fraction int64
	// Phase says where the windows of Key begin if they are spread. 0 means not yet known:
	// computing it costs more than the rest of a decision. Set Phase to 0 when you change Key,
	// or Def to another limit.
	Phase int64

	held int64 // a VerbCharge may always cost this much: an expired hold held it

	// Asked is the definition that the caller named, once the store has set Def to the one
	// that decided, such as that of an override. If Asked is nil, both are Def.
	Asked *Definition

	Answer
}

// An Answer is the result of an op as if it were alone. If another op of its group is
// refused, nothing is taken, and the answer describes the present state: Granted is 0,
// and Remaining and Reset are those of the row as it stands.
type Answer struct {
	// Allowed is whether this op alone is allowed: see Group.Allowed. Ops that are not allowed
	// name the limits that refused.
	Allowed bool
	// Never means that the op can never be allowed: the cost and floor are more than the limit
	// can ever hold, or the plan is blocked without an end. Retry is then 0.
	Never bool
	// Shadow means that only shadow mode allowed the op. It took nothing, and Retry is what the
	// refusal would have said.
	Shadow bool
	// Bound means that Retry is not exact. The key has live holds, and the call may be
	// allowed before Retry, if one of them is settled to less than it took. Or the override
	// that decided will end: then Retry is at most the time until its end, and the call may
	// be refused once more. Or the row stays under another definition than the one that
	// decided, because under it less comes back.
	Bound bool
	// Source says who made the answer. A store leaves Source at 0, SourceStore.
	Source Source
	// Granted is the number of tokens taken: the cost, or after VerbTakeUpTo perhaps fewer.
	// Granted is 0 after a Check, a Refund and a Reset.
	Granted int64
	// Remaining is the number of whole tokens left after the op, 0 in debt, and MaxInt under an
	// unlimited plan. For a concurrency limit it is how many more tokens may be held.
	Remaining int64
	// Retry is the time in µs until the first instant at which the same op would be allowed
	// if nobody else took tokens, exact to the tick unless Bound is set. Retry is 0 if the op
	// is allowed and not in shadow mode, or if Never is set. A caller of several ops waits for
	// their longest Retry.
	Retry int64
	// Reset is the time in µs until the bucket is full, and 0 if it is. For a concurrency
	// limit Reset is the time until the last of its holds expires.
	Reset int64
	// Delay is the time in µs until what was reserved is due, 0 if the tokens were
	// free. The group is due after the longest Delay of its ops.
	Delay int64
	// Used and TS are the row under Op.Def: the units in use at the time TS, in µs. Decorators
	// compute later states from them. TS is 0 if the store does not return them.
	Used, TS int64
}

// RuleFor returns the present rule for the op's key. That is Def.Rule, or if windows are
// spread by key, a copy in scratch with the origin of the key, which depends only on the
// limit's name, the key and the period. RuleFor sets Phase if the rule needs it.
func (op *Op) RuleFor(scratch *Rule) *Rule { return op.Def.ruleFor(op.Key, &op.Phase, scratch) }

// A Source says who made an answer. Its text is "source" in the JSON of a decision.
//
// SourceFallbackOpen and SourceFallbackClosed are answers without the bucket: Remaining
// and Reset mean nothing, and header fields leave them out.
type Source uint8

const (
	SourceStore          Source = iota // the store
	SourceDenyCache                    // a refusal that this process remembered
	SourceLease                        // tokens that this process took in advance
	SourceFallbackOpen                 // the store failed, and the limit has FailOpen
	SourceFallbackClosed               // the store failed, and the limit has FailClosed
	SourceFallbackLocal                // the store failed, and this process's memory decided
)

var sources = []string{"store", "deny-cache", "lease", "fallback-open", "fallback-closed", "fallback-local"}

// String returns the text in the JSON: "store", "deny-cache", "lease", "fallback-open",
// "fallback-closed" or "fallback-local". Any other value is "unknown".
func (s Source) String() string { return nameOf(sources, int(s)) }

// A Definer keeps limits. If a store has none, the Limiter keeps the limits in its own memory:
// each process must then define them, and a change must be made in each. A store whose limits
// exist only in this process can be a Definer over a Registry:
//
//	func (s *Store) Registry() *store.Registry { return &s.limits }
//
//	func (s *Store) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
//		return s.limits.Define(s.now(), l, owner)
//	}
//
//	func (s *Store) Drop(_ context.Context, name, owner string) error { return s.limits.Drop(name, owner) }
type Definer interface {
	// Registry returns the limits as this process knows them: the same Registry at each
	// call. Looking a limit up there takes no lock and asks no server. A process learns of
	// changes by other processes some time later, or when a row has a version that it does
	// not know.
	Registry() *Registry
	// Define adds or changes a limit as Registry.Define does, at the present instant of the
	// store's clock. After it returns, the Registry of this process has the change. If the
	// error wraps ErrStore, the change may have been made; repeating the call is safe.
	// Defining a limit without a difference changes nothing and begins no version. The error
	// wraps ErrDenied if the store's server does not let this program define limits.
	Define(ctx context.Context, l Limit, owner string) (*Definition, error)
	// Drop removes a limit as Registry.Drop does, with its rows, records, holds and
	// overrides. The error may also wrap ErrStore or ErrDenied, like that of Define.
	Drop(ctx context.Context, name, owner string) error
}

// A KeyState is a key with its row, as the store keeps it: the row may be of an older
// version of the limit, and more may have come back since its TS. Op.Step with VerbCheck
// and dry computes its present state:
//
//	op := store.Op{Def: def, Key: k.Key, Verb: store.VerbCheck}
//	_, _, err := op.Step(now, k.State, true)
//	// op.Remaining and op.Reset are the key's at now, and op.Def is what decides it
//
// For a concurrency limit op.Reset means nothing, because the row does not say when
// its holds expire.
type KeyState struct {
	// Key is "" for the shared bucket. A store that keeps no text of the limit's keys
	// cannot list them; see Limit.ListKeys.
	Key string
	State
	// Others are the other rows of a key with shards. Only Limiter.Keys sets it; a store lists
	// each row separately.
	Others []State
}

// Single makes the batch one group of one zero op, without allocating, and returns
// both. They are valid until the next call of Single. The batch must not be copied
// afterwards: its Groups point into it.
//
//	var b store.Batch
//	g, op := b.Single()
//	op.Def, op.Key, op.Verb, op.Cost = def, "user:7", store.VerbTake, 1
//	if err := s.Apply(ctx, &b); err != nil {
//		return err // no group was decided
//	}
//	if g.Err != nil {
//		return g.Err // this one was not decided
//	}
//	// g.Allowed is the decision; op.Remaining and op.Retry say more.
func (b *Batch) Single() (*Group, *Op) {
	b.op[0] = Op{}
	b.group[0] = Group{Ops: b.op[:]}
	b.Groups = b.group[:]
	return &b.group[0], &b.op[0]
}

// Step decides the op at now, in µs, on its row as if it were alone, and sets its
// answer. Step returns the row to store, and whether it must be stored; a row with Used 0
// may be deleted instead. A refusal may have to be stored too: it moves a row to a plan
// under which more tokens come back. With dry, nothing is taken and the state is only read.
// If the override of the key decides, it replaces Def. The error is ErrStaleDefinition if
// the row is of a later version than Def.
//
// Step has no other effect than on the op, and reads no clock. For calls of one key without
// records a store needs nothing else. DecideIn decides calls of a row that has Lows, calls that
// make a reservation, and calls of a limit with a Block. A store without records that can
// replace a row only if nobody else has changed it needs no lock:
//
//	for {
//		row := load(op.Def.Name, op.Key)
//		next, write, err := op.Step(now(), row, false)
//		if err != nil || !write || replaced(op.Def.Name, op.Key, row, next) {
//			return err
//		}
//	}
func (op *Op) Step(now int64, row State, dry bool) (State, bool, error) {
	write, err := op.StepRow(now, &row, dry)
	return row, write, err
}

// StepRow is Step, but replaces row by the row to store: copies cost more than the rest of a
// common call.
func (op *Op) StepRow(now int64, row *State, dry bool) (write bool, err error) {
	var own State // the row under its own definition, before conversion to another plan
	var from *Definition
	if row.Override != nil || row.Version != op.Def.Number && *row != (State{}) || op.Def.Mode > Shadow {
		own = *row
		op.choose(own, now)
		switch {
		case op.Def.Mode > Shadow && op.Verb < VerbCharge || op.Def.Mode == Unlimited && op.Verb == VerbCharge:
			*row, write, err = op.byMode(now, own, dry)
			return write, err
		case op.Def.Mode == Blocked && !terms.IsOverride(op.Def.Number):
			op.Def = op.Def.Base()
		}
		var ok bool
		if *row, ok = op.Def.carry(own, op.Key, &op.Phase, now, nil); !ok {
			return false, ErrStaleDefinition
		}
		from = op.Def.Own(own, now)
	}
	var scratch Rule
	rule := op.RuleFor(&scratch)
	if op.Verb == VerbCharge && op.Cost > rule.MaxCharge {
		if rule != &scratch {
			scratch = *rule
		}
		scratch.MaxCharge = max(op.Def.MostCharge(), op.held)
		rule = &scratch
	}
	var o outcome
	if op.Floor > 0 {
		rule.applyFloor(&o, row, now, op)
	} else {
		rule.apply(&o, row, now, op.Verb, op.Cost, op.Fraction)
	}
	if op.bounded() {
		bound(&o, rule, op)
	}
	refused := !o.Allowed && !o.Never
	if refused && op.bounded() {
		op.retryBounded(&o, *row, now)
	}
	op.fill(&o, rule, now, dry)
	moves := refused && from != nil && from.Number != op.Def.Number && o.Before > 0 && !rule.Sliding
	if moves && !op.Def.moves(from) { // the answer describes a row that has moved, whose tokens may come back later
		moves, op.Bound = false, true
	} else if moves && op.Cost == 0 {
		moves, op.Retry = false, op.retryStaying(from, own, rule, o.Before, now)
	}
	if !o.Allowed && op.Verb != VerbCharge {
		op.boundByEnd(now)
	}
	if from != nil && op.Def.Mode == Unlimited { // a Refund or Reset: other numbers in the answer are those of the row
		op.Remaining = MaxInt
	}
	row.Used, row.TS, row.Version = o.After, o.TS, op.Def.rowNumber()
	if row.Override = row.Override.At(now); op.Verb == VerbReset {
		row.Override = row.Override.unblocked()
	}
	write = !dry && (!op.Shadow && o.After != o.Before || moves && op.Verb != VerbCheck)
	if l := row.Lows; l != nil {
		if row.Lows = nil; !dry && (write || op.clipped(&o)) {
			row.Lows, write = op.touch(l, &o), true
		}
	}
	return write, nil
}

// retryStaying returns the retry of a refused op that leaves its row, own, under the
// definition from: the time at which so much has come back under from that the rule r
// allows the op. Of the units, before are used now.
func (op *Op) retryStaying(from *Definition, own State, r *Rule, before, now int64) int64 {
	lower := *r
	lower.Cap -= algebra.UnitsOf(op.Floor, r.Unit)
	_, _, _, _, short, _ := lower.decide(op.Verb, before, 0, 0)
	row, _ := from.carry(own, op.Key, &op.Phase, now, nil)
	var scratch Rule
	slower := from.ruleFor(op.Key, &op.Phase, &scratch)
	used, t := slower.stepped(&row, max(now, row.TS))
	return slower.wait(used-algebra.MulDiv(before-short, slower.Unit, r.Unit, false), t, now)
}

// touch returns the lows of a row that is written. A row that was full, or becomes
// full, has no lows, because a store may delete it together with them.
func (op *Op) touch(l *Lows, o *outcome) *Lows {
	if o.Before == 0 || o.After == 0 {
		return nil
	}
	next := l.clone()
	if next.touch(o.Before); op.clipped(o) {
		next.clear()
	}
	return next
}

// clipped reports whether a charge stopped at MaxUsed. If so, nothing that was
// taken before may be given back.
func (op *Op) clipped(o *outcome) bool {
	return op.Verb == VerbCharge && o.Allowed && o.After < o.Before+algebra.UnitsOf(op.Cost, op.Def.Rule.Unit)
}

// bounded reports whether MaxDelay bounds the delay of the op.
func (op *Op) bounded() bool { return op.Bounded && op.Verb == VerbReserve }

// bound refuses a reservation whose delay is above MaxDelay, with Never if even a full bucket
// would be due too late. Retry is the time until the row may go so far into debt.
func bound(o *outcome, r *Rule, op *Op) {
	if o.Never || o.Allowed && o.Delay <= op.MaxDelay {
		return
	}
	late := outcome{Before: o.Before, After: o.Before, TS: o.TS, Retry: o.Retry}
	if r.soonest(algebra.UnitsOf(op.Cost, r.Unit)) > op.MaxDelay {
		late.Never, late.Retry = true, 0
	}
	*o = late
}

// retryBounded moves the retry of a bounded reservation to the first time at which its
// delay is at most MaxDelay. That time is within the tick of the retry, or within a later tick
// if that is shorter, as a month may be. If windows begin with a call, waiting for a full
// bucket does not make the delay shorter: retryBounded then sets Never. row is the row before
// the op.
func (op *Op) retryBounded(o *outcome, row State, now int64) {
	delayAt := func(at int64) int64 {
		then := *op
		then.Bounded = false
		_, _, _ = then.Step(at, row, false) // the op's own step has found no later version, so this one returns no error
		return then.Delay
	}
	for tries := 0; tries < 16; tries++ {
		late := delayAt(now+o.Retry) - op.MaxDelay
		if late <= 0 {
			return
		}
		if tries > 0 && op.Def.Rule.BeginsWithCall() {
			o.Never, o.Retry = true, 0
			return
		}
		o.Retry += late
	}
}

// fill sets the Answer from the outcome under rule r. With dry nothing was taken, and the
// answer says what would be left.
func (op *Op) fill(o *outcome, r *Rule, now int64, dry bool) {
	a := &op.Answer
	*a = Answer{Allowed: o.Allowed, Never: o.Never, Retry: o.Retry, Delay: o.Delay}
	used := o.Before
	switch {
	case !o.Allowed:
		if op.Def.Mode == Shadow && op.Verb != VerbCharge { // in shadow mode, a charge that is too large is still an error
			a.Allowed, a.Shadow = true, true
		}
	case dry:
		a.Delay = 0
	default:
		a.Granted, used = o.Granted, o.After
	}
	a.Used, a.TS = used, o.TS
	a.Remaining = r.Remaining(used, o.TS)
	a.Reset = r.TimeToFull(used, o.TS, now)
}

// Decide decides a group at now, in µs, all or nothing. rows has the rows of its ops, in
// their order. Decide sets the answers, Allowed and Reserved, replaces each row by the one
// to store, and sets write[i] if row i must be stored. The error is ErrStaleDefinition if a
// row is of a later version than its op's Def; then nothing may be stored.
//
// Decide is for groups of ops on rows without Lows; reservations, cancellations and holds
// need records, and DecideIn decides them. rows and write must be at least as long as Ops.
// All rows must have been locked before now was read, and must stay locked until they are
// stored, or the store must write each only if it is still the row that was read. Reserved
// says that an op has to wait. If the group has an ID, DecideIn decides it instead and
// keeps the reservation; otherwise the store sets Reserved to false.
//
//	rows, write := lock(g.Ops), make([]bool, len(g.Ops)) // in the order of limit and key
//	if err := g.Decide(now(), rows, write); err != nil {
//		return err // the rows stay as they are
//	}
//	for i := range g.Ops {
//		if write[i] {
//			save(&g.Ops[i], rows[i])
//		}
//	}
func (g *Group) Decide(now int64, rows []State, write []bool) error {
	var old [MaxTakes]State
	copy(old[:], rows)
	return g.decide(now, func(i int) State { return old[i] }, rows, write)
}

// decide is Decide; old returns the rows as they were before.
func (g *Group) decide(now int64, old func(i int) State, rows []State, write []bool) error {
	g.Allowed, g.Reserved = true, false
	for i := range g.Ops {
		op := &g.Ops[i]
		var err error
		if write[i], err = op.StepRow(now, &rows[i], false); err != nil {
			return err
		}
		g.Allowed = g.Allowed && op.Allowed
		g.Reserved = g.Reserved || op.Delay > 0 && op.Granted > 0
	}
	if g.Allowed {
		if len(g.Ops) > 1 && g.Ops[0].Verb == VerbTakeUpTo {
			return g.takeLeast(now, old, rows, write)
		}
		return nil
	}
	g.Reserved = false
	for i := range g.Ops {
		write[i] = write[i] && g.Ops[i].Granted == 0 && g.Ops[i].Verb < VerbCharge // a refusal may move the row to another plan
		g.Ops[i].Delay = 0                                                         // a refused group reserves nothing
		if g.Ops[i].Granted > 0 || g.Ops[i].Verb >= VerbRefund {
			if _, _, err := g.Ops[i].Step(now, old(i), true); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeLeast makes a TakeUpTo of a limit and its parents take the same from each: the
// least that one of them grants. A limit in shadow mode that would refuse takes
// nothing, and does not count.
func (g *Group) takeLeast(now int64, old func(i int) State, rows []State, write []bool) error {
	least := int64(MaxInt)
	for i := range g.Ops {
		if op := &g.Ops[i]; !op.Shadow {
			least = min(least, op.Granted)
		}
	}
	g.Reserved = false
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Granted > least {
			cost := op.Cost
			op.Cost = least
			var err error
			rows[i], write[i], err = op.Step(now, old(i), false)
			if op.Cost = cost; err != nil {
				return err
			}
		}
		g.Reserved = g.Reserved || op.Delay > 0 && op.Granted > 0
	}
	return nil
}

// Due returns the time in µs after now at which the group's reservation is due: the
// longest Delay of its ops that take something, and 0 if none has to wait. From that
// time on the reservation cannot be cancelled, and the store may forget it.
func (g *Group) Due() int64 {
	var due int64
	for i := range g.Ops {
		if g.Ops[i].Cost > 0 {
			due = max(due, g.Ops[i].Delay)
		}
	}
	return due
}
