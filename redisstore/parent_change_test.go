package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// afterHold runs a function once hold.lua has answered for the first time.
type afterHold struct {
	do    func()
	calls atomic.Int64
}

func (*afterHold) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*afterHold) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (a *afterHold) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); len(args) > 1 && redisstore.IsHold(args[1]) && a.calls.Add(1) == 1 {
			a.do()
		}
		return err
	}
}

// TestHoldOfDroppedLimitInCluster checks that a hold that Go must decide, because it is
// refused, gets an error if its limit is dropped meanwhile.
func TestHoldOfDroppedLimitInCluster(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.SharedCluster(t).URL())
	s := newStore(t, db, redisstore.Config{Poll: -1})
	l := limiter(t, s, drained("tokens", 2))
	if d, err := l.Take(t.Context(), "tokens", "k", 2); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	dropping := &afterHold{do: func() {
		if err := s.Drop(t.Context(), "tokens", store.OwnerCode); err != nil {
			t.Error(err)
		}
	}}
	db.AddHook(dropping)
	if d, err := l.Hold(t.Context(), time.Minute, "", dipwell.Take{Limit: "tokens", Key: "k", Cost: 1}); !errors.Is(err, store.ErrUnknownLimit) {
		t.Errorf("%+v, %v", d, err)
	}
	if n := dropping.calls.Load(); n != 1 {
		t.Errorf("hold.lua was called %d times", n)
	}
}

// TestParentBesideOverrides checks that a limit in a cluster gets a parent only when neither
// its keys nor those of the limits below it have overrides, which would be lost.
func TestParentBesideOverrides(t *testing.T) {
	t.Parallel()
	s := newStore(t, connect(t, redistest.SharedCluster(t).URL()), redisstore.Config{Prefix: "beside"})
	org, tenant, user := drained("org", 100), drained("tenant", 100), drained("user", 5)
	org.Parts, tenant.Parts, user.Parent = 1, 2, "tenant"
	l := limiter(t, s, org, tenant, user)
	const key = "acme/shop/u7"
	if _, err := l.SetOverride(t.Context(), "user", dipwell.Override{Key: key, Burst: 50}); err != nil {
		t.Fatal(err)
	}
	tenant.Parent, tenant.Parts = "org", 0
	for range 2 {
		_, err := l.Define(t.Context(), tenant, store.OwnerCode)
		if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || field.Field != "parent" || !strings.Contains(field.Reason, `"acme/shop/u7"`) {
			t.Fatal(err)
		}
		if d, err := l.Take(t.Context(), "user", key, 1); err != nil || d.Limits[0].Capacity != 50 {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if ended, err := l.EndOverride(t.Context(), "user", key, dipwell.AnyOverride); ended == nil || err != nil {
		t.Fatal(ended, err)
	}
	if _, err := l.Define(t.Context(), tenant, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(t.Context(), "user", key, 1); err != nil || len(d.Limits) != 3 {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestHoldAcrossMove checks that a hold in a cluster whose limit gets another parent, or
// is dropped, ends there as if the key had been reset, and that its other parts can be
// settled.
func TestHoldAcrossMove(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), connect(t, redistest.SharedCluster(t).URL())
	first := newStore(t, db, redisstore.Config{Prefix: "heldmove", Poll: -1})
	tenant, user, other := drained("tenant", 100), drained("user", 5), drained("other", 5)
	tenant.Parts = 1
	l := limiter(t, first, tenant, user, other)
	hold := func(takes ...dipwell.Take) string {
		t.Helper()
		d, err := l.Hold(ctx, time.Hour, "", takes...)
		if err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		return d.Hold
	}
	ofBoth := []dipwell.Take{{Limit: "user", Key: "acme/u", Cost: 2}, {Limit: "other", Key: "acme/u", Cost: 2}}
	mine, theirs, alone := hold(ofBoth...), hold(ofBoth...), hold(dipwell.Take{Limit: "user", Key: "acme/u", Cost: 1})
	user.Parent = "tenant"
	if _, err := l.Define(ctx, user, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	second := limiter(t, newStore(t, db, redisstore.Config{Prefix: "heldmove", Poll: -1}))
	if _, err := l.Extend(ctx, alone, time.Hour); !errors.Is(err, store.ErrHoldConflict) {
		t.Errorf("extended after the move: %v", err)
	}
	if _, err := l.Settle(ctx, alone, 1); err != nil {
		t.Errorf("settled after the move: %v", err)
	}
	for i, settle := range []func(context.Context, string, ...int64) (dipwell.Decision, error){l.Settle, second.Settle} {
		if _, err := settle(ctx, []string{mine, theirs}[i], 1, 1); err != nil {
			t.Errorf("settled by %d: %v", i, err)
		}
	}
	if n := left(t, l, "other", "acme/u"); n != 3 {
		t.Errorf("%d left of the limit that stayed, want 3", n)
	}
	if n := left(t, l, "user", "acme/u"); n != 5 {
		t.Errorf("%d left of the limit that moved, want 5", n)
	}
	below := hold(dipwell.Take{Limit: "user", Key: "acme/u", Cost: 2})
	if err := l.Drop(ctx, "user", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Settle(ctx, below, 1); err != nil {
		t.Errorf("settled after the drop, which is not known: %v", err)
	}
	if _, err := l.Settle(ctx, below, 1); err != nil {
		t.Errorf("settled after the drop: %v", err)
	}
	if n := left(t, l, "tenant", "acme"); n != 99 {
		t.Errorf("%d left of the parent, want 99", n)
	}
}

// TestCancelAcrossMove checks that a reservation in a cluster one of whose limits gets
// another parent is unknown.
func TestCancelAcrossMove(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t, connect(t, redistest.SharedCluster(t).URL()), redisstore.Config{Prefix: "cancelmove", Poll: -1})
	tenant, user, other := drained("tenant", 100), drained("user", 5), drained("other", 5)
	tenant.Parts, user.MaxDebt, other.MaxDebt = 1, 5, 5
	l := limiter(t, s, tenant, user, other)
	var d dipwell.Decision
	err := l.DoAll(ctx, &d, store.VerbReserve, []dipwell.Take{{Limit: "user", Key: "acme/u", Cost: 6}, {Limit: "other", Key: "acme/u", Cost: 6}})
	if err != nil || d.Reservation == (store.Reservation{}) {
		t.Fatalf("%+v, %v", d, err)
	}
	user.Parent = "tenant"
	if _, err = l.Define(ctx, user, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if err = l.Cancel(ctx, d.Reservation); !errors.Is(err, store.ErrReservation) {
		t.Errorf("cancelled after the move: %v", err)
	}
}
