package adaptive

import (
	"testing"
	"testing/synctest"
	"time"
)

// A Limit counts its windows by the monotonic clock, from its first use on.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limit
		c := second
		if s, at := l.Add(&c, Sample{}); s.Fraction != Full || s.Reason != Defined || !at.Equal(time.Now()) {
			t.Fatalf("%+v at %v", s, at)
		}
		time.Sleep(2 * time.Second)
		if s, at := l.Add(&c, Sample{100, 90, 0}); s.Fraction != 819 || s.Reason != Slow || !at.Equal(time.Now()) {
			t.Fatalf("%+v at %v", s, at)
		}
		l.Remained(31, 100)
		time.Sleep(time.Second)
		if s, _ := l.Add(&c, Sample{100, 0, 0}); s.Fraction != 819 {
			t.Fatalf("%+v, though much remained", s)
		}
		l.Remained(30, 100)
		time.Sleep(time.Second)
		if s, _ := l.Add(&c, Sample{100, 0, 0}); s.Fraction != 840 || s.Reason != Used {
			t.Fatalf("%+v", s)
		}
		c.Floor = 900
		if s, _ := l.Add(&c, Sample{}); s.Fraction != 900 {
			t.Fatalf("%+v below a floor that was raised", s)
		}
	})
}
