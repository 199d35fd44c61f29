package filestore

import (
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
)

// TestManyKeysAreWrittenEarly changes half as many keys as may wait to be written. They
// are written at once and not at the end of Config.Every, until which calls would fail as
// soon as the other half has changed too.
func TestManyKeysAreWrittenEarly(t *testing.T) {
	s := open(t, fresh(t), Config{Every: time.Hour})
	s.dirty.max = 10
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if d, err := l.Take(ctx, slow.Name, fmt.Sprint(i), 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	for began := time.Now(); s.stats().Rows < 5; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("after a minute: %+v", s.stats())
		}
	}
}
