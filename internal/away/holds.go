package away

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"sync"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// maxMade bounds the holds of the inner store that are remembered, and those of openTakes.
// Ended ones are forgotten first.
const maxMade = 1 << 16

// openTakes has the holds that were made here by calls whose last takes were of limits
// that fail open. The local store does not know of these takes.
type openTakes struct {
	mu    sync.Mutex
	calls bounded.Map[string, takesOf] // by the id of the hold
}

// takesOf is how many takes a call had, and how many up to the last one that is held.
type takesOf struct{ all, held int }

// rememberOpen remembers how many takes the call g had that made the hold of the group
// local.
func (s *Fallback) rememberOpen(g, local *store.Group) {
	n := takesOf{countTakes(g.Ops), countTakes(local.Ops)}
	if n.all == n.held {
		return
	}
	o := &s.open
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls.Put(g.Hold.ID, n)
}

// isLiveHere reports whether a hold that was made here is live.
func (s *Fallback) isLiveHere(id string, _ takesOf) bool {
	h := s.local.Hold(id)
	return !h.Settled && h.Expires > s.now()
}

func countTakes(ops []store.Op) int {
	var all uint16
	for i := range ops {
		all |= ops[i].Takes
	}
	return bits.Len16(all)
}

// partHere returns a call that settles or extends a hold with the costs of those takes
// that the local store knows of.
func (s *Fallback) partHere(h store.HoldCall) (store.HoldCall, error) {
	o := &s.open
	o.mu.Lock()
	n, ok := o.calls.Get(h.ID)
	o.mu.Unlock()
	switch {
	case !ok || h.Costs == nil || len(s.local.Hold(h.ID).Parts) == 0:
	case len(h.Costs) != n.all:
		return h, &store.FieldError{Field: "costs", Reason: fmt.Sprintf("there are %d, and the hold has %d", len(h.Costs), n.all)}
	default:
		h.Costs = h.Costs[:n.held]
	}
	return h, nil
}

// made has the holds of the inner store over limits with FailLocal. It finds them by the
// id in the call that made them, and by the id in its answer.
type made struct {
	mu    sync.Mutex
	holds bounded.Map[string, *madeHold] // their values are guarded by mu too
}

// A madeHold is a hold of the inner store.
type madeHold struct {
	id      string            // for settling it
	call    [sha256.Size]byte // see callOf
	ttl     int64
	expires int64
	ended   bool
}

func (m *made) get(id string) *madeHold {
	h, _ := m.holds.Get(id)
	return h
}

// makesLocally reports whether a group makes a hold that this store may decide.
func makesLocally(g *store.Group) bool {
	return g.Hold != nil && g.Hold.Verb == store.MakeHold &&
		slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Def.OnStoreError == store.FailLocal })
}

// callOf returns a hash of what a repeat of a call that makes a hold must have in common
// with it. It is a hash because the text may have 10 kB, and 65,536 of them are kept.
func callOf(g *store.Group) [sha256.Size]byte {
	b := strconv.AppendInt(nil, g.Hold.TTL, 10)
	for i := range g.Ops {
		op := &g.Ops[i]
		b = strconv.AppendQuote(append(b, ' '), op.Def.Name)
		b = strconv.AppendQuote(append(b, ' '), op.Key)
		b = strconv.AppendQuote(append(b, ' '), op.Def.Plan)
		b = strconv.AppendInt(append(b, ' '), op.Cost, 10)
		b = strconv.AppendInt(append(b, ' '), op.Floor, 10)
		b = strconv.AppendUint(append(b, ' '), uint64(op.Takes), 10)
	}
	return sha256.Sum256(b)
}

// applyHolds is Apply for a batch with groups about holds. A hold that was made here is
// repeated here even if the inner store answers, because that would make a second one.
// Holds that the inner store makes are remembered, so that they can be repeated while it
// does not answer.
func (s *Fallback) applyHolds(ctx context.Context, b *store.Batch) error {
	type sent struct {
		id   string
		call [sha256.Size]byte
	}
	sents := make([]sent, len(b.Groups))
	var rest store.Batch
	var at []int // by group of rest: index in b
	for i := range b.Groups {
		g := &b.Groups[i]
		if makesLocally(g) {
			if h := s.local.Hold(g.Hold.ID); len(h.Parts) > 0 && h.Forget > s.now() {
				var can bool
				if g.Err, can = s.decideHere(g); !can { // also a limit that fails closed, so it is another call
					g.Err = store.ErrHoldConflict
				}
				continue
			}
			sents[i] = sent{g.Hold.ID, callOf(g)}
		}
		rest.Groups, at = append(rest.Groups, *g), append(at, i)
	}
	if len(at) == 0 {
		return nil
	}
	began := s.clock()
	err := s.inner.Apply(ctx, &rest)
	for j, i := range at {
		g := &b.Groups[i]
		*g = rest.Groups[j]
		if err != nil {
			g.Err = err
		}
		switch {
		case g.Err == nil:
			s.remember(g, began)
			s.made.learn(g, sents[i].id, sents[i].call)
		case sents[i].id != "" && storeFailed(g.Err) && s.repeat(g, sents[i].call):
		default:
			g.Err = s.decide(g, g.Err)
		}
	}
	return nil
}

// learn remembers a hold that the inner store has answered about. id and call are what
// was sent to make it, or empty.
func (m *made) learn(g *store.Group, id string, call [sha256.Size]byte) {
	h := g.Hold
	switch {
	case h == nil || !g.Allowed || h.Verb == store.MakeHold && id == "":
		return
	case h.Verb == store.MakeHold && !slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Source == store.SourceStore }):
		return // a decorator below made it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch known := m.get(h.ID); {
	case h.Verb == store.MakeHold:
		known = &madeHold{id: h.ID, call: call, ttl: h.TTL, expires: h.Expires}
		if m.holds.Put(id, known); h.ID != id { // in a Redis Cluster the ids differ
			m.holds.Put(h.ID, known)
		}
	case known == nil:
	case h.Verb == store.ExtendHold:
		known.expires = h.Expires
	default:
		known.ended = true
	}
}

// find returns a copy of what is known about a hold, unless the hold is forgotten at now.
func (m *made) find(id string, now int64) (madeHold, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.get(id); h != nil && h.expires+store.ForgetAfter(h.ttl) > now {
		return *h, true
	}
	return madeHold{}, false
}

// repeat answers a call that the inner store failed to answer, if that store made the
// hold before. It takes nothing, and answers with what remains in the local bucket.
func (s *Fallback) repeat(g *store.Group, call [sha256.Size]byte) (done bool) {
	now := s.now()
	h, ok := s.made.find(g.Hold.ID, now)
	if !ok || slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Def.OnStoreError == store.FailClosed && !op.FailsOpen() }) {
		return false
	}
	if h.call != call || h.ended || h.expires <= now {
		g.Err = store.ErrHoldConflict
		return true
	}
	var b store.Batch
	var ops [store.MaxTakes]store.Op
	look, _ := b.Single()
	look.Ops = ops[:len(g.Ops)]
	for i := range g.Ops {
		op := &g.Ops[i]
		look.Ops[i] = store.Op{Def: op.Def, Key: op.Key, Verb: store.VerbCheck}
	}
	if s.applyLocal(&b) != nil {
		return false
	}
	for i := range g.Ops {
		op, a := &g.Ops[i], look.Ops[i].Answer
		op.Answer = store.Answer{Source: store.SourceFallbackLocal, Allowed: true, Granted: op.Cost, Remaining: a.Remaining, Reset: a.Reset, Used: a.Used, TS: a.TS}
	}
	g.Err, g.Allowed, g.Reserved = nil, true, false
	g.Hold.ID, g.Hold.Repeated, g.Hold.Expires = h.id, true, h.expires
	return true
}
