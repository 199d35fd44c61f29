package store_test

import (
	"fmt"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// A take, and a hold that is settled, beside live holds of the key.
func BenchmarkBesideHolds(b *testing.B) {
	for _, n := range []int{0, 1, 1000} {
		t := newBench(b, "a=1000000/1s,burst=1000000000")
		for i := range n {
			g := &store.Group{Hold: &store.HoldCall{ID: fmt.Sprint(i), TTL: 3600 * second}, Ops: []store.Op{t.op(store.VerbTake, "a k 1")}}
			if _, err := t.decide(g); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("take/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			g := &store.Group{Ops: []store.Op{t.op(store.VerbTake, "a k 1")}}
			for b.Loop() {
				if _, err := t.decide(g); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("hold and settle/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g := &store.Group{Hold: &store.HoldCall{ID: "x", TTL: 3600 * second}, Ops: []store.Op{t.op(store.VerbTake, "a k 1")}}
				if _, err := t.decide(g); err != nil {
					b.Fatal(err)
				}
				if _, err := t.trySettle("x", 0); err != nil {
					b.Fatal(err)
				}
				delete(t.table.holds, "x")
			}
		})
	}
}
