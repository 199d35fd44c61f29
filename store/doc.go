// Package store is for authors of stores and of decorators. It has the Store interface
// and the batches that a store decides, the definitions of limits with their versions,
// and the rule that decides a call. Users of a limiter need only package dipwell.
//
// # The call
//
// A Limiter makes one Batch for a call and passes it to Store.Apply. A Batch has
// Groups, which are independent of each other: a decorator may put those of many
// callers into one batch. A Group happens at one instant, all or nothing. It is one of
//
//   - 1 to MaxTakes Ops, each a Verb on one key of one limit. The parents of a limit are
//     Ops of their own, which the caller adds.
//   - a new hold: Ops with VerbTake, and Hold with MakeHold.
//   - the end or extension of a hold: Hold with SettleHold or ExtendHold, and no Ops.
//   - the cancellation of a reservation: Cancel and ID, and no Ops.
//
// The caller fills the Batch, and has checked it: costs are from 0 to MaxInt, keys have
// at most MaxKey bytes and as many parts as the limit and its parents say, the verb is
// possible on the limit, as type Algorithm and Limit.Shards say, and no two Ops of a Group
// have the same limit and key. The Ops come in any order: a store that locks rows must sort
// them by limit and key, so that two groups cannot deadlock.
//
// The store fills Group.Err, Allowed and Reserved, the answers of Group.Hold, and of each
// Op Asked, Def and the Answer. A refusal is an answer: Err is nil, Allowed is false, and
// the Ops say why and when to try again. Err means that the group was not decided.
//
// # Time and numbers
//
// All times are whole microseconds: times of the store's clock since the Unix epoch, or
// lengths. The clock is the store's, never a caller's. A store reads its clock once for each
// group, after the rows are locked: with a time from before a wait for a lock, tokens that
// come back during the wait would be counted twice. The clock may step back. A row's TS never
// does, so no tokens are created, and retry times grow by at most the step.
//
// Costs and bursts are in tokens, and rows count units; a token is Rule.Unit units, so
// that fractions of tokens are whole numbers. No number is above MaxInt, which int64,
// SQL's bigint and a double all hold exactly.
//
// # Rows
//
// A key has a row, a State: Used units were taken and had not come back at the time TS. A
// key without a row has a full bucket. A store may therefore delete a row that is full
// (Definition.Full) at any time, and no decision changes. A refusal and a VerbCheck store
// nothing: frequent calls delay nobody, and reading a key creates no row.
//
// Version is the number of the definition that Used is counted in. Version has 32 bits, all of
// which must be kept: it also says which plan or override the row is under. When a limit is
// changed, its rows stay as they are. The next call of a key steps its row under the old
// definition up to the instant of the change, and converts it. Op.Step does that, so that a
// store only has to give back the State that it was given. Definition.Past has the older
// versions under which rows may still be. A row of a later version than the caller's Def means
// that another process has changed the limit: the error is ErrStaleDefinition. The store then
// reads its limits again, and retries; a caller never sees it.
//
// # Which definition decides
//
// Op.Def is what the caller named: the base definition of a limit, or one of its plans. An
// Override of the key, if there is one, decides in its place until it ends. The store reads
// the override together with the row, into State.Override, and does so also if the key has no
// row. Op.Step then sets Def to the definition that decided, and Asked to the one that the
// caller named.
//
// # Reservations and holds
//
// A VerbReserve, and a VerbTake of a leaky bucket, may go into debt: the op is allowed
// with a Delay. If the group has an ID, Reserved says that the store keeps the
// reservation, until it is due or cancelled. A hold takes tokens at once, and is settled
// to its actual cost later, or expires.
//
// Both leave a Record of what they took on each of their keys, because time may return tokens
// before they are given back, and the same token must not come back twice. A row with records
// has Lows: for each record, the least that has been in use since it was made. No more than that
// can be given back. A new record appends to the Lows, and each call that writes the row lowers
// them. DecideIn makes and ends the records. The Lows have the time at which the first of the
// records expires or falls due; until then a call that makes or ends no record decides without
// reading them. Rows without records have no Lows and pay nothing for them. A VerbReset ends all
// records of its key.
//
// A row of a concurrency limit has records and no Lows: its tokens come back when holds
// end, never by time.
//
// # Errors
//
// An error of Apply applies to all groups, one in Group.Err to its group. Both kinds
// wrap ErrStore if the store failed, and a class if more is known: ErrOutcomeUnknown if
// the call may have been charged, ErrLocked, ErrFull and ErrNoSpace if it was not. If
// the context has ended, they wrap its error as well. The Limiter answers such a call by
// the FailureMode of its limits. A *FieldError, ErrReservation, ErrUnknownHold,
// ErrHoldConflict and ErrUnknownLimit are about the call, and are not failures of the
// store.
//
// # Writing a store
//
// A store that keeps rows in a table of its own implements Table, and decides each group
// by Group.DecideIn under a lock, or in a transaction that it rolls back on an error:
//
//	func (s *Store) Apply(_ context.Context, b *store.Batch) error {
//		s.mu.Lock()
//		defer s.mu.Unlock()
//		for i := range b.Groups {
//			g := &b.Groups[i]
//			g.Err = g.DecideIn(s.table, &s.limits, s.now()) // reads the clock under the lock
//		}
//		return nil
//	}
//
// A store with its own statements may decide groups of ops on rows without Lows by Op.Step
// or Group.Decide, and then does itself what else DecideIn does for them. Of the Abilities,
// implement Limits first, a Definer over a Registry, because DecideIn looks up the limits of a
// reservation there. SweepRow is the sweep. Package storetest tests a store of either kind,
// and its duties.go lists the duties that it tests.
//
// # Writing a decorator
//
// A decorator is a Store over another Store. It returns the Abilities of the inner Store,
// with its own in place of those that it changes. It may answer a group itself; it then
// sets Allowed of the group, the Answer of every op, and Source. A decorator must pass on
// what it does not know, such as a cancellation or a hold. A decorator must not keep the
// batch after Apply, but may keep keys and definitions. After the inner Apply,
// Answer.Used and TS are the row under Op.Def, from which Op.Step computes later states.
// So a deny cache knows until when a key would be refused. A decorator that changes
// Op.Key sets Op.Phase to 0 and puts the key back afterwards.
package store
