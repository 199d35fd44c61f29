package server

import (
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// Bounds of the last refusals, which take at most 1.5 MB.
const (
	refusedKeys  = 1024
	refusedTimes = 16 // refusals that are kept for a key
	refusedApart = int64(time.Second / time.Microsecond)
)

// lastRefusals has the last refusals of up to refusedKeys keys, by limit and key. It records
// a refusal of a key from the same source at most once in refusedApart, and counts those in between.
type lastRefusals struct {
	mu   sync.Mutex
	keys bounded.Map[[2]string, *refusedKey]
}

type refusedKey struct {
	n    int // number of refusals ever written into the ring last
	last [refusedTimes]oneRefusal
}

type oneRefusal struct {
	at, cost, retry int64 // at and retry in µs
	more            uint64
	source          store.Source
	never, shadow   bool
}

// latest returns the newest refusal.
func (k *refusedKey) latest() *oneRefusal { return &k.last[(k.n-1)%refusedTimes] }

// add adds a refusal at the present time.
func (l *lastRefusals) add(limit string, d *dipwell.Decision) {
	now := time.Now().UnixMicro()
	l.mu.Lock()
	defer l.mu.Unlock()
	k, known := l.keys.Get([2]string{limit, d.Key})
	if !known {
		k = &refusedKey{}
	} else if last := k.latest(); now >= last.at && now < last.at+refusedApart && d.Source == last.source {
		last.more++
		return
	}
	l.keys.Most = refusedKeys / 2                         // half, because there are two generations
	l.keys.Put([2]string{limit, strings.Clone(d.Key)}, k) // put again if it is known, so that it is not the next to be forgotten
	k.n++
	*k.latest() = oneRefusal{at: now, cost: d.Cost, retry: d.RetryAfter.Microseconds(), source: d.Source, never: d.Never, shadow: d.Shadow}
}

// A PastRefusal is a refusal as JSON.
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
	list := []PastRefusal{}
	k, _ := l.keys.Get([2]string{limit, key})
	for i := 0; k != nil && i < min(k.n, refusedTimes); i++ {
		r := k.last[(k.n-1-i)%refusedTimes]
		one := PastRefusal{At: r.at, Cost: r.cost, Never: r.never, Shadow: r.shadow, Source: r.source.String(), More: r.more}
		if !r.never && r.retry != 0 {
			one.Retry = &r.retry
		}
		list = append(list, one)
	}
	return list
}
