package memory

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// fill takes from new keys of n bytes until the store is full, and returns how many it took.
func fill(t *testing.T, l *dipwell.Limiter, round string, n int) (taken int) {
	t.Helper()
	for failed := 0; failed < 200; { // each call sweeps only part of a full store
		key := fmt.Sprint(round, "-", taken, "-")
		key += strings.Repeat("x", max(0, n-len(key)))
		switch _, err := l.Take(ctx, "listed", key, 1); {
		case err == nil:
			taken++
			failed = 0
		case errors.Is(err, store.ErrFull):
			failed++
		default:
			t.Fatal(err)
		}
	}
	return taken
}

// TestKeyBytes fills a store with listed keys of many lengths in turn. Whatever the lengths
// before, all the room is there again once the keys are full, and the memory stays bounded.
func TestKeyBytes(t *testing.T) {
	clock := &fake{1e15}
	const bound = 1 << 20
	s := open(t, Config{Clock: clock.now, MaxKeys: 1 << 16, MaxKeyBytes: bound, Shards: 16})
	l := limiter(t, s, store.Limit{Name: "listed", Rate: 1, Period: time.Hour, Burst: 5, ListKeys: true})
	for _, size := range []int{512, 20, 60, 300, 12, 100, 511, 28, 512} {
		room := bound / int(textSize(strings.Repeat("x", size)))
		if n := fill(t, l, fmt.Sprint("k", size), size); n != room {
			t.Errorf("%d keys of %d bytes fit; want %d", n, size, room)
		}
		rows := int64(1<<16) * 5 / 4 * (32 + 4)
		if st := s.Stats(); st.Bytes > bound*5/4+rows {
			t.Errorf("%d bytes are taken with keys of %d bytes", st.Bytes, size)
		}
		clock.add(5 * time.Hour)
	}
	if _, err := s.Sweep(ctx, 1<<30); err != nil || s.textBytes.Load() != 0 {
		t.Errorf("%d bytes of texts in an empty store, %v", s.textBytes.Load(), err)
	}
}

// TestKeyBytesByDefault checks the bound of a store that only MaxKeys bounds.
func TestKeyBytesByDefault(t *testing.T) {
	s := open(t, Config{MaxKeys: 10_000})
	l := limiter(t, s, store.Limit{Name: "listed", Rate: 1, Period: time.Hour, Burst: 5, ListKeys: true})
	if n, want := fill(t, l, "k", 512), 640_000/int(textSize(strings.Repeat("x", 512))); n != want {
		t.Errorf("%d keys of 512 bytes; want %d", n, want)
	}
}

// TestNoRoomForText checks that at the bound new keys of a listed limit alone fail, and
// change nothing.
func TestNoRoomForText(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, MaxKeys: 1000, MaxKeyBytes: 10_000})
	late := store.Limit{Name: "late", Rate: 1, Period: time.Hour, Burst: 5}
	l := limiter(t, s, late,
		store.Limit{Name: "listed", Rate: 1, Period: time.Hour, Burst: 5, ListKeys: true},
		store.Limit{Name: "quiet", Rate: 1, Period: time.Hour, Burst: 5})
	take(t, l, "late", "l", 1)
	n := fill(t, l, "k", 7)
	if n != 10_000/32 {
		t.Errorf("%d keys fit", n)
	}
	before := s.Stats()
	listed := dipwell.Take{Limit: "listed", Key: "new", Cost: 1}
	if _, err := l.TakeAll(ctx, dipwell.Take{Limit: "quiet", Key: "q", Cost: 2}, listed); !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), "MaxKeyBytes") {
		t.Errorf("a group with a new listed key: %v", err)
	}
	if _, err := l.Hold(ctx, time.Minute, "h", listed); !errors.Is(err, store.ErrFull) {
		t.Errorf("a hold of a new listed key: %v", err)
	}
	if st := s.Stats(); st.Keys != before.Keys || st.Holds != 0 || st.Refused != before.Refused+2 {
		t.Errorf("%+v; it was %+v", st, before)
	}
	if d := take(t, l, "quiet", "q", 1); d.Remaining != 4 {
		t.Errorf("a limit whose keys are not listed: %+v", d)
	}
	if d := take(t, l, "listed", "k-0-xxx", 1); d.Remaining != 3 {
		t.Errorf("a key that the store has: %+v", d)
	}
	late.ListKeys = true
	if _, err := l.Define(ctx, late, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if d := take(t, l, "late", "l", 1); d.Remaining != 3 {
		t.Errorf("a key of a limit that is listed from now on: %+v", d)
	}
	if keys, err := l.Keys(ctx, "late", "", "", 10); err != nil || len(keys) != 0 {
		t.Errorf("its list has no room: %v, %v", keys, err)
	}
	clock.add(3 * time.Hour)
	take(t, l, "late", "l", 1)
	take(t, l, "listed", "new", 1)
	take(t, l, "late", "l", 1)
	if keys, err := l.Keys(ctx, "late", "", "", 10); err != nil || len(keys) != 1 || keys[0].Key != "l" {
		t.Errorf("its list once there is room: %v, %v", keys, err)
	}
}
