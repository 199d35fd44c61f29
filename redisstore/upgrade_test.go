package redisstore_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestOlderProgram checks that the scripts of the last version before plans, overrides
// and holds, which are in testdata, leave the buckets alone that they do not know, so
// that the older program returns an error and grants nothing. They decide plain ones.
func TestOlderProgram(t *testing.T) {
	t.Parallel()
	db := client(t)
	s := newStore(t, db, redisstore.Config{Prefix: "older"})
	limit := drained("api", 10)
	limit.Plans = store.NewPlans(store.Plan{Name: "pro", Burst: 50})
	l := limiter(t, s, limit)
	ctx := t.Context()
	must := func(d dipwell.Decision, err error) {
		t.Helper()
		if err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	for _, key := range []string{"full override", "override"} {
		if _, err := l.SetOverride(ctx, "api", dipwell.Override{Key: key, Burst: 5}); err != nil {
			t.Fatal(err)
		}
	}
	must(l.Take(ctx, "api", "override", 1))
	must(l.Take(ctx, "api", "plain", 1))
	must(l.TakeAll(ctx, dipwell.Take{Limit: "api", Key: "plan", Plan: "pro", Cost: 1}))
	must(l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: "api", Key: "hold", Cost: 3}))
	other := limit
	other.Burst = 7
	must(l.TakeWith(ctx, other, "call site", 1))

	r := &l.Limit("api").Rule
	room := algebra.RoomBefore(r.Unit, r.Cap)
	for name, args := range map[string][]any{
		"take_one.lua": {1, r.Add, r.Unit, room},
		"decide.lua":   {1, "", "", "", "t", r.Unit, r.Cap, r.Cap, 1, 0, r.Add, 1, "w", "", "", "", ""},
	} {
		text, err := os.ReadFile("testdata/before_holds/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"full override", "override", "plan", "hold", "call site", "plain"} {
			row := fmt.Sprintf("older:api:{%s}", key)
			before := db.Get(ctx, row).Val()
			answer, err := db.Eval(ctx, string(text), []string{row}, args...).Result()
			if err != nil {
				t.Fatalf("%s of %s: %v", name, key, err)
			}
			if list, ok := answer.([]any); ok && list[0] == int64(1) { // Go must decide
				answer = ""
			}
			if left, wrote := answer == "", db.Get(ctx, row).Val() != before; left == wrote || left != (key != "plain") {
				t.Errorf("%s decided %s: %q, wrote %v", name, key, answer, wrote)
			}
		}
	}
}
