package pgstore_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
)

// A change of on_expire begins no version of the limit, and is in force for the next hold.
func TestOnExpireChanged(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{})
	limit := dipwell.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: 10}
	for i, keep := range []bool{false, true, false} {
		limit.KeepExpired = keep
		l, err := dipwell.New(s, limit)
		if err != nil {
			t.Fatal(err)
		}
		id := string(rune('a' + i))
		if _, err = l.Hold(t.Context(), time.Minute, id, dipwell.Take{Limit: "l", Key: id, Cost: 4}); err != nil {
			t.Fatal(err)
		}
		if n := number(t, pool, "select count(*) from dipwell.hold_parts where keep and id = '"+id+"'"); (n == 1) != keep {
			t.Errorf("with on_expire keep %t: keep is stored %d times", keep, n)
		}
	}
}
