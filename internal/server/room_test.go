package server

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The oldest call is ended when the room is full, and each when its time is over.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		ended := map[int]time.Duration{}
		r := &room{limit: 3, after: 10 * time.Second, end: func(call any) {
			mu.Lock()
			defer mu.Unlock()
			ended[call.(int)] = time.Since(start).Round(time.Second)
		}}
		enter := func(i int) func() {
			added := r.enter(i)
			return func() { r.leave(added) }
		}
		for i := range 5 {
			leave := enter(i)
			if i == 2 {
				leave()
			}
			synctest.Wait()
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		enter(5)() // the room works after it was empty
		leave := enter(6)
		time.Sleep(time.Minute)
		leave() // after its end
		mu.Lock()
		defer mu.Unlock()
		for i, want := range map[int]time.Duration{0: 4 * time.Second, 1: 11 * time.Second, 3: 13 * time.Second, 4: 14 * time.Second, 6: time.Hour + 15*time.Second} {
			if ended[i] != want {
				t.Errorf("call %d was ended after %v, want %v", i, ended[i], want)
			}
		}
		if len(ended) != 5 {
			t.Errorf("ended: %v", ended)
		}
	})
}
