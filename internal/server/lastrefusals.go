package server

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Bounds of the last refusals, which take at most 1.5 MB.
const (
	refusedSets  = 256
	refusedWays  = 4  // keys in a set; a new key replaces the one whose last refusal is the oldest
	refusedTimes = 16 // refusals of a key
	refusedApart = int64(time.Second / time.Microsecond)
)

// lastRefusals has the last refusals of up to refusedSets * refusedWays keys. It records
// a refusal of a key from the same source at most once in refusedApart, and counts those in between.
type lastRefusals [refusedSets]struct {
	mu   sync.Mutex
	keys [refusedWays]*refusedKey
}

type refusedKey struct {
	limit, key string
	n          int // number of refusals ever written into last
	last       [refusedTimes]oneRefusal
}

type oneRefusal struct {
	at, cost, retry int64 // at and retry in µs
	more            uint64
	source          store.Source
	never, shadow   bool
}

// latest returns the newest refusal.
func (k *refusedKey) latest() *oneRefusal { return &k.last[(k.n-1)%refusedTimes] }

func (k *refusedKey) is(limit, key string) bool { return k.key == key && k.limit == limit }

var refusedSeed = maphash.MakeSeed()

func refusedSet(limit, key string) uint64 {
	return (maphash.String(refusedSeed, key) ^ maphash.String(refusedSeed, limit)*0x9e3779b97f4a7c15) % refusedSets
}

func (l *lastRefusals) add(limit string, d *dipwell.Decision) {
	now := time.Now().UnixMicro()
	set := &l[refusedSet(limit, d.Key)]
	set.mu.Lock()
	defer set.mu.Unlock()
	var k *refusedKey
	use := &set.keys[0] // the key's own place, a free one, or that of the oldest last refusal
	for i := range set.keys {
		at := &set.keys[i]
		if *at == nil || (*at).is(limit, d.Key) {
			use, k = at, *at
			break
		}
		if (*at).latest().at < (*use).latest().at {
			use = at
		}
	}
	if k == nil {
		if *use == nil {
			*use = &refusedKey{}
		}
		k = *use
		k.limit, k.key, k.n = limit, strings.Clone(d.Key), 0
	} else if last := k.latest(); now >= last.at && now < last.at+refusedApart && d.Source == last.source {
		last.more++
		return
	}
	k.n++
	*k.latest() = oneRefusal{at: now, cost: d.Cost, retry: d.RetryAfter.Microseconds(), source: d.Source, never: d.Never, shadow: d.Shadow}
}

type PastRefusal struct {
	At     int64  `json:"at_us"`
	Cost   int64  `json:"cost"`
	Retry  *int64 `json:"retry_after_us"`
	Never  bool   `json:"never,omitempty"`
	Shadow bool   `json:"shadow,omitempty"`
	Source string `json:"source"`
	More   uint64 `json:"more"`
}

// of returns the last refusals of a key, the newest first.
func (l *lastRefusals) of(limit, key string) []PastRefusal {
	set := &l[refusedSet(limit, key)]
	set.mu.Lock()
	defer set.mu.Unlock()
	list := []PastRefusal{}
	for _, k := range set.keys {
		if k == nil || !k.is(limit, key) {
			continue
		}
		for i := range min(k.n, refusedTimes) {
			r := k.last[(k.n-1-i)%refusedTimes]
			one := PastRefusal{At: r.at, Cost: r.cost, Never: r.never, Shadow: r.shadow, Source: r.source.String(), More: r.more}
			if !r.never && r.retry != 0 {
				one.Retry = &r.retry
			}
			list = append(list, one)
		}
	}
	return list
}
