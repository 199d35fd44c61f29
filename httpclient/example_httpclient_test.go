package httpclient_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httpclient"
	"github.com/dipwell/dipwell/memstore"
)

// The client waits as long as its timeout allows, and fails at once if that is not
// enough.
func Example() {
	calls := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls > 1 {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		fmt.Fprint(w, "hello")
	}))
	defer service.Close()

	transport, err := httpclient.New(httpclient.Config{})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	for range 3 {
		resp, err := client.Get(service.URL)
		if limited, ok := errors.AsType[*httpclient.LimitedError](err); ok {
			fmt.Println("come back in", limited.Wait.Round(time.Minute), "status", limited.Status)
			continue
		} else if err != nil {
			panic(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(string(body))
	}
	fmt.Println(calls, "requests were sent")
	// Output:
	// hello
	// come back in 1h0m0s status 429
	// come back in 1h0m0s status 0
	// 2 requests were sent
}

// Requests take from a limit of the program's own. On a shared store, all processes
// share one budget.
func ExampleNew_limits() {
	service := httptest.NewServer(http.NotFoundHandler())
	defer service.Close()
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "partner", Rate: 2, Period: time.Hour, Shared: true})
	if err != nil {
		panic(err)
	}
	transport, err := httpclient.New(httpclient.Config{
		Limiter: limiter, // on PostgreSQL or Redis, several processes share the limit
		Limits:  []httpclient.Limit{{Name: "partner"}},
	})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	for range 3 {
		resp, err := client.Get(service.URL)
		if err != nil {
			var limited *httpclient.LimitedError
			fmt.Println(errors.As(err, &limited))
			continue
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output:
	// 404
	// 404
	// true
}
