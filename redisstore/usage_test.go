package redisstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestUsageInPart checks that of lines of which a part could not be added, another call with
// the rest adds each exactly once.
func TestUsageInPart(t *testing.T) {
	server := redistest.Start(t)
	var limits []store.Limit
	for _, name := range []string{"a", "b", "c"} {
		limits = append(limits, store.Limit{Name: name, Rate: 1, Period: time.Second, Usage: true})
	}
	s, l := openURL(t, server.URL(), redisstore.Config{}, limits...)
	hour := time.Now().Truncate(time.Hour).UnixMicro()
	lines := []store.UsageLine{{Limit: "c", Key: "k", Hour: hour, Allowed: 3}, {Limit: "gone", Key: "k", Hour: hour, Allowed: 9},
		{Limit: "b", Key: "k", Hour: hour, Allowed: 2}, {Limit: "a", Key: "k", Hour: hour, Allowed: 1}}
	u := s.Abilities().Usage
	if err := u.AddUsage(t.Context(), lines); err != nil {
		t.Fatal(err)
	}
	db := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer db.Close()
	names, err := db.Keys(t.Context(), "*:b:*").Result()
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	do(t, server, "RENAME", names[0], "aside")
	do(t, server, "SET", names[0], "not a hash")
	var part *store.UsageError
	if err = u.AddUsage(t.Context(), lines); !errors.As(err, &part) {
		t.Fatal(err)
	}
	do(t, server, "RENAME", "aside", names[0])
	var rest []store.UsageLine
	for _, i := range part.Rest {
		rest = append(rest, lines[i])
	}
	if err = u.AddUsage(t.Context(), rest); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b", "c"} {
		want := int64(2 * (i + 1))
		if name == "b" && part.Lost == 1 {
			want /= 2
		}
		list, err := u.Usage(t.Context(), l.Limit(name), "k", 0, store.MaxInt)
		if err != nil || len(list) != 1 || list[0].Allowed != want {
			t.Errorf("limit %s: %+v, %v, want %d", name, list, err, want)
		}
	}
}
