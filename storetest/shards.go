package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// shardCases test limits with shards, whose keys have several rows.
var shardCases = []testCase{
	{"shards", shardsCase},
	{"shards-verbs", shardsVerbs},
	{"shards-promise", shardsPromise},
	{"shards-group", shardsGroup},
	{"shards-change", shardsChange},
	{"shards-keys", shardsKeys},
	{"shards-ready", shardsReady},
	{"shards-override", overrideShards},
}

// sharded defines a limit of 16 tokens, 8 a second, in 4 rows.
func (e *env) sharded() {
	e.Helper()
	e.must(e.l.Define(e.ctx, store.Limit{Name: "s", Rate: 8, Period: time.Second, Burst: 16, Shards: 4, ListKeys: true}, store.OwnerCode))
}

// sum fails the case unless a check of 0 answers with the tokens of all rows.
func (e *env) sum(key string, capacity, remaining int64) {
	e.Helper()
	d, err := e.l.Check(e.ctx, "s", key, 0)
	if err != nil || d.Key != key && key != dipwell.Shared || d.Capacity != capacity || d.Remaining != remaining || (d.ResetAfter == 0) != (remaining == capacity) {
		e.Fatalf("check of 0: want %d of %d; got %+v, %v", remaining, capacity, d, err)
	}
}

// takes takes n tokens, one in each call.
func (e *env) takes(key string, n int) {
	e.Helper()
	for i := range n {
		if d, err := e.l.Take(e.ctx, "s", key, 1); err != nil || !d.Allowed || d.Granted != 1 {
			e.Fatalf("take %d of %d: %+v, %v", i+1, n, d, err)
		}
	}
}

// A call is refused only if no row has enough, and its retry is that of the row that
// will have enough first. Answers to takes describe one row.
func shardsCase(e *env) {
	e.sharded()
	for _, key := range []string{dipwell.Shared, "k", "k\x0100", strings.Repeat("x", store.MaxKey)} {
		e.must(e.l.Define(e.ctx, store.Limit{Name: "s", Rate: 8, Period: time.Second, Burst: 16, Shards: 4, Shared: key == dipwell.Shared}, store.OwnerCode))
		e.sum(key, 16, 16)
		if d, err := e.l.Take(e.ctx, "s", key, 5); err != nil || d.Allowed || !d.Never || d.Capacity != 4 {
			e.Fatalf("take of more than a row can have: %+v, %v", d, err)
		}
		for range 4 {
			if d, err := e.l.Take(e.ctx, "s", key, 4); err != nil || !d.Allowed || d.Remaining != 0 || d.Capacity != 4 || d.ResetAfter != 2*time.Second {
				e.Fatalf("take of a whole row: %+v, %v", d, err)
			}
		}
		e.sum(key, 16, 0)
		if d, err := e.l.Take(e.ctx, "s", key, 1); err != nil || d.Allowed || d.RetryAfter != 500*time.Millisecond || d.Remaining != 0 {
			e.Fatalf("take of an empty key: %+v, %v", d, err)
		}
	}
	e.advance(500 * time.Millisecond)
	e.takes("k", 4)
	if d, err := e.l.Check(e.ctx, "s", "k", 1); err != nil || d.Allowed || d.RetryAfter != 500*time.Millisecond {
		e.Fatalf("check of an empty key: %+v, %v", d, err)
	}
	e.advance(time.Hour)
	e.sweep()
	e.sum("k", 16, 16)
}

// TakeUpTo takes from one row, and Reset fills all rows. The other verbs are errors.
func shardsVerbs(e *env) {
	e.sharded()
	var d dipwell.Decision
	for range 4 {
		e.must(nil, e.l.Do(e.ctx, &d, store.VerbTakeUpTo, take("s", "k", 100)))
		if !d.Allowed || d.Granted != 4 {
			e.Fatalf("take up to 100: %+v", d)
		}
	}
	e.must(nil, e.l.Do(e.ctx, &d, store.VerbTakeUpTo, take("s", "k", 3)))
	if d.Allowed || d.Granted != 0 || d.RetryAfter != 500*time.Millisecond {
		e.Fatalf("take up to 3 of an empty key: %+v", d)
	}
	e.must(nil, e.l.Do(e.ctx, &d, store.VerbReset, take("s", "k", 0)))
	if !d.Allowed || d.Remaining != 16 || d.Capacity != 16 {
		e.Fatalf("reset: %+v", d)
	}
	e.sum("k", 16, 16)
	refused := map[string]error{
		"reserve": e.l.Do(e.ctx, &d, store.VerbReserve, take("s", "k", 1)),
		"charge":  e.l.Do(e.ctx, &d, store.VerbCharge, take("s", "k", 1)),
		"refund":  e.l.Do(e.ctx, &d, store.VerbRefund, take("s", "k", 1)),
		"wait":    errOf(e.l.Wait(e.ctx, "s", "k", 1)),
		"floor":   e.l.Do(e.ctx, &d, store.VerbTake, dipwell.Take{Limit: "s", Key: "k", Cost: 1, Floor: 1}),
	}
	if store.AbilitiesOf(e.store).Holds != nil {
		refused["hold"] = errOf(e.l.Hold(e.ctx, time.Minute, "", take("s", "k", 1)))
	}
	for name, err := range refused {
		var bad *store.FieldError
		if !errors.As(err, &bad) || bad.Field != "limit" && bad.Field != "floor" {
			e.Errorf("%s: %v", name, err)
		}
	}
}

func errOf(_ dipwell.Decision, err error) error { return err }

// Concurrent callers are granted exactly what all rows have together, and later exactly
// what has come back.
func shardsPromise(e *env) {
	e.sharded()
	defer e.sweeping()()
	for round := range e.rounds {
		key := fmt.Sprint("k", round)
		if got := race(e, 16, 3, e.taker("s", key, 1)); got != 16 {
			e.Fatalf("round %d: 48 takes at the same time: %d granted, want 16", round, got)
		}
		e.advance(time.Second)
		if got := race(e, 16, 3, e.taker("s", key, 1)); got != 8 {
			e.Fatalf("round %d: 48 takes a second later: %d granted, want 8", round, got)
		}
	}
}

// A group takes from one row of each key, all or nothing.
func shardsGroup(e *env) {
	e.sharded()
	e.bucket("user", 1, time.Hour, 9)
	for i := range 5 {
		d, err := e.l.TakeAll(e.ctx, take("s", "k", 2), take("user", "u", 1), take("s", "k", 1))
		if err != nil || d.Allowed != (i < 4) || d.Limits[0].Key != "k" || d.Limits[0].Allowed != (i < 4) || !d.Limits[1].Allowed {
			e.Fatalf("call %d: %+v, %v", i, d, err)
		}
	}
	if d, err := e.l.Check(e.ctx, "user", "u", 0); err != nil || d.Remaining != 5 {
		e.Fatalf("the other limit after a refusal: %+v, %v", d, err)
	}
	e.sum("k", 16, 4)
	if d, err := e.l.TakeAll(e.ctx, take("s", "k", 1), take("user", "u", 6)); err != nil || d.Allowed || d.Limit != "user" {
		e.Fatalf("a call that the other limit refuses: %+v, %v", d, err)
	}
	e.sum("k", 16, 4)
}

// If the number of shards changes all keys begin with full rows, and the answer to the
// definition says so.
func shardsChange(e *env) {
	e.sharded()
	e.takes("k", 16)
	for _, n := range []int64{2, 1, 8} {
		d, err := e.l.Define(e.ctx, store.Limit{Name: "s", Rate: 8, Period: time.Second, Burst: 16, Shards: n, ListKeys: true}, store.OwnerCode)
		e.must(d, err)
		if !strings.Contains(d.Warning, "full") {
			e.Fatalf("%d shards: warning %q", n, d.Warning)
		}
		e.sum("k", 16, 16)
		e.takes("k", 16)
		if d, err := e.l.Take(e.ctx, "s", "k", 1); err != nil || d.Allowed {
			e.Fatalf("%d shards: take of an empty key: %+v, %v", n, d, err)
		}
	}
	d, err := e.l.Define(e.ctx, store.Limit{Name: "s", Rate: 4, Period: time.Second, Burst: 8, Shards: 8, ListKeys: true}, store.OwnerCode)
	e.must(d, err)
	if d.Warning != "" {
		e.Fatalf("another burst: warning %q", d.Warning)
	}
	e.sum("k", 8, 0)
}

// A list of keys has each key once, with all of its rows in use.
func shardsKeys(e *env) {
	keys := store.AbilitiesOf(e.store).Keys
	e.sharded()
	for _, key := range []string{"b", "a", "ab", "a#", "c"} {
		e.takes(key, 8)
	}
	if keys == nil {
		return
	}
	var listed []string
	for after := ""; ; {
		page, err := e.l.Keys(e.ctx, "s", "", after, 2)
		e.must(nil, err)
		for _, k := range page {
			used := int64(0)
			for _, row := range append(k.Others, k.State) {
				used += row.Used / e.l.Limit("s").Rule.Unit
			}
			if used != 8 {
				e.Errorf("%q: %d tokens used, want 8", k.Key, used)
			}
			listed = append(listed, k.Key)
		}
		if len(page) < 2 {
			break
		}
		after = page[1].Key
	}
	if got := strings.Join(listed, " "); got != "a a# ab b c" {
		e.Errorf("the keys are %q", got)
	}
	if page, err := e.l.Keys(e.ctx, "s", "a", "a", 9); err != nil || len(page) != 2 || page[0].Key != "a#" {
		e.Errorf("those that begin with a and follow a: %+v, %v", page, err)
	}
}

// A key is ready if one of its rows is.
func shardsReady(e *env) {
	e.sharded()
	e.takes("a", 16)
	e.takes("b", 15)
	for cost, want := range map[int64]string{1: "b c b", 4: "c", 5: ""} {
		got, err := e.l.Ready(e.ctx, dipwell.Take{Limit: "s", Cost: cost}, []string{"b", "a", "c", "b"})
		if err != nil || strings.Join(got, " ") != want {
			e.Errorf("ready for %d: %q, %v; want %s", cost, got, err, want)
		}
	}
	e.sum("b", 16, 1)
}

// An override applies to the key: to all of its rows. The override's burst is
// cut down to a multiple of the shards.
func overrideShards(e *env) {
	if store.AbilitiesOf(e.store).Overrides == nil {
		return
	}
	e.sharded()
	e.takes("k", 4)
	o, err := e.l.SetOverride(e.ctx, "s", store.Override{Key: "k", Rate: 16, Burst: 35, Until: e.clock.Load() + 2e6})
	if err != nil || o.Key != "k" {
		e.Fatalf("%+v, %v", o, err)
	}
	e.sum("k", 32, 28)
	e.takes("k", 28)
	if d, err := e.l.Take(e.ctx, "s", "k", 1); err != nil || d.Allowed || d.RetryAfter != 250*time.Millisecond {
		e.Fatalf("take under the override: %+v, %v", d, err)
	}
	list, err := e.l.Overrides(e.ctx, "s", "", "", 10)
	if err != nil || len(list) != 1 || list[0].Key != "k" || list[0].Burst != 35 {
		e.Fatalf("the overrides: %+v, %v", list, err)
	}
	var bad *store.FieldError
	other := store.Limit{Name: "s", Rate: 8, Period: time.Second, Burst: 16, Shards: 2}
	if _, err = e.l.Define(e.ctx, other, store.OwnerCode); !errors.As(err, &bad) || bad.Field != "shards" {
		e.Fatalf("other shards beside an override: %v", err)
	}
	e.advance(2 * time.Second)
	e.sum("k", 16, 16)
	e.takes("k", 16)
	e.must(e.l.SetOverride(e.ctx, "s", store.Override{Key: "k", Rate: 8, Burst: 64}))
	e.takes("k", 48)
	if ended, err := e.l.EndOverride(e.ctx, "s", "k", dipwell.AnyOverride); err != nil || ended == nil {
		e.Fatalf("the end: %v, %v", ended, err)
	}
	e.sum("k", 16, 0)
	if ended, err := e.l.EndOverride(e.ctx, "s", "k", dipwell.AnyOverride); err != nil || ended != nil {
		e.Fatalf("a second end: %v, %v", ended, err)
	}
	e.must(e.l.Define(e.ctx, other, store.OwnerCode))
}
