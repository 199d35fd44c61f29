package server

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

// keys answers GET /v1/limits/{name}/keys: a page of live keys, or one of them.
func (a *api) keys(w http.ResponseWriter, r *http.Request, q *query) error {
	def := a.limiter.Limit(r.PathValue("name"))
	one, err := q.one()
	switch {
	case err != nil:
		return err
	case !one && q.cost > 0:
		return bad("cost", "is of the check of a key; give key too")
	case def == nil:
		return unknownLimit(r.PathValue("name"))
	case !one:
		return a.listKeys(w, r, def, q)
	}
	l, err := a.look(r.Context(), def, cmp.Or(q.key, dipwell.Shared), q.cost)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, append(l.json(), '\n'))
}

// A look is what a limit knows of a key: the decision of a Check, and the rest.
type look struct {
	d dipwell.Decision
	Look
}

// Look is what a limit knows of a key beside a decision, as JSON.
type Look struct {
	Mode     string       `json:"mode,omitempty"`
	Row      *Bucket      `json:"row,omitempty"` // set if the row is under a definition other than the one that decided
	Refill   [][2]int64   `json:"refill,omitzero"`
	Override *Override    `json:"override,omitempty"`
	Holds    []LiveHold   `json:"holds,omitempty"`
	Usage    *UsageCounts `json:"usage,omitempty"`
	Refusals *KeyRefusals `json:"refusals,omitempty"`
}

// KeyRefusals are the last refusals of a key by one process.
type KeyRefusals struct {
	Process string        `json:"process"`
	Last    []PastRefusal `json:"last"`
}

// lastCost stands for the cost of the last refusal of the key that this process remembers, or
// for 1 if it remembers none.
const lastCost = -1

// look reads the state of a key. The decision is that of a Check of cost, but its remaining
// tokens are those before it.
func (a *api) look(ctx context.Context, def *store.Definition, key string, cost int64) (l look, err error) {
	l.d, err = a.checkOwn(ctx, def.Name, key, 0)
	if err == nil && a.can.Overrides != nil {
		var o *dipwell.Override
		if o, err = a.overrideOf(ctx, def.Name, key); o != nil {
			l.Override = new(jsonOverride(def.Name, o))
		}
	}
	if err == nil && a.can.Holds != nil {
		var holds []store.KeyHold
		holds, err = a.limiter.Holds(ctx, def.Name, key)
		l.Holds = holdsOf(holds)
	}
	if now := time.Now(); err == nil && def.Usage && a.can.Usage != nil {
		var used []store.UsageLine
		if used, err = a.limiter.Usage(ctx, def.Name, key, usageSince(now), now); len(used) > 0 {
			l.Usage = new(totalOf(used))
		}
	}
	if k := a.metrics.keys; k != nil {
		l.Refusals = &KeyRefusals{k.process, k.last.of(def.Name, l.d.Key)}
	}
	if cost == lastCost {
		cost = 1
		if l.refused() {
			cost = l.Refusals.Last[0].Cost
		}
	}
	if err == nil && cost > 0 {
		var next dipwell.Decision
		next, err = a.checkOwn(ctx, def.Name, key, cost)
		l.d.Allowed, l.d.Never, l.d.Shadow, l.d.Cost, l.d.Limits = next.Allowed, next.Never, next.Shadow, next.Cost, next.Limits
		l.d.RetryAfter, l.d.RetryIsBound, l.d.Delay = next.RetryAfter, next.RetryIsBound, next.Delay
	}
	if err != nil {
		return l, err
	}
	if d := l.d.Definition; d != nil {
		l.Mode = map[store.Mode]string{store.Blocked: "blocked", store.Unlimited: "unlimited"}[d.Mode]
	}
	a.lookAtRow(ctx, def, key, &l)
	return l, nil
}

func (l *look) refused() bool { return l.Refusals != nil && len(l.Refusals.Last) > 0 }

// checkOwn is a Check whose decision is the limit's own, even if one of its parents refuses.
func (a *api) checkOwn(ctx context.Context, limit, key string, cost int64) (dipwell.Decision, error) {
	d, err := a.limiter.Check(ctx, limit, key, cost)
	if levels := d.Limits; err == nil && len(levels) > 0 {
		d = levels[0]
		d.Limits = levels
	}
	return d, err
}

// json returns an object with the members of both.
func (l *look) json() []byte {
	b := l.d.AppendMembers([]byte{'{'})
	if rest := asJSON(l.Look); len(rest) > len("{}") {
		return append(append(b, ','), rest[1:]...)
	}
	return append(b, '}')
}

// Bucket is a bucket as counted under a definition.
type Bucket struct {
	Plan      string `json:"plan,omitempty"`
	Capacity  int64  `json:"capacity"`
	Remaining int64  `json:"remaining"`
	Reset     int64  `json:"reset_after_us"`
}

const (
	refillSteps   = 64          // the largest number of steps in a refill
	refillTimeout = time.Second // for a limit without a Timeout
)

// lookAtRow sets Row, the bucket of a key, if it is under a definition other than the one that
// made the decision, such as a plan that callers name; and Refill, how the bucket fills if
// nobody takes from it: pairs of a time in µs from now and the number of whole tokens that are
// free from then on, also past the end of an override. lookAtRow sets nothing for a full
// bucket, a concurrency limit, a limit with shards or a mode without a bucket, nor if the
// store does not answer within the limit's Timeout, or a second if it has none.
func (a *api) lookAtRow(ctx context.Context, def *store.Definition, key string, l *look) {
	if def.Shards > 1 || def.Algorithm == store.Concurrency {
		return
	}
	var batch store.Batch
	g, op := batch.Single()
	if key == dipwell.Shared {
		key = ""
	}
	op.Def, op.Key, op.Verb = def, key, store.VerbCharge // a charge of 0 is decided by the row's own definition
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(def.Timeout, refillTimeout))
	defer cancel()
	if err := a.limiter.Store().Apply(ctx, &batch); err != nil || g.Err != nil || op.TS == 0 || op.Used == 0 ||
		op.Def.Mode > store.Shadow || op.Source >= store.SourceFallbackOpen {
		return
	}
	if d := l.d.Definition; d != nil && d.Plan != op.Def.Plan {
		l.Row = &Bucket{op.Def.Plan, op.Def.Rule.Burst, op.Remaining, op.Reset}
	}
	now, end := op.DecidedAt(), int64(math.MaxInt64)
	then := op.AtEnd(now + op.Reset)
	if then != nil {
		end = op.Def.Override.Until
	}
	l.Refill = appendSteps([][2]int64{}, op, now, end)
	if then != nil {
		l.Refill = append(l.Refill, [2]int64{end - now, then.Remaining})
		if then.Used > 0 && then.Def.Mode <= store.Shadow {
			l.Refill = appendSteps(l.Refill, then, now, math.MaxInt64)
		}
	}
}

// appendSteps appends at most refillSteps times before end at which tokens of op's bucket
// come back, with the number that is free from then on. The times are counted from now.
func appendSteps(steps [][2]int64, op *store.Op, now, end int64) [][2]int64 {
	var scratch store.Rule
	rule := op.RuleFor(&scratch)
	missing := rule.Burst - op.Remaining
	last := int64(-1)
	for i, n := int64(1), min(missing, refillSteps); i <= n; i++ {
		free := op.Remaining + (missing*i+n-1)/n
		in := rule.TimeToFree(free, op.Used, op.TS, now)
		if in <= last {
			continue // the step is at the same tick
		}
		if in >= end-now {
			break
		}
		last = in
		used := rule.Used(store.State{Used: op.Used, TS: op.TS}, now+in)
		steps = append(steps, [2]int64{in, rule.Remaining(used, max(now+in, op.TS))})
	}
	return steps
}

func (a *api) listKeys(w http.ResponseWriter, r *http.Request, def *store.Definition, q *query) error {
	n := cmp.Or(q.n, pageSize)
	now, err := a.can.Now(r.Context()) // the store's clock, because rows are in its time
	var rows []store.KeyState
	if err == nil {
		rows, err = a.limiter.Keys(r.Context(), def.Name, q.prefix, q.after, n)
	}
	if errors.Is(err, store.ErrNotSupported) && !def.ListKeys {
		httplimit.Problem(w, http.StatusConflict, "keys", "limit "+def.Name+" does not keep the text of its keys; define it with keys: list")
		return nil
	}
	if err != nil {
		return err
	}
	page, last := []LiveKey{}, ""
	for _, row := range rows {
		op, err := present(def, row, now)
		if err != nil {
			return err
		}
		k := LiveKey{Key: Nullable(op.Key), Plan: op.Def.Plan, Override: op.Def.Override != nil, Remaining: op.Remaining}
		if op.Def.Algorithm != store.Concurrency { // the row of a concurrency limit does not say when its holds expire
			k.ResetAfter = &op.Reset
		}
		page, last = append(page, k), row.Key
	}
	return writePage(w, "keys", page, len(rows) == n, last)
}

// present returns the check of a key whose rows have been read.
func present(def *store.Definition, key store.KeyState, now int64) (sum store.Op, err error) {
	for i, row := range append(key.Others, key.State) {
		own := def.Own(row, now) // the plan that last decided on the row
		if own.Override != nil {
			own = def // Step finds the override itself
		}
		op := store.Op{Def: own, Key: key.Key, Verb: store.VerbCheck}
		if _, _, err = op.Step(now, row, true); err != nil {
			return op, err
		}
		if i == 0 {
			sum = op
			sum.Remaining += max(def.Shards-1-int64(len(key.Others)), 0) * op.Def.Rule.Burst // tokens of the rows that are full
		} else {
			sum.Remaining, sum.Reset = sum.Remaining+op.Remaining, max(sum.Reset, op.Reset)
		}
	}
	sum.Remaining = min(sum.Remaining, store.MaxInt)
	return sum, nil
}

type LiveKey struct {
	Key        Nullable `json:"key"`
	Plan       string   `json:"plan,omitempty"`
	Override   bool     `json:"override,omitempty"`
	Remaining  int64    `json:"remaining"`
	ResetAfter *int64   `json:"reset_after_us"`
}

// plainKey reports whether a key is not empty, UTF-8, and without NUL.
func plainKey(key string) bool {
	return key != "" && utf8.ValidString(key) && strings.IndexByte(key, 0) < 0
}
