package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// mix is a fixed hash, so that these tests are deterministic.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// bare returns a store of one shard and the handle of a limit whose rows are
// never full.
func bare(t testing.TB) (*Store, *shard, uint32) {
	s := open(t, Config{Clock: (&fake{1e15}).now, Shards: 1})
	d, err := s.Define(ctx, store.Limit{Name: "slow", Rate: 1, Period: 24 * time.Hour, Burst: 100}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	var p place
	if err = s.place(&p, d, ""); err != nil {
		t.Fatal(err)
	}
	return s, &s.shards[0], p.handle
}

func (sh *shard) put(t testing.TB, id uint64, tag, handle uint32) {
	t.Helper()
	now := sh.store.now()
	if !sh.ready(1, &store.Definition{}, "") {
		t.Fatal("no memory")
	}
	i, found := sh.find(id, tag)
	if found {
		t.Fatalf("%d is found before put", id)
	}
	sh.store.keys.Add(1)
	sh.insert(i, slot{id: id, used: 1e12, ts: now, tag: tag, handle: handle}, now, true)
	sh.maintain(now)
}

// check checks the invariants of a shard that find depends on.
func (sh *shard) check(t testing.TB) {
	t.Helper()
	rows, last, gap := 0, ^uint64(0), -1
	for i := range len(sh.ext) * int(extentSlots) {
		p := sh.at(i)
		if p.id == 0 {
			gap = i
			continue
		}
		if home := sh.home(p.id); p.id > last || home > i || home <= gap {
			t.Fatalf("slot %d has %x, whose home is %d, after %x and a gap at %d", i, p.id, home, last, gap)
		}
		if i >= sh.top {
			t.Fatalf("slot %d is beyond the top, %d", i, sh.top)
		}
		rows, last = rows+1, p.id
	}
	if rows != sh.rows || int64(rows) != sh.store.keys.Load() {
		t.Fatalf("%d rows, counted %d in the shard and %d in the store", rows, sh.rows, sh.store.keys.Load())
	}
}

// TestMovesPerInsert bounds the number of slots that an insert moves while the
// table grows.
func TestMovesPerInsert(t *testing.T) {
	_, sh, handle := bare(t)
	const rows, bound = 300_000, 1500
	most, sum := 0, 0
	for i := range uint64(rows) {
		before := sh.moved
		sh.put(t, mix(i)|1, 7, handle)
		most, sum = max(most, sh.moved-before), sum+sh.moved-before
		if i%50_000 == 7 {
			sh.check(t)
		}
	}
	sh.check(t)
	t.Logf("at most %d slots visited or moved by an insert, %.1f on average", most, float64(sum)/rows)
	if most > bound {
		t.Errorf("an insert moved %d slots, more than %d", most, bound)
	}
	for i := range uint64(rows) {
		if _, found := sh.find(mix(i)|1, 7); !found {
			t.Fatalf("row %d was lost", i)
		}
	}
}

// TestEqualHashes uses pairs of keys that differ only in the tag.
func TestEqualHashes(t *testing.T) {
	_, sh, handle := bare(t)
	for i := range uint64(5000) {
		for tag := range uint32(3) {
			sh.put(t, mix(i)|1, tag, handle)
		}
	}
	sh.check(t)
	for i := range uint64(5000) {
		for tag := range uint32(3) {
			if _, found := sh.find(mix(i)|1, tag); !found {
				t.Fatalf("row %d/%d was lost", i, tag)
			}
		}
	}
}

// TestRemove deletes rows while the table grows.
func TestRemove(t *testing.T) {
	_, sh, handle := bare(t)
	for i := range uint64(60_000) {
		sh.put(t, mix(i)|1, 0, handle)
		if i%3 == 2 {
			j, found := sh.find(mix(i/2)|1, 0)
			if found {
				sh.remove(j)
			}
		}
		if i%10_000 == 0 {
			sh.check(t)
		}
	}
	sh.check(t)
}

// TestBytesPerKey bounds the memory of the table at every size while it grows.
func TestBytesPerKey(t *testing.T) {
	s := open(t, Config{Clock: (&fake{1e15}).now})
	l := limiter(t, s, store.Limit{Name: "slow", Rate: 1, Period: time.Hour, Burst: 5})
	worst := 0.0
	for i := range 1_200_000 {
		take(t, l, "slow", fmt.Sprint(i), 1)
		if i >= 1_000_000 && i%1000 == 0 {
			worst = max(worst, float64(s.Stats().Bytes)/float64(i))
		}
	}
	if t.Logf("at most %.1f bytes a key", worst); worst > 45 {
		t.Errorf("%.1f bytes a key, more than 45", worst)
	}
}
