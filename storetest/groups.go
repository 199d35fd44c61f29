package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// groupCases test groups of several operations.
var groupCases = []testCase{
	{"group-all-or-nothing", groupAllOrNothing},
	{"group-latest-retry", groupLatestRetry},
	{"group-same-key-adds-up", groupSameKey},
	{"group-shadow", groupShadow},
	{"group-never", groupNever},
	{"group-delay", groupDelay},
	{"group-sixteen", groupSixteen},
	{"group-check", groupCheck},
	{"group-shared-bucket", groupShared},
	{"null-key", nullKey},
	{"ready", readyCase},
	{"batch-independent-groups", batchIndependent},
}

func take(limit, key string, n int64) dipwell.Take {
	return dipwell.Take{Limit: limit, Key: key, Cost: n}
}

func (e *env) three() {
	e.bucket("a", 1, time.Second, 10)
	e.bucket("b", 1, time.Minute, 10)
	e.bucket("c", 1, time.Hour, 10)
}

func groupAllOrNothing(e *env) {
	e.three()
	if d := e.doAll(store.VerbTake, take("a", "k", 3), take("b", "k", 4), take("c", "k", 9)); !d.Allowed || d.Limit != "c" {
		e.Fatalf("want c, which has the fewest remaining: %+v", d)
	}
	for range 3 {
		d := e.doAll(store.VerbTake, take("a", "k", 1), take("b", "k", 1), take("c", "k", 2))
		if d.Allowed || d.Limit != "c" {
			e.Fatalf("want a refusal by c, which has 1 token: %+v", d)
		}
		for i, want := range []int64{7, 6, 1} {
			if x := d.Limits[i]; x.Remaining != want || x.Granted != 0 || x.Allowed != (i < 2) {
				e.Fatalf("entry %d of a refusal: %+v", i, x)
			}
		}
	}
	e.left("a", "k", 7)
	e.left("b", "k", 6)
	e.left("c", "k", 1)
}

// The delay of a call, and the time until which it can be cancelled, come from the limits that
// it took from: a leaky bucket from which nothing is taken only reports the length of its
// queue.
func groupDelay(e *env) {
	e.define(store.Limit{Name: "long", Algorithm: store.LeakyBucket, Rate: 1, Period: time.Minute, MaxDebt: 10})
	e.define(store.Limit{Name: "short", Algorithm: store.LeakyBucket, Rate: 1, Period: time.Second, MaxDebt: 10})
	e.take("long", "k", 3)
	e.take("short", "k", 1)
	var ids []store.Reservation
	for i, takes := range [][]dipwell.Take{{take("long", "k", 0), take("short", "k", 1)}, {take("short", "k", 1), take("long", "k", 0)}} {
		d := e.doAll(store.VerbTake, takes...)
		if want := time.Duration(i+1) * time.Second; d.Delay != want || d.Limits[i].Delay != 2*time.Minute {
			e.Fatalf("delay %v, want %v: %+v", d.Delay, want, d.Limits)
		}
		ids = append(ids, d.Reservation)
		check := e.doAll(store.VerbCheck, takes...)
		if want := time.Duration(i+2) * time.Second; check.Delay != want {
			e.Fatalf("a check says %v, want %v", check.Delay, want)
		}
	}
	if d := e.doAll(store.VerbTake, take("long", "k", 0), take("short", "k", 0)); d.Delay != 0 || d.Reservation != (store.Reservation{}) {
		e.Fatalf("nothing was taken: %+v", d)
	}
	e.advance(time.Second)
	if err := e.cancel(ids[0]); err == nil {
		e.Fatalf("a reservation that is due was cancelled")
	}
	e.must(nil, e.cancel(ids[1]))
}

// If several limits refuse, the answer names each of them and its top level has
// the latest retry time.
func groupLatestRetry(e *env) {
	e.three()
	e.doAll(store.VerbTake, take("a", "k", 10), take("b", "k", 10), take("c", "k", 5))
	d := e.doAll(store.VerbTake, take("b", "k", 2), take("c", "k", 1), take("a", "k", 1))
	if d.Allowed || d.Limit != "b" || d.RetryAfter != 2*time.Minute {
		e.Fatalf("want b, which has the latest retry time: %+v", d)
	}
	if d.Limits[0].Allowed || !d.Limits[1].Allowed || d.Limits[2].Allowed {
		e.Fatalf("want refusals by a and b: %+v", d.Limits)
	}
	e.advance(2*time.Minute - time.Microsecond)
	if d := e.doAll(store.VerbTake, take("b", "k", 2), take("c", "k", 1), take("a", "k", 1)); d.Allowed {
		e.Fatal("allowed 1 µs before the retry time")
	}
	e.advance(time.Microsecond)
	if d := e.doAll(store.VerbTake, take("b", "k", 2), take("c", "k", 1), take("a", "k", 1)); !d.Allowed {
		e.Fatal("refused at the retry time")
	}
}

func groupSameKey(e *env) {
	e.three()
	d := e.doAll(store.VerbTake, take("a", "k", 2), take("b", "k", 1), take("a", "k", 3), take("a", "other", 1))
	if !d.Allowed || d.Limits[0].Remaining != 5 || d.Limits[2].Remaining != 5 || d.Limits[2].Granted != 3 {
		e.Fatalf("take 2 and 3 of 10 of one key: %+v", d.Limits)
	}
	if d := e.doAll(store.VerbTake, take("a", "k", 3), take("a", "k", 3)); d.Allowed || d.RetryAfter != time.Second {
		e.Fatalf("take 3 and 3 of 5 of one key: %+v", d)
	}
	e.left("a", "k", 5)
	if d := e.doAll(store.VerbTake, take("a", "k", 8), take("a", "k", 3)); d.Allowed || !d.Never {
		e.Fatalf("take 8 and 3 with a burst of 10: %+v", d)
	}
	if d := e.doAll(store.VerbTake, take("a", "k", 0), take("a", "k", 5)); !d.Allowed {
		e.Fatalf("take 0 and 5 of 5 of one key: %+v", d)
	}
	e.left("a", "k", 0)
}

// A limit in shadow mode that would refuse does not refuse the group, and is not
// charged.
func groupShadow(e *env) {
	e.bucket("real", 1, time.Hour, 10)
	e.define(store.Limit{Name: "shadow", Rate: 1, Period: time.Hour, Burst: 2, Mode: store.Shadow})
	for i := range 4 {
		d := e.doAll(store.VerbTake, take("real", "k", 1), take("shadow", "k", 1))
		if !d.Allowed || d.Limits[1].Shadow != (i >= 2) {
			e.Fatalf("call %d: %+v", i, d.Limits)
		}
	}
	e.left("real", "k", 6)
	e.left("shadow", "k", 0)
	e.take("real", "k", 6)
	if d := e.doAll(store.VerbTake, take("real", "k", 1), take("shadow", "fresh", 1)); d.Allowed || d.Limit != "real" {
		e.Fatalf("want a refusal by the limit that is not in shadow mode: %+v", d)
	}
	e.left("shadow", "fresh", 2)
}

func groupNever(e *env) {
	e.three()
	e.take("a", "k", 10)
	d := e.doAll(store.VerbTake, take("a", "k", 5), take("b", "k", 11))
	if d.Allowed || !d.Never || d.Limit != "b" || d.RetryAfter != 0 {
		e.Fatalf("want never, because b's cost is above its burst: %+v", d)
	}
	e.left("b", "k", 10)
}

func groupSixteen(e *env) {
	var takes []dipwell.Take
	for i := range store.MaxTakes {
		name := fmt.Sprint("l", i%5)
		if i < 5 {
			e.bucket(name, int64(i+1), time.Minute, int64(10+i))
		}
		takes = append(takes, take(name, fmt.Sprint("k", i/5), int64(i%3)))
	}
	for range 12 {
		e.doAll(store.VerbTake, takes...)
		e.advance(7 * time.Second)
	}
}

func groupCheck(e *env) {
	e.three()
	for range 3 {
		if d := e.doAll(store.VerbCheck, take("a", "k", 10), take("b", "k", 10)); !d.Allowed || d.Remaining != 10 {
			e.Fatalf("a check of two fresh keys: %+v", d)
		}
	}
	e.take("b", "k", 1)
	e.doAll(store.VerbCheck, take("a", "k", 10), take("b", "k", 10))
	e.left("a", "k", 10)
	e.left("b", "k", 9)
}

func groupShared(e *env) {
	e.three()
	e.define(store.Limit{Name: "all", Rate: 1, Period: time.Hour, Burst: 10, Shared: true})
	e.doAll(store.VerbTake, take("all", dipwell.Shared, 2), take("a", "k", 1))
	e.left("all", dipwell.Shared, 8)
	e.left("a", "k", 9)
	if d := e.take("all", dipwell.Shared, 8); d.Key != "" {
		e.Fatalf("the shared bucket's key is %q", d.Key)
	}
	e.left("a", "k", 9)
}

// Ready tells the keys whose take would be allowed, in the order given, and takes nothing.
func readyCase(e *env) {
	e.three()
	var all, odd []string
	for i := range 40 {
		key := fmt.Sprint("k", (i*7)%40)
		if all = append(all, key); i%2 == 1 {
			odd = append(odd, key)
			e.take("a", key, 9)
		} else {
			e.take("a", key, 10)
		}
	}
	ready := func(t dipwell.Take, keys, want []string) {
		e.Helper()
		got, err := e.l.Ready(e.ctx, t, keys)
		if err != nil || !slices.Equal(got, want) {
			e.Fatalf("ready for %+v: %q, %v; want %q", t, got, err, want)
		}
	}
	for range 2 {
		ready(dipwell.Take{Limit: "a", Cost: 1}, all, odd)
	}
	ready(dipwell.Take{Limit: "a", Cost: 2}, append([]string{"new", "new"}, all...), []string{"new", "new"})
	ready(dipwell.Take{Limit: "a", Cost: 1}, nil, nil)
	e.advance(time.Second)
	ready(dipwell.Take{Limit: "a", Cost: 2}, all, odd)
	for _, keys := range [][]string{{"a", "b", ""}, {"a", "b", dipwell.Shared}, {"a", "b", "\xff"}} {
		_, err := e.l.Ready(e.ctx, dipwell.Take{Limit: "a", Cost: 1}, keys)
		if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || field.Field != "keys[2]" {
			e.Errorf("%q: %v", keys, err)
		}
	}
	_, err := e.l.Ready(e.ctx, dipwell.Take{Limit: "a", Cost: 1}, make([]string, dipwell.MaxReady+1))
	if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || field.Field != "keys" {
		e.Errorf("too many: %v", err)
	}
}

// A call whose key is a variable without a value is an error, so that nobody merges all
// callers into one bucket.
func nullKey(e *env) {
	e.three()
	e.define(store.Limit{Name: "all", Rate: 1, Period: time.Hour, Burst: 10, Shared: true})
	for _, t := range []dipwell.Take{take("a", dipwell.Shared, 1), take("a", "", 1), take("all", "k", 1), take("all", "", 1)} {
		for verb := range store.VerbReset + 1 {
			var d dipwell.Decision
			if field, ok := errors.AsType[*dipwell.FieldError](e.l.Do(e.ctx, &d, verb, t)); !ok || field.Field != "key" || d.Allowed {
				e.Errorf("%s of %s %q: %+v, %v", verb, t.Limit, t.Key, d, field)
			}
		}
		_, err := e.l.TakeAll(e.ctx, take("b", "k", 1), t)
		if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || field.Field != "takes[1].key" {
			e.Errorf("a call of b and %s %q: %v", t.Limit, t.Key, err)
		}
		if store.AbilitiesOf(e.store).Holds == nil {
			continue
		}
		_, err = e.l.Hold(e.ctx, time.Minute, "", t)
		if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || field.Field != "key" {
			e.Errorf("a hold of %s %q: %v", t.Limit, t.Key, err)
		}
	}
	e.left("b", "k", 10)
	e.left("all", dipwell.Shared, 10)
}

// The groups of a batch are decided independently.
func batchIndependent(e *env) {
	e.three()
	a, b := e.l.Limit("a"), e.l.Limit("b")
	op := func(d *store.Definition, key string, n int64) store.Op {
		return store.Op{Def: d, Key: key, Verb: store.VerbTake, Cost: n}
	}
	batch := &store.Batch{Groups: []store.Group{
		{Ops: []store.Op{op(a, "k", 6)}},
		{Ops: []store.Op{op(a, "k", 6)}},
		{Cancel: true, ID: store.Reservation{7}},
		{Ops: []store.Op{op(a, "k", 4), op(b, "k", 11)}},
		{Ops: []store.Op{op(a, "k", 4), op(b, "k", 1)}},
		{Ops: []store.Op{op(b, "k", 2)}},
	}}
	e.must(nil, e.store.Apply(e.ctx, batch))
	// One of the two takes of 6 tokens is granted. The store may choose which take that is.
	var six int
	for i := range 2 {
		if batch.Groups[i].Allowed {
			six++
		}
	}
	for i, g := range batch.Groups {
		if (g.Err != nil) != (i == 2) {
			e.Fatalf("group %d: %v", i, g.Err)
		}
	}
	if six != 1 || batch.Groups[3].Allowed || !batch.Groups[4].Allowed || !batch.Groups[5].Allowed {
		e.Fatalf("a batch of six groups: %+v", batch.Groups)
	}
	left := func(limit string, want int64) {
		d, err := e.l.Check(e.ctx, limit, "k", 0)
		if e.must(d, err); d.Remaining != want {
			e.Fatalf("%s: %d remaining, want %d", limit, d.Remaining, want)
		}
	}
	left("a", 0)
	left("b", 7)
}
