// Package golden is the checked-in vectors, one JSON object a line, and the
// limits that they are about, for tests of any package.
package golden

import (
	_ "embed"
	"time"

	"github.com/dipwell/dipwell/store"
)

//go:embed apply.jsonl
var Apply []byte

//go:embed carry.jsonl
var Carry []byte

//go:embed origin.jsonl
var Origin []byte

//go:embed calendar.jsonl
var Calendar []byte

// GiveBack is made by golden_giveback_test.go of package store, where its
// members are explained.
//
//go:embed giveback.jsonl
var GiveBack []byte

// Sliding are the sliding windows of the vectors in sliding.jsonl.
var Sliding = []store.Limit{
	{Name: "minute", Algorithm: store.SlidingWindow, Rate: 10, Period: time.Minute, Start: "0s"},
	{Name: "odd", Algorithm: store.SlidingWindow, Rate: 7, Period: 777777 * time.Microsecond, Start: "13us"},
	{Name: "short", Algorithm: store.SlidingWindow, Rate: 3, Period: 7 * time.Microsecond, Start: "0s"},
	{Name: "largest", Algorithm: store.SlidingWindow, Rate: 1<<26 - 1, Period: 100 * 24 * time.Hour, Start: "1h"},
}

// Limits compile to the rules of the vectors: each algorithm, each tick and the
// largest numbers.
var Limits = []store.Limit{
	{Name: "plain", Rate: 10, Period: time.Second, Burst: 50},
	{Name: "thirds", Rate: 3, Period: 7 * time.Second, Burst: 5, MaxDebt: 4},
	{Name: "slow", Rate: 10, Period: time.Hour},
	{Name: "fast", Rate: 300_000, Period: time.Second, Burst: 2},
	{Name: "faster", Rate: 3_000_001, Period: time.Second, Burst: 5},
	{Name: "gib", Rate: 1 << 30, Period: 24 * time.Hour},
	{Name: "prime", Rate: 999_983, Period: 30 * 24 * time.Hour},
	{Name: "tib", Rate: 1 << 40, Period: 30 * 24 * time.Hour},
	{Name: "nodebt", Rate: 1, Period: time.Second, Burst: 3, MaxDebt: store.NoDebt},
	{Name: "noburst", Rate: 1, Period: time.Second, Burst: store.NoBurst, MaxDebt: 100},
	{Name: "deep", Rate: 1, Period: time.Second, Burst: 3, MaxDebt: store.UnlimitedDebt},
	{Name: "leaky", Algorithm: store.LeakyBucket, Rate: 2, Period: time.Second, MaxDebt: 5},
	{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "0s"},
	{Name: "rollover", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Burst: 12, Start: "13s"},
	{Name: "interval", Algorithm: store.Interval, Rate: 5, Period: 10 * time.Second, Burst: 20, Start: "3s"},
	{Name: "first", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "first_call"},
	{Name: "firsts", Algorithm: store.Interval, Rate: 3, Period: 7 * time.Second, Burst: 10, MaxDebt: 8, Start: "first_call"},
	{Name: "most", Algorithm: store.FixedWindow, Rate: store.MaxInt, Period: time.Microsecond, Start: "0s"},
}
