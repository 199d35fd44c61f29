package redisstore_test

import (
	"context"
	"fmt"
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

// beforeWrite runs a function before the first call of write.lua.
type beforeWrite struct {
	do     func()
	writes atomic.Int64
}

func (*beforeWrite) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*beforeWrite) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (b *beforeWrite) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && redisstore.IsWrite(args[1]) && b.writes.Add(1) == 1 {
			b.do()
		}
		return next(ctx, cmd)
	}
}

// TestOutOfMemoryInTurn checks that a settle that another call has overtaken, so that it
// locks its row for the next attempt, succeeds on a server that has no memory for the lock.
func TestOutOfMemoryInTurn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	jobs := store.Limit{Name: "jobs", Algorithm: store.FixedWindow, Rate: 3, Period: store.Month, Start: "00:00 Europe/Rome"} // decided in Go
	_, first := openURL(t, server.URL(), redisstore.Config{Poll: -1}, jobs)
	var ids [2]string
	for i := range ids {
		d, err := first.Hold(ctx, time.Hour, "", dipwell.Take{Limit: "jobs", Key: "k", Cost: 1})
		if err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		ids[i] = d.Hold
	}
	db := connect(t, server.URL())
	between := &beforeWrite{do: func() {
		if d, err := first.Settle(ctx, ids[0], 0); err != nil || !d.Allowed {
			t.Errorf("the settle in between: %+v, %v", d, err)
		}
	}}
	db.AddHook(between)
	second := limiter(t, newStore(t, db, redisstore.Config{Prefix: "dipwell", Poll: -1}), jobs)

	junk := strings.Repeat("x", 1<<20)
	for i := range 4 {
		do(t, server, "set", fmt.Sprint("junk", i), junk)
	}
	do(t, server, "config", "set", "maxmemory", "3mb")
	if d, err := second.Settle(ctx, ids[1], 0); err != nil || !d.Allowed || d.Remaining != 3 {
		t.Errorf("%+v, %v; want 3 remaining", d, err)
	}
	if n := between.writes.Load(); n != 2 {
		t.Errorf("%d attempts to write, want 2", n)
	}
}
