package filestore

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// TestSeveralKeysAreWrittenTogether checks a call of two keys that comes between the
// reads of the two: the writer reads both again, and the file has both or none.
func TestSeveralKeysAreWrittenTogether(t *testing.T) {
	t.Parallel()
	var between atomic.Pointer[func()]
	clock := func() int64 {
		if f := between.Swap(nil); f != nil {
			(*f)()
		}
		return 1767225600e6
	}
	s := open(t, fresh(t), Config{Clock: clock, Every: time.Hour})
	l, err := dipwell.New(s, store.Limit{Name: "x", Rate: 1, Period: 24 * time.Hour, Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	take := func(takes ...dipwell.Take) {
		if d, err := l.TakeAll(t.Context(), takes...); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
	}
	take(dipwell.Take{Limit: "x", Key: "a", Cost: 1})
	both := func() {
		take(dipwell.Take{Limit: "x", Key: "a", Cost: 10}, dipwell.Take{Limit: "x", Key: "b", Cost: 10})
	}
	between.Store(&both) // collect reads the clock after it has the keys of this cycle
	if err := s.writer.flush(); err != nil {
		t.Fatal(err)
	}
	if between.Load() != nil {
		t.Fatal("the second call has not come")
	}
	crashed, err := dipwell.New(open(t, copied(t, s.path), Config{Clock: clock}))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int64{"a": 89, "b": 90} {
		if d, err := crashed.Check(t.Context(), "x", key, 0); err != nil || d.Remaining != want {
			t.Errorf("the file has key %s with %d remaining, want %d (%v)", key, d.Remaining, want, err)
		}
	}
}

// copied returns a copy of the file as a crash would leave it now.
func copied(t testing.TB, path string) string {
	t.Helper()
	to := inMemory(t)
	for _, end := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + end)
		if err == nil {
			err = os.WriteFile(to+end, b, 0o600)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return to
}
