package limittest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// batch sends several calls at once. A store may decide them in any order, so the model
// must give the same answers in some order.
func (h *history) batch() {
	h.Helper()
	groups := make([]store.Group, 2+h.IntN(3))
	cancels := false
	for i := range groups {
		g := h.group()
		for g.Cancel && cancels || g.Hold != nil && g.Hold.Verb == store.MakeHold && slices.Contains(h.holds, g.Hold.ID) || h.but.Forget && h.hidesOrder(groups[:i], &g) || extended(groups[:i], &g) {
			g = h.group()
		}
		cancels = cancels || g.Cancel // if there are two cancellations, no answer says which was first
		if g.Hold != nil && g.Hold.Verb == store.MakeHold {
			g.Hold.ID = fmt.Sprint(g.Hold.ID, "of", i)
		}
		for j := range g.Ops {
			op := &g.Ops[j]
			h.called[at{op.Def.Name, op.Key}] = max(h.called[at{op.Def.Name, op.Key}], *h.now)
		}
		groups[i] = g
	}
	got := h.ask(h.s, h.ab.Limits.Registry(), groups...)
	before := h.m.clone()
	var differ []string
	for _, order := range orders(len(groups)) {
		h.m.table = before.clone()
		want := make([]store.Group, len(groups))
		reason := ""
		for _, i := range order {
			want[i] = h.ask(h.m, &h.m.reg, groups[i])[0]
			if a, b := h.inBatch(&groups[i], got[i], want[i]); a != b {
				reason = fmt.Sprintf("in the order %v call %d is\n%s\nwant\n%s", order, i, a, b)
				break
			}
		}
		if reason == "" {
			h.answered(groups, got, want)
			return
		}
		differ = append(differ, reason)
	}
	for _, g := range groups {
		differ = append(differ, text(&g))
	}
	h.Errorf("a batch at %d:\n%s", *h.now, strings.Join(differ, "\n"))
}

// extended reports whether a call extends a hold that another call extends too: no answer
// says which came last.
func extended(groups []store.Group, g *store.Group) bool {
	return g.Hold != nil && g.Hold.Verb == store.ExtendHold && slices.ContainsFunc(groups, func(other store.Group) bool {
		return other.Hold != nil && other.Hold.Verb == store.ExtendHold && other.Hold.ID == g.Hold.ID
	})
}

// hidesOrder reports whether a call resets or refunds a key that another one uses, or the
// reverse. A Reset has the same answer before and after the other call, and so has a
// Refund that fills the bucket: no answer says which was first.
func (h *history) hidesOrder(groups []store.Group, g *store.Group) bool {
	return slices.ContainsFunc(groups, func(other store.Group) bool { return h.hides(&other, g) || h.hides(g, &other) })
}

// hides reports whether group a resets or refunds a key that group b uses. The
// history does not know the keys of a reservation.
func (h *history) hides(a, b *store.Group) bool {
	used := b.Ops
	if b.Hold != nil && b.Hold.Verb != store.MakeHold {
		used = h.made[slices.Index(h.holds, b.Hold.ID)].Ops
	}
	for _, x := range a.Ops {
		uses := func(op store.Op) bool { return op.Def.Name == x.Def.Name && op.Key == x.Key }
		if (x.Verb == store.VerbReset || x.Verb == store.VerbRefund) && (b.Cancel || slices.ContainsFunc(used, uses)) {
			return true
		}
	}
	return false
}

// inBatch returns the text of both answers to a call, without those parts in which a
// store that sweeps may differ.
func (h *history) inBatch(asked *store.Group, got, want store.Group) (a, b string) {
	got.Ops, want.Ops = slices.Clone(got.Ops), slices.Clone(want.Ops)
	if h.but.Answers != nil {
		h.but.Answers(&Call{Group: clone(*asked), Beside: true}, &got, &want)
	}
	for i := range min(len(got.Ops), len(want.Ops)) {
		if a, b := &got.Ops[i].Answer, &want.Ops[i].Answer; h.but.Sweeps {
			a.Remaining, a.Reset, a.Used, a.TS = b.Remaining, b.Reset, b.Used, b.TS
		} else if a.TS == 0 { // the store does not return the row
			a.Used, b.Used, b.TS = 0, 0, 0
		}
	}
	return text(&got), text(&want)
}

// answered records the reservations and holds that the calls made.
func (h *history) answered(asked, got, want []store.Group) {
	for i := range want {
		g, w := &asked[i], &want[i]
		if g.Hold != nil && g.Hold.Verb == store.MakeHold && w.Allowed && w.Err == nil {
			h.holds, h.made = append(h.holds, g.Hold.ID), append(h.made, *g)
		}
		for j := range w.Ops {
			k := at{w.Ops[j].Def.Name, w.Ops[j].Key}
			h.called[k] = max(h.called[k], *h.now)
		}
		if w.Reserved {
			h.reservations = append(h.reservations, g.ID)
			h.ids[g.ID] = got[i].ID
		}
	}
}

// orders returns all orders of n indexes, beginning with 0, 1, 2, ….
func orders(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, before := range orders(n - 1) {
		for i := n - 1; i >= 0; i-- {
			all = append(all, slices.Insert(slices.Clone(before), i, n-1))
		}
	}
	return all
}

// ask sends copies of groups, with definitions from a registry.
func (h *history) ask(s store.Store, reg *store.Registry, groups ...store.Group) []store.Group {
	h.Helper()
	var b store.Batch
	for _, g := range groups {
		if g = clone(g); g.Cancel && s == h.s {
			g.ID = h.ids[g.ID]
		}
		for i := range g.Ops {
			op := &g.Ops[i]
			base := reg.Lookup(op.Def.Name)
			if op.Def = base.WithPlan(op.Def.Plan); op.Def == nil { // the plan was dropped
				op.Def = base
			}
		}
		b.Groups = append(b.Groups, g)
	}
	if len(groups) == 1 && s == h.s && h.quick(&b.Groups[0]) {
		return b.Groups
	}
	if err := s.Apply(context.Background(), &b); err != nil {
		for i := range b.Groups {
			b.Groups[i].Err = err
		}
	}
	return b.Groups
}
