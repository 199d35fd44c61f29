package dipwell

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A Limiter decides calls by the limits in a store. It is safe for concurrent use. New
// makes one: the methods of a zero Limiter, which has no store, panic.
//
// The methods of a Limiter return a Decision and an error. A refusal is a Decision that is
// not Allowed. An error means that the call was not decided: a *FieldError for invalid
// input, ErrUnknownLimit, or an error that wraps ErrStore. n is in tokens, from 0 to
// 2^53-1. A key has 1 to 512 bytes of UTF-8 without NUL; that of a shared limit is Shared.
//
// If the store fails, the limit's OnStoreError decides: the call returns the error and
// a Decision that is not Allowed, or with FailOpen or in Shadow mode a Decision that is
// Allowed, and no error. Decision.Source says how the answer was made. A limit's Timeout
// bounds how long a call waits for the store, besides the context.
type Limiter struct {
	store     store.Store
	definer   store.Definer
	registry  *store.Registry
	differing *differing // definitions made by call sites (TakeWith)
	abilities store.Abilities
	queues    *queues // queues of callers of Wait; shared by With, as adaptives are
	adaptives *adaptives
}

const newTimeout = 30 * time.Second // so that a store that hangs does not stop a program's start

// New returns a Limiter over a store, and defines limits in the store with the owner
// store.OwnerCode, parents before the limits that have them. Limits that are already in
// the store can be used too. New fails after 30 seconds; Define takes a context instead.
// The error is a *FieldError, also if two limits have the same name, or wraps ErrOwner
// or ErrStore.
func New(s store.Store, limits ...Limit) (*Limiter, error) {
	if s == nil {
		return nil, errors.New("dipwell: the store is nil")
	}
	if name := repeated(limits); name != "" {
		return nil, &FieldError{Limit: name, Field: "name", Reason: "is given twice"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), newTimeout)
	defer cancel()
	l := (&Limiter{differing: new(differing), queues: new(queues), adaptives: new(adaptives)}).With(s)
	if l.definer = l.abilities.Limits; l.definer == nil {
		l.definer = &localLimits{now: l.abilities.Now, blocks: l.abilities.Overrides != nil}
	}
	l.registry = l.definer.Registry()
	for _, limit := range store.ParentsFirst(limits, func(l *Limit) *Limit { return l }) {
		if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// repeated returns a name that two of the limits have, or "". If both were defined, one after
// the other, they would make two new versions of the limit at each start of the program.
func repeated(limits []Limit) string {
	seen := make(map[string]bool, len(limits))
	for i := range limits {
		if name := limits[i].Name; seen[name] {
			return name
		}
		seen[limits[i].Name] = true
	}
	return ""
}

// With returns a Limiter with the same limits over another store, for instance one
// that is bound to the caller's transaction. Both Limiters share the queues of Wait.
// The limits are those of the first store: s must keep its rows under the same
// definitions. With panics if s is nil.
func (l *Limiter) With(s store.Store) *Limiter {
	if s == nil {
		panic("dipwell: Limiter.With: the store is nil")
	}
	c := *l
	c.store, c.abilities = s, store.AbilitiesOf(s)
	return &c
}

// Store returns the store that New or With got. store.AbilitiesOf says what it can do.
func (l *Limiter) Store() store.Store { return l.store }

// Take takes n tokens if all of them are free, and otherwise none. A refusal says in
// RetryAfter when the same call would first be allowed if nobody else took tokens, and is
// Never if n is more than the limit can ever grant. On a leaky bucket, Take reserves as
// Reserve does.
//
// n is from 0 to 2^53-1; taking 0 is the same as checking 0. A refusal writes nothing, so
// frequent calls do not delay later grants. One microsecond before RetryAfter has passed,
// the same call is still refused. The tokens are taken when Take returns: a caller that
// does not use them may give them back with Refund, or take them with Hold in the first
// place.
//
// The error is a *FieldError for a bad key or cost, ErrUnknownLimit, or wraps ErrStore.
// If the context ends first, the error also wraps the context's error, and the tokens may
// have been taken.
func (l *Limiter) Take(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	err = l.take(ctx, &d, limit, key, n)
	return
}

// Check returns what Take would return, and changes nothing. Another caller may take the
// tokens before your next Take. If that matters, call Take without Check.
//
// To read a bucket, call Check with n 0: it is allowed, and Remaining and ResetAfter are
// the bucket's. A key that was never used has a full bucket; Check makes no row.
func (l *Limiter) Check(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	err = l.Do(ctx, &d, store.VerbCheck, Take{Limit: limit, Key: key, Cost: n})
	return
}

// TakeUpTo takes as many free tokens as there are, up to n, and sets Granted to their
// number. TakeUpTo is refused if no whole token is free; RetryAfter is then the time
// until one is. On a limit with a Parent, TakeUpTo takes the same number from each
// level: the smallest number that is free on any level.
//
// Use TakeUpTo for work that can be done in part: send Granted of n messages, and the rest
// later. Two callers at the same time share the free tokens; no token is granted twice.
func (l *Limiter) TakeUpTo(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	err = l.Do(ctx, &d, store.VerbTakeUpTo, Take{Limit: limit, Key: key, Cost: n})
	return
}

// Reserve takes n tokens ahead of time, up to MaxDebt tokens more than are free. The
// caller acts after Delay, or calls Cancel with Reservation to give the tokens back.
// Reserve is refused if the debt would exceed MaxDebt, with Never if n is more than
// Burst and MaxDebt together. If Delay is 0 the tokens were free: there is no
// Reservation, and nothing to cancel.
//
// Reservations are served in the order in which they reached the store: a later
// reservation waits until the debt of earlier ones is paid back, and until then a Take is
// refused. Delay counts from the store's answer. Cancel gives back as much as possible
// without changing the delays of later reservations.
//
// If the error wraps store.ErrOutcomeUnknown, the tokens may have been reserved under
// Reservation, which can be cancelled.
//
//	d, err := limiter.Reserve(ctx, "mail", dipwell.Shared, 1)
//	if err == nil && d.Allowed {
//		time.AfterFunc(d.Delay, send) // limiter.Cancel(ctx, d.Reservation) until then
//	}
func (l *Limiter) Reserve(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	err = l.Do(ctx, &d, store.VerbReserve, Take{Limit: limit, Key: key, Cost: n})
	return
}

// Charge takes n tokens, however few are free. Use Charge for a cost that is known only
// afterwards. A Charge is always allowed; later calls are refused until the debt is paid
// back. The error is a *FieldError if n is more than MaxCharge, by default ten bursts: the
// largest MaxCharge of the limit, its plans and the override of the key.
//
// Limits in shadow mode and blocked plans are charged too. If the outcome of a Charge is
// unknown, repeating it may charge twice; Settle may be repeated.
func (l *Limiter) Charge(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	err = l.Do(ctx, &d, store.VerbCharge, Take{Limit: limit, Key: key, Cost: n})
	return
}

// Refund gives n tokens back. A full bucket stays full: tokens that time has already
// returned are not given back twice, so Refund long after a Take may do nothing.
// Cancel and Settle count exactly what can be given back.
//
// Refund is always allowed, and Remaining is the number of tokens afterwards. Refund does
// not end reservations and holds of the key, but tokens given back by it are not given
// back again by Cancel or Settle.
func (l *Limiter) Refund(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	err = l.Do(ctx, &d, store.VerbRefund, Take{Limit: limit, Key: key, Cost: n})
	return
}

// Reset makes a bucket full, and ends its reservations and holds: Cancel then fails
// with ErrReservation, and Settle gives nothing back. The parents of the limit stay as
// they are. An override of the key stays too.
//
// Use Reset by hand, for example to unlock a customer, or in a test. No call resets
// all keys of a limit; Drop and then Define do that.
func (l *Limiter) Reset(ctx context.Context, limit, key string) (d Decision, err error) {
	err = l.Do(ctx, &d, store.VerbReset, Take{Limit: limit, Key: key})
	return
}

// TakeWith is Take with a limit that the caller defines: the first call defines the limit in
// the store, which needs the right to define limits. If the store has a limit of that name
// that counts otherwise, the one in the store decides. The difference is logged once, by
// the default logger of package slog. The error is a *FieldError if limit is invalid.
//
// The limit's name must not come from a request, because the store keeps every limit.
// Numbers that belong to one customer are a plan or an override: see Limit.Plans.
func (l *Limiter) TakeWith(ctx context.Context, limit Limit, key string, n int64) (d Decision, err error) {
	if _, err = l.ensure(ctx, &limit); err == nil {
		err = l.Do(ctx, &d, store.VerbTake, Take{Limit: limit.Name, Key: key, Cost: n})
	}
	return
}

// Do is Take, Check, TakeUpTo, Reserve, Charge, Refund or Reset, with the verb as an
// argument, and with the plan and floor of t. Do sets *d, which may be reused for many
// calls. If it returns an error, *d is not a decision.
func (l *Limiter) Do(ctx context.Context, d *Decision, verb store.Verb, t Take) error {
	def := l.registry.Lookup(t.Limit)
	if t.With != nil || t.Plan != "" || t.Floor != 0 || def != nil && (special(def) || verb > store.VerbReset) {
		return l.doTake(ctx, d, verb, def, &t)
	}
	if def == nil {
		return l.registry.Missing(t.Limit)
	}
	d.reset()
	key, err := check(def, t.Key, t.Cost)
	if err != nil {
		return err
	}
	if l.quick(d, verb, def, key, t.Cost) {
		return nil
	}
	return l.doBatch(ctx, d, verb, def, key, t.Cost, 0)
}

// special reports whether doTake must decide the calls of a limit.
func special(def *store.Definition) bool { return def.Paths || restricted(def) }

// restricted reports whether some verbs are not possible on a limit, apart from holds.
func restricted(def *store.Definition) bool {
	return def.Rule.Sliding || def.Algorithm == store.Concurrency || isAdaptive(def) || def.Shards > 1
}

// ensure returns the limit's definition in force, and defines the limit if the store has none.
func (l *Limiter) ensure(ctx context.Context, limit *Limit) (*store.Definition, error) {
	def := l.registry.Lookup(limit.Name)
	if def != nil && def.Limit == *limit {
		return def, nil
	}
	if def == nil {
		var err error
		if def, err = l.definer.Define(ctx, *limit, terms.OwnerCallSite); err != nil || def.Limit == *limit {
			return def, err
		}
	}
	return def, l.differing.compare(def, limit)
}

// take decides a Take into a zero Decision. take asks Quick before it checks
// the key, because a key that has a row was checked when the row was made.
func (l *Limiter) take(ctx context.Context, d *Decision, limit, key string, n int64) error {
	def := l.registry.Lookup(limit)
	if def == nil {
		return l.registry.Missing(limit)
	}
	if special(def) {
		return l.doTake(ctx, d, store.VerbTake, def, &Take{Limit: limit, Key: key, Cost: n})
	}
	if l.abilities.Quick != nil && !def.Shared && len(key) > len(Shared) && len(key) <= store.MaxKey {
		d.setCall(def, key, n) // set before the call, so that the processor writes it while the store works
		if a, held, ok := l.abilities.Quick(def, key, store.VerbTake, n, false); ok {
			d.setAnswer(a, l.abilities.QuickSource, held)
			return nil
		}
	}
	key, err := check(def, key, n)
	if err != nil {
		*d = Decision{}
		return err
	}
	if l.quick(d, store.VerbTake, def, key, n) {
		return nil
	}
	return l.doBatch(ctx, d, store.VerbTake, def, key, n, 0)
}

// quick decides a checked call in the process, if the store can, and reports whether it did.
func (l *Limiter) quick(d *Decision, verb store.Verb, def *store.Definition, key string, n int64) bool {
	if l.abilities.Quick == nil {
		return false
	}
	d.setCall(def, key, n)
	a, held, ok := l.abilities.Quick(def, key, verb, n, true)
	if ok {
		d.setAnswer(a, l.abilities.QuickSource, held)
	}
	return ok
}

// check checks a call of a limit whose keys are not paths, and returns the key for the store.
func check(def *store.Definition, key string, n int64) (string, error) {
	if uint64(n) > store.MaxInt {
		return "", checkCost(n)
	}
	key, err := checkKey(key)
	if err == nil && def.Shared != (key == "") {
		return "", keyless(def)
	}
	return key, err
}

// keyless returns the error for a key where there must be none, or for a missing one.
func keyless(def *store.Definition) error {
	if def.Shared {
		return badField("key", "limit %s is shared: its calls have no key", def.Name)
	}
	return badField("key", "is missing; limit %s has a bucket for each key (shared: true would make it one for everybody)", def.Name)
}

func (l *Limiter) doBatch(ctx context.Context, d *Decision, verb store.Verb, def *store.Definition, key string, n, floor int64) error {
	c := calls.Get().(*call)
	g, op := c.batch.Single()
	op.Def, op.Key, op.Verb, op.Cost, op.Floor = def, key, verb, n, floor
	if verb == store.VerbReserve || def.Rule.Leaky && verb == store.VerbTake {
		g.ID = c.newID()
	}
	c.timeout, c.extra = def.Timeout, restricted(def)
	err := l.decide(ctx, c)
	d.fill(op)
	d.setReservation(g, err)
	op.Key = ""
	c.end()
	return err
}

// decide sends the batch of a call, which has one group, to the store. If the store fails, the
// group is answered by the failure modes of its limits.
func (l *Limiter) decide(ctx context.Context, c *call) error {
	if c.timeout > 0 && !l.abilities.InProcess {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	g := &c.batch.Groups[0]
	if c.extra {
		l.adaptives.price(g)
	}
	var err error
	if c.extra && hasShards(g) {
		err = l.applySharded(ctx, &c.batch, g)
	} else {
		err = l.store.Apply(ctx, &c.batch)
	}
	if err == nil {
		err = g.Err
	}
	if err == nil && !g.Allowed {
		err = tooLarge(g)
	}
	if err == nil {
		if c.extra {
			l.adaptives.remained(g)
		}
		return nil
	}
	g.Err = err
	return fail(g, err)
}

// tooLarge returns an error if a group's charge was refused because it is larger than
// MaxCharge, and nil otherwise. The error names the first limit that refused.
func tooLarge(g *store.Group) error {
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Verb == store.VerbCharge && !op.Allowed {
			return badField("cost", "%d is more than limit %s lets a charge be, %d", op.Cost, op.Def.Name, op.Def.MostCharge())
		}
	}
	return nil
}

// fail answers a group that the store failed to decide with the error err. The group is
// allowed if all of its limits fail open or are in shadow mode, and refused with an error
// otherwise.
func fail(g *store.Group, err error) error {
	open := len(g.Ops) > 0
	for i := range g.Ops {
		open = open && g.Ops[i].FailsOpen()
	}
	var field *FieldError
	invalid := errors.As(err, &field) || errors.Is(err, ErrUnknownHold) || errors.Is(err, ErrHoldConflict) || errors.Is(err, ErrUnknownLimit)
	open = open && !invalid // if invalid, the store has answered, so no failure mode applies
	source := store.SourceFallbackClosed
	if open {
		source = store.SourceFallbackOpen
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		opens := !invalid && op.FailsOpen() // this op is not what refuses the call
		op.Answer = store.Answer{Source: source, Allowed: opens, Shadow: opens && op.Def.OnStoreError != FailOpen}
	}
	if g.Allowed, g.Reserved = open, false; open {
		return nil
	}
	if !errors.Is(err, ErrStore) && !invalid {
		err = fmt.Errorf("%w: %w", ErrStore, err)
	}
	return err
}

// fill sets d, which is zero or was reset, to the decision for an op that a store has answered.
func (d *Decision) fill(op *store.Op) {
	d.setCall(op.Def, op.Key, op.Cost)
	a := &op.Answer
	d.Allowed, d.Never, d.Shadow, d.Source = a.Allowed, a.Never, a.Shadow, a.Source
	d.Granted, d.Remaining = a.Granted, a.Remaining
	d.RetryAfter, d.ResetAfter, d.Delay = us(a.Retry), us(a.Reset), us(a.Delay)
	if d.RetryIsBound = a.Bound; op.Def.Mode == store.Unlimited {
		d.Capacity = store.MaxInt
	} else if isAdaptive(op.Def) && op.Verb <= store.VerbCheck {
		d.Remaining, d.Capacity = atPrice(op)
		d.RetryIsBound = a.Retry > 0
	}
}

// setAnswer sets the fields that Quick has answered, and then unlocks held, if it is not nil.
func (d *Decision) setAnswer(a store.QuickAnswer, source store.Source, held *sync.Mutex) {
	d.Allowed, d.Never, d.Shadow, d.Source = a.Retry == 0, false, false, source
	d.Granted, d.Remaining = a.Granted, a.Remaining
	d.RetryAfter, d.ResetAfter, d.Delay = us(a.Retry), us(a.Reset), 0
	if held != nil {
		held.Unlock()
	}
}

// setReservation sets the reservation that a group made, or may have made.
func (d *Decision) setReservation(g *store.Group, err error) {
	if g.Reserved || err != nil && errors.Is(err, store.ErrOutcomeUnknown) {
		d.Reservation = g.ID
	}
}

func (d *Decision) setCall(def *store.Definition, key string, cost int64) {
	d.Definition, d.Limit, d.Key, d.Cost, d.Capacity = def, def.Name, key, cost, def.Rule.Burst
	d.Plan = def.Plan
}

// reset clears those fields of a used Decision that setCall and the answer might not set.
func (d *Decision) reset() {
	d.Reservation, d.Repeated, d.RetryIsBound = Reservation{}, false, false
	if d.Limits != nil || d.Hold != "" || d.Expires != (time.Time{}) { // testing first is cheaper than storing pointers
		d.Limits, d.Hold, d.Expires = nil, "", time.Time{}
	}
}

// us returns n µs as a Duration, at most the longest one. n may be that large
// after the store's clock stepped back by years.
func us(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond
}

// Cancel gives a reservation's tokens back, of all its limits, once, before it is due. If
// the reservation is unknown, already cancelled, due or reset, the error is ErrReservation
// and nothing changes. Any other error wraps ErrStore or is the context's: it is then
// unknown whether the tokens were given back, and Cancel may be called again.
func (l *Limiter) Cancel(ctx context.Context, id Reservation) error {
	c := calls.Get().(*call)
	defer c.end()
	g, _ := c.batch.Single()
	g.Ops, g.ID, g.Cancel = nil, id, true
	if err := l.store.Apply(ctx, &c.batch); err != nil {
		return err
	}
	return g.Err
}

func checkCost(n int64) error {
	if n < 0 || n > store.MaxInt {
		return badField("cost", "%d is not between 0 and 2^53-1", n)
	}
	return nil
}

// checkKey checks a key of a limit and returns it, or "" for Shared.
func (l *Limiter) checkKey(def *store.Definition, key string) (string, error) {
	key, err := checkKey(key)
	switch {
	case err != nil:
	case def.Shared != (key == ""):
		err = keyless(def)
	case def.Paths && !def.Shared:
		err = l.checkParts(def, key)
	}
	return key, err
}

// checkKey checks a key and returns it, or "" for Shared.
func checkKey(key string) (string, error) {
	if isPlain(key) {
		return key, nil
	}
	switch {
	case key == Shared:
		return "", nil
	case key == "":
		return "", badField("key", "is empty")
	case len(key) > store.MaxKey:
		return "", badField("key", "has %d bytes; at most %d", len(key), store.MaxKey)
	case !utf8.ValidString(key):
		return "", badField("key", "is not valid UTF-8")
	case strings.IndexByte(key, 0) >= 0:
		return "", badField("key", "has a NUL byte")
	}
	return key, nil
}

// isPlain reports whether a key is neither empty nor too long, and ASCII without NUL.
func isPlain(key string) bool {
	if uint(len(key)-1) >= store.MaxKey {
		return false
	}
	var all byte
	for i := range len(key) {
		all |= key[i] | (key[i] - 1) // the highest bit is set if the byte is 0, or above 0x7f
	}
	return all < 0x80
}
