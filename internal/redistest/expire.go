package redistest

import (
	"context"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// expireLua deletes the keys that have expired by a test's clock. With such a clock
// redisstore gives keys an expiry that is 2^42 ms later; the expiry of locks follows
// the server's clock.
var expireLua = redis.NewScript(`
local gone = 0
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local left, clock = redis.call('PTTL', key), redis.call('TIME') -- in this order, so that a pause between them deletes nothing too early
  local at = clock[1] * 1000 + math.floor(clock[2] / 1000) + left - 2 ^ 42
  if at >= 0 and at < math.floor(ARGV[2] / 1000) then
    gone = gone + redis.call('DEL', key)
  end
end
return gone`)

// Expiring returns now as a clock for a redisstore whose prefix nobody else on the server
// uses. Whenever the clock has moved forward, Expiring first deletes the keys that
// expired at least late µs ago. gone returns how many it has deleted.
func Expiring(t testing.TB, db redis.UniversalClient, prefix string, now func() int64, late int64) (clock func() int64, gone func() int) {
	t.Helper()
	var mu sync.Mutex
	last, n := int64(0), 0
	clock = func() int64 {
		mu.Lock()
		defer mu.Unlock()
		at := now()
		if at <= last {
			return at
		}
		last = at
		deleted, err := expireLua.Run(context.Background(), db, nil, prefix+"*", at-late).Int()
		if err != nil {
			t.Errorf("to delete expired keys: %v", err)
		}
		n += deleted
		return at
	}
	return clock, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}
