package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/server"
)

type topKey struct {
	Limit        string
	Key          *string
	Count, Error uint64
}

type topAnswer struct {
	WindowUS int64 `json:"window_us"`
	MaxBytes int   `json:"sketch_max_bytes"`
	Limits   []struct {
		Limit                              string
		Allowed, Refused, Shadow, Fallback uint64
	}
	Busiest, Refused struct {
		Counted  uint64
		Unlisted uint64 `json:"unlisted_at_most"`
		Keys     []topKey
	}
}

func (w *fixture) top(query string) (a topAnswer) {
	w.t.Helper()
	res := w.do("GET", "/v1/top"+query, "")
	if res.Code != http.StatusOK {
		w.t.Fatal(res.Code, res.Body)
	}
	if err := json.Unmarshal(res.Body.Bytes(), &a); err != nil {
		w.t.Fatal(err, res.Body)
	}
	return a
}

func (k topKey) String() string {
	key := "(shared)"
	if k.Key != nil {
		key = *k.Key
	}
	return fmt.Sprintf("%s %s %d-%d", k.Limit, key, k.Count, k.Error)
}

// Keys are counted in a sliding window from the first call of /v1/top until it has
// not been called for topIdle.
func TestTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		take := func(n int, form string) {
			for range n {
				w.do("POST", "/v1/take", form, "Content-Type: application/x-www-form-urlencoded")
			}
		}
		take(5, "limit=login&key=before")
		if a := w.top(""); a.Busiest.Counted != 0 || a.WindowUS != 0 || a.MaxBytes < 1<<20 || a.MaxBytes > 16<<20 || a.Limits[0].Allowed != 5 {
			t.Errorf("the first look: %+v", a)
		}
		take(25, "limit=login&key=greedy")
		take(3, "limit=never")
		w.do("POST", "/v1/take", `{"takes":[{"limit":"login","key":"pair"},{"limit":"listed","key":"pair"}]}`, "Content-Type: application/json")
		time.Sleep(3 * time.Second)
		a := w.top("")
		if got, want := fmt.Sprint(a.Busiest.Keys), "[login greedy 25-0 never (shared) 3-0 listed pair 1-0 login pair 1-0]"; got != want || a.Busiest.Counted != 30 || a.Busiest.Unlisted != 0 {
			t.Errorf("busiest %s of %d, want %s", got, a.Busiest.Counted, want)
		}
		if got, want := fmt.Sprint(a.Refused.Keys), "[login greedy 5-0 never (shared) 2-0]"; got != want || a.WindowUS != 3e6 {
			t.Errorf("refused %s in %d µs, want %s", got, a.WindowUS, want)
		}
		if a = w.top("?n=1&limit=login"); fmt.Sprint(a.Busiest.Keys) != "[login greedy 25-0]" || a.Busiest.Unlisted != 1 || len(a.Limits) != 1 || a.Limits[0].Refused != 5 {
			t.Errorf("one limit: %+v", a)
		}
		for range 3 {
			time.Sleep(20 * time.Second)
			a = w.top("")
		}
		if a.Busiest.Counted != 0 || a.WindowUS < 50e6 || a.WindowUS > 60e6 {
			t.Errorf("a minute later: %+v", a)
		}
		take(2, "limit=login&key=late")
		time.Sleep(25 * time.Second)
		if a = w.top(""); a.Busiest.Counted != 2 {
			t.Errorf("it ended too early: %+v", a)
		}
		time.Sleep(31 * time.Second)
		take(2, "limit=login&key=unseen")
		if a = w.top(""); a.Busiest.Counted != 0 || a.WindowUS != 0 {
			t.Errorf("it was not ended: %+v", a)
		}
		time.Sleep(31 * time.Second) // beyond topIdle
	})
}

func TestTopAdminAndErrors(t *testing.T) {
	w := newFixture(t, server.Config{AdminToken: "s3cret"}, local)
	if res := w.do("GET", "/v1/top", ""); res.Code != http.StatusUnauthorized {
		t.Error(res.Code, res.Body)
	}
	if res := newFixture(t, server.Config{}, server.Site{}).do("GET", "/v1/top", ""); res.Code != http.StatusForbidden {
		t.Error(res.Code, res.Body)
	}
	w = newFixture(t, server.Config{}, local)
	for query, want := range map[string]string{"n=0": "n", "n=101": "n", "n=x": "n", "n=1&n=2": "n", "limit=": "limit", "key=a": "key"} {
		if res := w.do("GET", "/v1/top?"+query, ""); res.Code != http.StatusBadRequest || !strings.Contains(res.Body.String(), `"field":"`+want+`"`) {
			t.Error(query, res.Code, res.Body)
		}
	}
	if res := w.do("GET", "/v1/top?limit=nobody", ""); res.Code != http.StatusNotFound {
		t.Error(res.Code, res.Body)
	}
	if res := w.do("POST", "/v1/top", ""); res.Code != http.StatusMethodNotAllowed {
		t.Error(res.Code, res.Body)
	}
}
