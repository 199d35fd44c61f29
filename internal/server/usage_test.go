package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// usageStore is a store whose usage can fail.
type usageStore struct {
	*memstore.Store
	mu  sync.Mutex
	err error
}

func (s *usageStore) Abilities() store.Abilities {
	ab := s.Store.Abilities()
	ab.Usage = failingUsage{ab.Usage, s}
	return ab
}

func (s *usageStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

type failingUsage struct {
	store.UsageKeeper
	s *usageStore
}

func (u failingUsage) AddUsage(ctx context.Context, lines []store.UsageLine) error {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if u.s.err != nil {
		return u.s.err
	}
	return u.UsageKeeper.AddUsage(ctx, lines)
}

func newUsageStore(t *testing.T) *usageStore {
	t.Helper()
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return &usageStore{Store: st}
}

// countsUsage makes a service on a store, which counts until end is called.
func countsUsage(t *testing.T, st store.Store) (w *fixture, end func()) {
	t.Helper()
	w = (&fixture{t: t}).over(st, server.Config{}, local, "api=1/1h,burst=100,usage=true,plans=pro:burst=200", "tokens=1/1h,burst=1000,usage=true", "plain=1/1h,burst=10",
		"one=1/1h,burst=10,shared=true,usage=true", "shadow=1/1h,burst=1,mode=shadow,usage=true")
	ctx, cancel := context.WithCancel(t.Context())
	wait := w.server.CountKeys(ctx, "host:1", 0)
	return w, func() { cancel(); wait() }
}

// used returns the sums of a key as "allowed refused tokens", and the number of hours.
func (w *fixture) used(limit, query string) string {
	w.t.Helper()
	res := w.do("GET", "/v1/limits/"+limit+"/usage"+query, "")
	var a struct {
		Allowed, Refused, Tokens int64
		Hours                    []struct{ Allowed, Refused, Tokens int64 }
	}
	if err := json.Unmarshal(res.Body.Bytes(), &a); err != nil || res.Code != http.StatusOK {
		w.t.Fatal(res.Code, res.Body)
	}
	for _, h := range a.Hours {
		a.Allowed, a.Refused, a.Tokens = a.Allowed-h.Allowed, a.Refused-h.Refused, a.Tokens-h.Tokens
	}
	if a.Allowed != 0 || a.Refused != 0 || a.Tokens != 0 {
		w.t.Errorf("the sums are not those of the hours: %s", res.Body)
	}
	_ = json.Unmarshal(res.Body.Bytes(), &a)
	return fmt.Sprint(a.Allowed, a.Refused, a.Tokens, " in ", len(a.Hours))
}

func (w *fixture) wantUsed(limit, query, want string) {
	w.t.Helper()
	if got := w.used(limit, query); got != want {
		w.t.Errorf("usage of %s%s: %s, want %s", limit, query, got, want)
	}
}

// What each call uses.
func TestUsage(t *testing.T) {
	w, end := countsUsage(t, newUsageStore(t))
	for _, c := range []struct {
		call, body string
		status     int
	}{
		{"take", `{"limit":"api","key":"k","cost":30}`, 200},
		{"take", `{"limit":"api","key":"k","cost":90}`, 429},
		{"take", `{"limit":"api","key":"p","cost":120,"plan":"pro"}`, 200},
		{"check", `{"limit":"api","key":"k","cost":90}`, 429},
		{"check", `{"limit":"api","key":"k"}`, 200},
		{"take_up_to", `{"limit":"api","key":"k","cost":90}`, 200}, // 70
		{"charge", `{"limit":"api","key":"k","cost":5}`, 200},
		{"refund", `{"limit":"api","key":"k","cost":7}`, 200},
		{"take", `{"takes":[{"limit":"api","key":"both","cost":2},{"limit":"tokens","key":"both","cost":3}]}`, 200},
		{"take", `{"takes":[{"limit":"api","key":"both","cost":2},{"limit":"tokens","key":"both","cost":3000}]}`, 429},
		{"hold", `{"limit":"tokens","key":"held","cost":300,"ttl":"1m","id":"h"}`, 200},
		{"hold", `{"limit":"tokens","key":"held","cost":300,"ttl":"1m","id":"h"}`, 200},
		{"extend", `{"hold":"h","ttl":"2m"}`, 200},
		{"settle", `{"hold":"h","cost":215}`, 200},
		{"settle", `{"hold":"h","cost":215}`, 200},
		{"hold", `{"limit":"tokens","key":"held","cost":3000,"ttl":"1m","id":"i"}`, 429},
		{"wait", `{"limit":"api","key":"w","cost":3}`, 200},
		{"take", `{"limit":"one","cost":4}`, 200},
		{"take", `{"limit":"plain","key":"k"}`, 200},
		{"take", `{"limit":"shadow","key":"k"}`, 200},
		{"take", `{"limit":"shadow","key":"k"}`, 200},
	} {
		w.want(w.post(c.call, c.body), c.status)
	}
	end()
	w.wantUsed("api", "?key=k", "3 1 105 in 1")
	w.wantUsed("api", "?key=p", "1 0 120 in 1")
	w.wantUsed("api", "?key=both", "1 0 2 in 1")
	w.wantUsed("tokens", "?key=both", "1 1 3 in 1")
	w.wantUsed("tokens", "?key=held", "1 1 215 in 1")
	w.wantUsed("api", "?key=w", "1 0 3 in 1")
	w.wantUsed("one", "", "1 0 4 in 1")
	w.wantUsed("shadow", "?key=k", "2 0 1 in 1")
	w.wantUsed("api", "?key=unused", "0 0 0 in 0")
	w.wantUsed("api", "?others=true", "0 0 0 in 0")
	w.want(w.do("GET", "/v1/limits/api/keys?key=k", ""), 200, `"usage":{"allowed":3,"refused":1,"tokens":105}`)
	w.want(w.do("GET", "/v1/limits/one/usage", ""), 200, `{"limit":"one","key":null,"from":"`, `"allowed":1,"refused":0,"tokens":4,"hours":[{"hour":"`)
}

func TestUsageErrors(t *testing.T) {
	w, end := countsUsage(t, newUsageStore(t))
	defer end()
	for query, want := range map[string]string{
		"api/usage": `"detail":"key: is missing; others=true has`, "api/usage?others=true&key=k": `"field":"others"`, "api/usage?others=1": `"field":"others"`,
		"api/usage?key=": `"detail":"key: is empty`, "api/usage?from=yesterday": `"detail":"from: is not a time such as 2030-01-31T18:00:00Z"`,
		"api/usage?to=1900-01-01T00:00:00Z":                           `"field":"to"`,
		"api/usage?from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z": `"detail":"from: 2030-01-02T00:00:00Z is after to, 2030-01-01T00:00:00Z"`,
		"api/usage?n=3":         `unknown parameter; known are key, others, from, to`,
		"one/usage?key=k":       `"field":"key"`,
		"plain/usage?key=k":     `"detail":"limit: plain does not count usage; define it with usage: true"`,
		"api/usage?key=a&key=b": `"field":"key"`,
	} {
		w.want(w.do("GET", "/v1/limits/"+query, ""), 400, want)
	}
	w.want(w.do("GET", "/v1/limits/nope/usage?key=k", ""), 404)
	w.want(w.do("PUT", "/v1/limits/bad", `{"rate":1,"per":"1s","usage":"yes"}`), 400, `usage: \"yes\" is neither true nor false`)
	w.want(w.do("PUT", "/v1/limits/good", `{"rate":1,"per":"1s","usage":true}`), 201, `"usage":true`)
}

// Two services count the same keys from many callers at once, and start again.
func TestUsageOfServices(t *testing.T) {
	st := newUsageStore(t)
	const callers, times = 4, 50
	for run := range 2 {
		first, endFirst := countsUsage(t, st)
		second, endSecond := countsUsage(t, st)
		var wg sync.WaitGroup
		for c := range callers {
			for _, w := range []*fixture{first, second} {
				wg.Go(func() {
					for i := range times {
						w.post("take", `{"limit":"api","key":"k`+strconv.Itoa(run)+"-"+strconv.Itoa((c+i)%5)+`"}`)
					}
				})
			}
		}
		wg.Wait()
		endFirst()
		endSecond()
		for i := range 5 {
			first.wantUsed("api", "?key=k"+strconv.Itoa(run)+"-"+strconv.Itoa(i), "80 0 80 in 1")
		}
	}
}

// Usage is written at the end of each minute. A store that fails gets it a minute later;
// one that may have added some of it does not get it twice.
func TestUsageByTheMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newUsageStore(t)
		w, end := countsUsage(t, st)
		defer end()
		take := func(n int) {
			w.post("take", fmt.Sprintf(`{"limit":"tokens","key":"k","cost":%d}`, n))
		}
		minute := func() {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		take(1)
		w.wantUsed("tokens", "?key=k", "0 0 0 in 0")
		minute()
		w.wantUsed("tokens", "?key=k", "1 0 1 in 1")
		st.fail(store.ErrStore)
		take(2)
		minute()
		take(3)
		minute()
		w.wantUsed("tokens", "?key=k", "1 0 1 in 1")
		st.fail(nil)
		minute()
		w.wantUsed("tokens", "?key=k", "3 0 6 in 1")
		st.fail(errors.Join(store.ErrStore, store.ErrOutcomeUnknown))
		take(10)
		minute()
		st.fail(nil)
		minute()
		w.wantUsed("tokens", "?key=k", "3 0 6 in 1")
		st.fail(&store.UsageError{Rest: []int{0}, Err: store.ErrOutcomeUnknown})
		take(7)
		minute()
		st.fail(&store.UsageError{Lost: 1, Err: store.ErrOutcomeUnknown})
		minute()
		w.wantUsed("tokens", "?key=k", "3 0 6 in 1")
		st.fail(&store.UsageError{Rest: []int{0}, Err: store.ErrOutcomeUnknown})
		take(5)
		minute()
		st.fail(nil)
		minute()
		w.wantUsed("tokens", "?key=k", "4 0 11 in 1")
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(59 * time.Minute)))
		take(20)
		time.Sleep(time.Minute - time.Nanosecond)
		take(30)
		minute()
		take(40)
		minute()
		w.wantUsed("tokens", "?key=k", "7 0 101 in 2")
		hour := time.Now().UTC().Truncate(time.Hour)
		w.wantUsed("tokens", "?key=k&from="+hour.Format(time.RFC3339), "1 0 40 in 1")
		w.wantUsed("tokens", "?key=k&to="+hour.Format(time.RFC3339), "6 0 61 in 1")
		end() // its slices of a month would take half a minute
		time.Sleep(31 * 24 * time.Hour)
		w.wantUsed("tokens", "?key=k", "0 0 0 in 0")
	})
}
