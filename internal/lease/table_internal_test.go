package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// A key whose tokens have expired makes room for others, also if no call comes that would
// notice it.
func TestExpiredKeysMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s := New(inner, Config{Clock: func() int64 { return int64(time.Since(began)) }, Wall: func() int64 { return time.Now().UnixNano() }})
		limit, err := dipwell.ParseLimit("api=100000/1s,burst=100000,lease=100ms")
		if err != nil {
			t.Fatal(err)
		}
		l, err := dipwell.New(s, limit)
		if err != nil {
			t.Fatal(err)
		}
		var names []string // of one set
		for i := 0; len(names) < 6; i++ {
			if name := fmt.Sprint(i); s.table.set("api", name) == s.table.set("api", "0") {
				names = append(names, name)
			}
		}
		for _, name := range names {
			leased := false
			for range 200 {
				d, err := l.Take(t.Context(), "api", name, 1)
				if err != nil {
					t.Fatal(err)
				}
				leased = leased || d.Source == store.SourceLease
				time.Sleep(time.Millisecond)
			}
			if !leased {
				t.Errorf("key %s is not leased", name)
			}
			time.Sleep(time.Second)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := inner.Close(); err != nil {
			t.Error(err)
		}
	})
}
