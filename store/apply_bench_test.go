package store

import (
	"testing"
	"time"
)

// BenchmarkApply measures an allowed Take of each kind of rule.
func BenchmarkApply(b *testing.B) {
	for _, l := range []Limit{
		{Name: "bucket", Rate: 1000, Period: time.Hour, Burst: 1_000_000},
		{Name: "window", Algorithm: FixedWindow, Rate: 1_000_000, Period: time.Hour, Start: "0s"},
		{Name: "interval", Algorithm: Interval, Rate: 3, Period: time.Minute, Burst: 1_000_000},
		{Name: "month", Algorithm: FixedWindow, Rate: 1_000_000, Period: -1},
	} {
		b.Run(l.Name, func(b *testing.B) {
			r := mustDefinition(l).Rule
			s := State{Used: r.Unit, TS: 1_800_000_000_000_000}
			now := s.TS
			for b.Loop() {
				now++
				if o := r.Apply(s, now, VerbTake, 1); !o.Allowed {
					b.Fatal(o)
				}
			}
		})
	}
}
