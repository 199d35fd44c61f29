package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
)

// Each account may ask twice, and once more every minute.
func Example() {
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "account", Rate: 1, Period: time.Minute, Burst: 2})
	if err != nil {
		panic(err)
	}
	wrap, err := httplimit.New(limiter, httplimit.Config{Limits: []httplimit.Limit{
		{Name: "account", Key: httplimit.Header("X-Account")},
	}})
	if err != nil {
		panic(err)
	}
	handler := wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))

	for range 3 {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Account", "acme")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"), w.Header().Get("Retry-After") != "")
	}
	// Output:
	// 200 "account";q=2;w=120 false
	// 200 "account";q=2;w=120 false
	// 429 "account";q=2;w=120 true
}

// A user who is known has a bucket; everybody else has that of an address.
func ExampleFirstOf() {
	key := httplimit.FirstOf(httplimit.Header("X-User"), httplimit.ClientIP())

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	fmt.Println(key(r))
	r.Header.Set("X-User", "ada")
	fmt.Println(key(r))
	// Output:
	// 192.0.2.1 <nil>
	// ada <nil>
}
