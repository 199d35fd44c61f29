package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

// Default and largest number of keys in a page.
const (
	pageKeys = 100
	maxKeys  = 1000
)

// page is the query of GET /v1/limits/{name}/keys.
type page struct {
	prefix, after, key string
	cost               int64              // of the check of key
	kind               store.OverrideKind // of overrides
	one                bool               // key is given
	n                  int
}

// keys answers GET /v1/limits/{name}/keys: a page of live keys, or one of them.
func (a *api) keys(w http.ResponseWriter, r *http.Request) error {
	def := a.limiter.Limit(r.PathValue("name"))
	p, err := parsePage(r.URL.RawQuery)
	switch {
	case err != nil:
		return err
	case def == nil:
		return unknownLimit(r.PathValue("name"))
	case !p.one:
		return a.listKeys(w, r, def, p)
	}
	l, err := a.look(r.Context(), def, cmp.Or(p.key, dipwell.Shared), p.cost)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, append(a.appendLook(r.Context(), nil, def, &l), '\n'))
}

// A look is what a limit knows of a key: the decision of a Check, the override, the live
// holds, the usage, and the last refusals by this process.
type look struct {
	key      string
	d        dipwell.Decision
	override *dipwell.Override
	holds    []store.KeyHold
	used     []store.UsageLine
	refusals []PastRefusal
}

// lastCost stands for the cost of the last refusal of a key that this process remembers, or 1.
const lastCost = -1

// look looks at a key. The decision is that of a Check of cost, but for what is free before it.
func (a *api) look(ctx context.Context, def *store.Definition, key string, cost int64) (l look, err error) {
	l.key = key
	l.d, err = a.checkOwn(ctx, def.Name, key, 0)
	if err == nil && a.can.Overrides != nil {
		l.override, err = a.overrideOf(ctx, def.Name, key)
	}
	if err == nil && a.can.Holds != nil {
		l.holds, err = a.limiter.Holds(ctx, def.Name, key)
	}
	if now := time.Now(); err == nil && def.Usage && a.can.Usage != nil {
		l.used, err = a.limiter.Usage(ctx, def.Name, key, usageSince(now), now)
	}
	if k := a.metrics.keys; err == nil && k != nil {
		l.refusals = k.last.of(def.Name, l.d.Key)
	}
	if cost == lastCost {
		cost = 1
		if len(l.refusals) > 0 {
			cost = l.refusals[0].Cost
		}
	}
	if err == nil && cost > 0 {
		var next dipwell.Decision
		next, err = a.checkOwn(ctx, def.Name, key, cost)
		l.d.Allowed, l.d.Never, l.d.Shadow, l.d.Cost, l.d.Limits = next.Allowed, next.Never, next.Shadow, next.Cost, next.Limits
		l.d.RetryAfter, l.d.RetryIsBound = next.RetryAfter, next.RetryIsBound
	}
	return l, err
}

// checkOwn is a Check whose decision is that of the limit itself, and not of the level that
// decides if it has parents.
func (a *api) checkOwn(ctx context.Context, limit, key string, cost int64) (dipwell.Decision, error) {
	d, err := a.limiter.Check(ctx, limit, key, cost)
	if levels := d.Limits; err == nil && len(levels) > 0 {
		d = levels[0]
		d.Limits = levels
	}
	return d, err
}

// appendLook appends a look as JSON, with the row if it is under another definition than the
// one that decided.
func (a *api) appendLook(ctx context.Context, b []byte, def *store.Definition, l *look) []byte {
	b = l.d.AppendMembers(append(b, '{'))
	switch {
	case l.d.Definition == nil:
	case l.d.Definition.Mode == store.Blocked:
		b = append(b, `,"mode":"blocked"`...)
	case l.d.Definition.Mode == store.Unlimited:
		b = append(b, `,"mode":"unlimited"`...)
	}
	b = a.appendRow(ctx, b, def, &l.d, l.key)
	if l.override != nil {
		b = append(append(b, `,"override":`...), asJSON(jsonOverride(def.Name, l.override))...)
	}
	if len(l.holds) > 0 {
		b = append(append(b, `,"holds":`...), asJSON(holdsOf(l.holds))...)
	}
	if len(l.used) > 0 {
		b = append(append(b, `,"usage":`...), asJSON(totalOf(l.used))...)
	}
	if k := a.metrics.keys; k != nil {
		b = fmt.Appendf(b, `,"refusals":{"process":%s,"last":%s}`, asJSON(k.process), asJSON(l.refusals))
	}
	return append(b, '}')
}

// Bucket is a bucket under a definition.
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

// appendRow appends the bucket of a key. If it is under another definition than the one that
// made the decision d, such as a plan that callers name, it is "row". How it fills if nobody
// takes from it is "refill", with pairs of a time in µs from now and the number of whole
// tokens that are free from then on, also past the end of an override. It appends nothing for
// a full bucket, a concurrency limit, a limit with shards or a mode without a bucket, nor if
// the store does not answer within the limit's Timeout, or a second if it has none.
func (a *api) appendRow(ctx context.Context, b []byte, def *store.Definition, d *dipwell.Decision, key string) []byte {
	if def.Shards > 1 || def.Algorithm == store.Concurrency {
		return b
	}
	var batch store.Batch
	g, op := batch.Single()
	if key == dipwell.Shared {
		key = ""
	}
	op.Def, op.Key, op.Verb = def, key, store.VerbCharge // of 0, by the row's own definition
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(def.Timeout, refillTimeout))
	defer cancel()
	if err := a.limiter.Store().Apply(ctx, &batch); err != nil || g.Err != nil || op.TS == 0 || op.Used == 0 ||
		op.Def.Mode > store.Shadow || op.Source >= store.SourceFallbackOpen {
		return b
	}
	if d.Definition != nil && d.Definition.Plan != op.Def.Plan {
		b = append(append(b, `,"row":`...), asJSON(Bucket{op.Def.Plan, op.Def.Rule.Burst, op.Remaining, op.Reset})...)
	}
	now, end := op.DecidedAt(), int64(math.MaxInt64)
	then := op.AtEnd(now + op.Reset)
	if then != nil {
		end = op.Def.Override.Until
	}
	b = appendSteps(append(b, `,"refill":[`...), op, now, end)
	if then != nil {
		b = appendFree(b, end-now, then.Remaining)
		if then.Used > 0 && then.Def.Mode <= store.Shadow {
			b = appendSteps(b, then, now, math.MaxInt64)
		}
	}
	return append(bytes.TrimSuffix(b, []byte{','}), ']')
}

// appendSteps appends at most refillSteps times before end at which tokens of op's bucket
// come back, with the number that is free from then on. Times are from now.
func appendSteps(b []byte, op *store.Op, now, end int64) []byte {
	var scratch store.Rule
	rule := op.RuleFor(&scratch)
	missing := rule.Burst - op.Remaining
	last := int64(-1)
	for i, n := int64(1), min(missing, refillSteps); i <= n; i++ {
		free := op.Remaining + (missing*i+n-1)/n
		in := rule.TimeToFree(free, op.Used, op.TS, now)
		if in <= last {
			continue // the same tick
		}
		if in >= end-now {
			break
		}
		last = in
		used := rule.Used(store.State{Used: op.Used, TS: op.TS}, now+in)
		b = appendFree(b, in, rule.Remaining(used, max(now+in, op.TS)))
	}
	return b
}

func appendFree(b []byte, in, free int64) []byte {
	b = strconv.AppendInt(append(b, '['), in, 10)
	return append(strconv.AppendInt(append(b, ','), free, 10), "],"...)
}

func (a *api) listKeys(w http.ResponseWriter, r *http.Request, def *store.Definition, p page) error {
	now, err := a.can.Now(r.Context()) // the store's clock, because rows are in its time
	var rows []store.KeyState
	if err == nil {
		rows, err = a.limiter.Keys(r.Context(), def.Name, p.prefix, p.after, p.n)
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
		page, last = append(page, keyOfOp(&op)), row.Key
	}
	return writePage(w, "keys", page, len(rows) == p.n, last)
}

// present returns the check of a key whose rows were read.
func present(def *store.Definition, key store.KeyState, now int64) (sum store.Op, err error) {
	for i, row := range append(key.Others, key.State) {
		own := def.Own(row, now) // the plan that last decided the row
		if own.Override != nil {
			own = def // Step finds the override by itself
		}
		op := store.Op{Def: own, Key: key.Key, Verb: store.VerbCheck}
		if _, _, err = op.Step(now, row, true); err != nil {
			return op, err
		}
		if i == 0 {
			sum = op
			sum.Remaining += max(def.Shards-1-int64(len(key.Others)), 0) * op.Def.Rule.Burst // of rows that are full
		} else {
			sum.Remaining, sum.Reset = sum.Remaining+op.Remaining, max(sum.Reset, op.Reset)
		}
	}
	sum.Remaining = min(sum.Remaining, store.MaxInt)
	return sum, nil
}

// LiveKey is a key of a page as JSON.
type LiveKey struct {
	Key        Nullable `json:"key"`
	Plan       string   `json:"plan,omitempty"`
	Override   bool     `json:"override,omitempty"`
	Remaining  int64    `json:"remaining"`
	ResetAfter *int64   `json:"reset_after_us"`
}

func keyOfOp(op *store.Op) LiveKey {
	k := LiveKey{Key: Nullable(op.Key), Plan: op.Def.Plan, Override: op.Def.Override != nil, Remaining: op.Remaining}
	if op.Def.Algorithm != store.Concurrency { // of which a row does not say when its holds expire
		k.ResetAfter = &op.Reset
	}
	return k
}

func parsePage(query string) (p page, err error) {
	p.n = pageKeys
	err = p.parse(query, costParam("cost", &p.cost))
	if p.cost > 0 && !p.one && err == nil {
		err = bad("cost", "is of the check of a key; give key too")
	}
	return p, err
}

// parse reads the parameters of a page, and more.
func (p *page) parse(query string, more ...param) error {
	given := "" // a parameter of a list
	listing := func(q param) param {
		return param{q.name, func(value string) error {
			given = q.name
			return q.set(value)
		}}
	}
	err := parseQuery(query, append([]param{listing(textParam("prefix", &p.prefix)), listing(param{"after", func(value string) error {
		p.after = cmp.Or(value, dipwell.Shared) // given but empty, as in "next" after the shared bucket
		return nil
	}}), listing(sizeParam("n", &p.n, maxKeys)), param{"key", func(value string) error {
		if p.key, p.one = value, true; value == "" { // the shared bucket
			return nil
		}
		return checkPlain(value)
	}}}, more...)...)
	if err == nil && p.one && given != "" {
		err = bad(given, "is of a list of keys; give it or key")
	}
	return err
}

// plainKey reports whether a key is not empty, UTF-8, and without NUL.
func plainKey(key string) bool {
	return key != "" && utf8.ValidString(key) && strings.IndexByte(key, 0) < 0
}
