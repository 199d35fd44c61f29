package redisstore_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// A replyError is an error reply of a server.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// A replies hook replaces the replies to all GETs of a pipeline: the first key has
// expired, and for the others the server replies with an error.
type replies struct{ err error }

func (*replies) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*replies) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (r *replies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if r.err == nil || cmds[0].Name() != "get" {
			return next(ctx, cmds)
		}
		cmds[0].SetErr(redis.Nil)
		for _, cmd := range cmds[1:] {
			cmd.SetErr(r.err)
		}
		return redis.Nil
	}
}

// TestBrokenScan checks that rows that could not be read are not taken for rows that are
// gone: a new version of their limit would not lengthen their expiry.
func TestBrokenScan(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.Start(t).URL())
	var broken replies
	db.AddHook(&broken)
	s := newStore(t, db, redisstore.Config{Poll: -1})
	api := store.Limit{Name: "api", Rate: 10, Period: time.Hour, Burst: 10}
	l := limiter(t, s, api)
	for _, key := range []string{"a", "b", "c"} {
		if d, err := l.Take(t.Context(), "api", key, 10); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	broken.err = replyError("CLUSTERDOWN The cluster is down")
	if list, err := l.Keys(t.Context(), "api", "", "", 10); !errors.Is(err, store.ErrStore) {
		t.Errorf("the keys are %v, %v", list, err)
	}
	api.Rate = 1
	if _, err := l.Define(t.Context(), api, store.OwnerCode); !errors.Is(err, store.ErrStore) {
		t.Errorf("a slower version, while the rows cannot be read: %v", err)
	}
}

// TestDropThatBroke drops a limit, and the server fails before its overrides are deleted.
// A limit of the same name that is defined later begins without them.
func TestDropThatBroke(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.Start(t).URL())
	var broken scans
	db.AddHook(&broken)
	s := newStore(t, db, redisstore.Config{Poll: -1})
	api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}
	l := limiter(t, s)
	for _, fails := range []bool{false, true} {
		d, err := l.Define(t.Context(), api, terms.OwnerAPI)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Abilities().Overrides.SetOverride(t.Context(), d, store.Override{Key: "k", Burst: 1000}); err != nil {
			t.Fatal(err)
		}
		broken.fail = fails
		if err = l.Drop(t.Context(), "api", terms.OwnerAPI); fails != (err != nil) {
			t.Fatal(err)
		}
		broken.fail = false
		if _, err = l.Define(t.Context(), api, terms.OwnerAPI); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Check(t.Context(), "api", "k", 1); err != nil || d.Capacity != 10 {
			t.Errorf("defined again after a drop that failed (%v): %+v, %v", fails, d, err)
		}
		if err = l.Drop(t.Context(), "api", terms.OwnerAPI); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDropThatBrokeInCluster does so in a cluster with a limit that has a parent. Its keys
// are in the slots of the parent's, which a program that does not know the dropped limit
// cannot tell.
func TestDropThatBrokeInCluster(t *testing.T) {
	t.Parallel()
	db := connect(t, redistest.SharedCluster(t).URL())
	var broken scans
	db.(*redis.ClusterClient).OnNewNode(func(node *redis.Client) { node.AddHook(&broken) })
	s := newStore(t, db, redisstore.Config{Poll: -1})
	tenant, user := drained("tenant", 100), drained("user", 10)
	tenant.Parts, user.Parent = 1, "tenant"
	l := limiter(t, s, tenant, user)
	if _, err := s.Abilities().Overrides.SetOverride(t.Context(), l.Limit("user"), store.Override{Key: "acme/u7", Burst: 1000}); err != nil {
		t.Fatal(err)
	}
	broken.fail = true
	if err := l.Drop(t.Context(), "user", store.OwnerCode); err == nil {
		t.Fatal("dropped without a scan")
	}
	broken.fail = false
	if err := s.Refresh(t.Context()); err != nil || l.Limit("user") != nil {
		t.Fatal(l.Limit("user"), err)
	}
	if _, err := l.Define(t.Context(), user, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Abilities().Overrides.SetOverride(t.Context(), l.Limit("user"), store.Override{Key: "acme/u8", Burst: 50}); err != nil {
		t.Fatal(err) // from now on calls look for overrides
	}
	for key, want := range map[string]int64{"acme/u7": 10, "acme/u8": 50} {
		if d, err := l.Take(t.Context(), "user", key, 1); err != nil || d.Limits[0].Capacity != want {
			t.Errorf("%s: %+v, %v; want a capacity of %d", key, d, err, want)
		}
	}
}

// A scans hook makes SCAN fail.
type scans struct{ fail bool }

func (*scans) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*scans) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (s *scans) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if s.fail && cmd.Name() == "scan" {
			cmd.SetErr(io.EOF)
			return io.EOF
		}
		return next(ctx, cmd)
	}
}
