package server

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// Bounds of the last refusals, which take at most 1.5 MB.
const (
	refusedKeys  = 512 // in each of the map's two generations
	refusedTimes = 16  // refusals of a key
	refusedApart = int64(time.Second / time.Microsecond)
)

// lastRefusals has the last refusals of each key. It records a refusal of a key from the same
// source at most once in refusedApart, and counts those in between.
type lastRefusals struct {
	mu   sync.Mutex // held while a value of keys is used
	keys bounded.Map[refusedKey, []oneRefusal]
}

type refusedKey struct{ limit, key string }

type oneRefusal struct {
	at, cost, retry int64 // at and retry in µs
	more            uint64
	source          store.Source
	never, shadow   bool
}

func (l *lastRefusals) add(limit string, d *dipwell.Decision) {
	now := time.Now().UnixMicro()
	l.mu.Lock()
	defer l.mu.Unlock()
	list, _ := l.keys.Get(refusedKey{limit, d.Key})
	if n := len(list); n > 0 {
		if last := &list[n-1]; now >= last.at && now < last.at+refusedApart && d.Source == last.source {
			last.more++
			return
		}
		list = slices.Delete(list, 0, max(n+1-refusedTimes, 0))
	}
	l.keys.Put(refusedKey{limit, strings.Clone(d.Key)},
		append(list, oneRefusal{at: now, cost: d.Cost, retry: d.RetryAfter.Microseconds(), source: d.Source, never: d.Never, shadow: d.Shadow}))
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
	l.mu.Lock()
	defer l.mu.Unlock()
	refused, _ := l.keys.Get(refusedKey{limit, key})
	list := []PastRefusal{}
	for _, r := range slices.Backward(refused) {
		one := PastRefusal{At: r.at, Cost: r.cost, Never: r.never, Shadow: r.shadow, Source: r.source.String(), More: r.more}
		if !r.never && r.retry != 0 {
			one.Retry = &r.retry
		}
		list = append(list, one)
	}
	return list
}
