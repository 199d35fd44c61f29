package pgstore

import (
	"container/list"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/merge"
	"github.com/dipwell/dipwell/store"
)

// maxMerged is the largest number of calls that are merged. Each has up to
// maxTakeAllKeys rows.
const maxMerged = 64

// A waiter is a call that waits at a gate, whose lock guards it.
type waiter struct {
	store *Store       // decides the call if it is merged with others; nil: it is not merged
	group *store.Group // the caller's
	entry *entry       // of the group's only key, or nil
	shard bool         // the key has shards, which are charged at the same time

	seats int
	ready chan seat     // receives the seat
	place *list.Element // in the queue, or nil
	sent  *merged       // the statement in flight that decides the group, or nil
	late  bool          // it has waited long: if it was not decided, it goes on without a seat
	err   error         // of the group, if it was decided
}

// merged is calls that have waited at a gate and are decided by one statement, which pays
// for one commit. It runs on a goroutine of its own and outlives the contexts of single
// callers. Calls that it does not decide were not charged; they wait for a seat again,
// before all others, to be decided alone.
type merged struct {
	waiters []*waiter
	groups  []store.Group   // copies, because a caller may return meanwhile
	callers int             // who have not returned
	ctx     context.Context //nolint:containedctx // ends when all callers have returned
	cancel  context.CancelFunc
}

// mergeable returns the first calls of the queue that can be merged.
func (g *gate) mergeable() (some []*waiter) {
	for e := g.waiting.Front(); e != nil && len(some) < maxMerged; e = e.Next() {
		w := e.Value.(*waiter)
		if w.store == nil || len(some) > 0 && (w.store.db != some[0].store.db || w.entry != some[0].entry || w.shard != some[0].shard) {
			break
		}
		some = append(some, w)
	}
	return some
}

// newMerged takes calls out of the queue.
func (g *gate) newMerged(some []*waiter) *merged {
	m := &merged{waiters: some, callers: len(some), groups: make([]store.Group, len(some))}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	for i, w := range some {
		g.waiting.Remove(w.place)
		w.place, w.sent = nil, m
		to := &m.groups[i]
		*to = *w.group
		to.Ops = slices.Clone(to.Ops)
		for j := range to.Ops {
			to.Ops[j].Answer = store.Answer{}
		}
	}
	return m
}

// abandon is called when the context of a caller has ended.
func (m *merged) abandon(w *waiter) {
	w.sent = nil
	if m.callers--; m.callers == 0 {
		m.cancel()
	}
}

// run decides the calls and leaves the seat.
func (m *merged) run(at seat) {
	defer m.cancel()
	m.decide(at)
	at.mu.Lock()
	for i, w := range slices.Backward(m.waiters) {
		g := &m.groups[i]
		if w.sent == nil { // the caller has returned
			continue
		}
		switch w.sent = nil; {
		case !errors.Is(g.Err, errAlone):
			w.answer(g)
			w.ready <- seat{decided: true}
		case w.late:
			w.ready <- seat{}
		default:
			w.store, w.place = nil, at.waiting.PushFront(w)
		}
	}
	at.mu.Unlock()
	at.leave()
}

// answer copies the result into the caller's group.
func (w *waiter) answer(g *store.Group) {
	w.group.Allowed, w.group.Reserved, w.err = g.Allowed, g.Reserved, g.Err
	for i := range g.Ops {
		algebra.CopyAnswer(&w.group.Ops[i], &g.Ops[i])
	}
}

// errAlone is the error of a group that was not charged and has to be decided alone.
var errAlone = errors.New("to be decided alone")

// decide decides the groups, or sets their error to errAlone.
func (m *merged) decide(at seat) {
	groups := make([]*store.Group, len(m.groups))
	for i := range groups {
		groups[i] = &m.groups[i]
		groups[i].Err = errAlone
	}
	err := background.Call(func() error {
		switch first := m.waiters[0]; {
		case first.shard:
			return first.store.takeShardSum(m.ctx, groups, first.entry, at)
		case first.entry != nil:
			return first.store.takeSum(m.ctx, groups, first.entry)
		default:
			return first.store.takeAllSums(m.ctx, groups)
		}
	})
	if errors.Is(err, store.ErrOutcomeUnknown) {
		failAll(groups, err)
	}
}

func failAll(groups []*store.Group, err error) {
	for _, g := range groups {
		g.Err = err
	}
}

// takeSum charges the sum of groups of one key by the statement of a single take, if it
// fits.
func (s *Store) takeSum(ctx context.Context, groups []*store.Group, e *entry) error {
	op := &groups[0].Ops[0]
	row := &pendingRow{Row: &merge.Row{Groups: groups}}
	row.rule = *op.RuleFor(&row.rule)
	_, bound, _ := summable(row.Row)
	if row.prepare(len(groups), bound); row.tried < len(groups) {
		return nil
	}
	state, now, err := s.update(ctx, e, formTake, op.Key, &row.rule, row.units, room(&row.rule, row.units, bound))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return storeError(err, true)
	}
	row.answerCharged(state, now)
	if !s.seen.has(e.id, op.Key) {
		s.noteSeen(e, op.Key, false)
	}
	return nil
}

// takeAllSums charges the sums of groups of several keys by set.sql, if all of them fit.
func (s *Store) takeAllSums(ctx context.Context, groups []*store.Group) error {
	bundles, _ := s.bundles(ctx, groups, nil)
	bundles = slices.DeleteFunc(bundles, func(b *bundle) bool { return b.insert || b.mixed || b.resets })
	if len(bundles) == 0 || overriddenRows(bundles) {
		return nil
	}
	sql := setBriefSQL
	if s.noRefusals.longEnough() {
		sql = setBriefUncheckedSQL
	}
	if err := s.askSet(ctx, sql, bundles); err != nil {
		return err
	}
	for _, b := range bundles {
		again, other := b.answer()
		s.noRefusals.note(b.done)
		s.noteSeenRows(b)
		if again || other {
			b.fail(errAlone)
		}
	}
	return nil
}
