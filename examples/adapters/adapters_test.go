package adapters_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/labstack/echo/v5"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/examples/adapters"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
)

const burst = 3

// newLimiter returns a limiter whose limit "api" grants a burst, and no more while a test runs.
func newLimiter(t *testing.T) *dipwell.Limiter {
	t.Helper()
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := dipwell.New(store, dipwell.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: burst})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// byUser is a bucket for each user, and for each address of those who have no name.
var byUser = httplimit.Limit{Name: "api", Key: httplimit.FirstOf(httplimit.Header("X-User"), httplimit.ClientIP())}

func newLimit(t *testing.T) func(http.Handler) http.Handler {
	t.Helper()
	limit, err := httplimit.New(newLimiter(t), httplimit.Config{Limits: []httplimit.Limit{byUser}})
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

// serve returns the URL of a server that runs as long as the test.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// wantLimit calls a server as two users: the handler answers a burst of calls of each, and
// the call after it is refused, and does not reach the handler.
func wantLimit(t *testing.T, url string, calls *int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, user := range []string{"ada", "bob", ""} {
		*calls = 0
		for i := range burst + 1 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if user != "" {
				r.Header.Set("X-User", user)
			}
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			h := res.Header
			if i < burst {
				if res.StatusCode != http.StatusOK || string(body) != "hello" || h.Get("Retry-After") != "" || h.Get("RateLimit") == "" {
					t.Fatalf("%q, call %d: %s %v %s", user, i, res.Status, h, body)
				}
				continue
			}
			retry, err := strconv.Atoi(h.Get("Retry-After"))
			if res.StatusCode != http.StatusTooManyRequests || err != nil || retry < 1 || retry > 3600 || h.Get("Content-Type") != "application/problem+json" ||
				string(body) != `{"title":"Too Many Requests","status":429,"retry_after":`+h.Get("Retry-After")+"}\n" {
				t.Fatalf("%q, the call after the burst: %s %v %s", user, res.Status, h, body)
			}
		}
		if *calls != burst {
			t.Fatalf("%q: the handler was called %d times, want %d", user, *calls, burst)
		}
	}
}

func TestChi(t *testing.T) {
	calls := 0
	r := chi.NewRouter()
	r.Use(newLimit(t))
	r.Get("/", func(w http.ResponseWriter, _ *http.Request) { calls++; _, _ = io.WriteString(w, "hello") })
	wantLimit(t, serve(t, r), &calls)
}

// Middleware of a route may take its key from the path: chi and Echo set http.Request.PathValue.
func TestPathValue(t *testing.T) {
	limit, err := httplimit.New(newLimiter(t), httplimit.Config{Limits: []httplimit.Limit{
		{Name: "api", Key: httplimit.PathValue("user"), Cost: func(*http.Request) (int64, error) { return burst, nil }},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := chi.NewRouter()
	r.With(limit).Get("/chi/{user}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	e := echo.New()
	e.GET("/echo/:user", func(c *echo.Context) error { return c.NoContent(http.StatusNoContent) }, echo.WrapMiddleware(limit))
	r.Mount("/echo", e)
	url := serve(t, r)
	for _, step := range []struct {
		path string
		want int
	}{
		{"/chi/ada", 204}, {"/chi/ada", 429}, {"/chi/bob", 204}, {"/chi/%00", 400},
		{"/echo/ada", 429}, {"/echo/eve", 204}, {"/echo/eve", 429}, {"/echo/%00", 400},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+step.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != step.want {
			t.Errorf("%s: %s, want %d", step.path, res.Status, step.want)
		}
	}
}

func TestEcho(t *testing.T) {
	calls := 0
	e := echo.New()
	e.Use(echo.WrapMiddleware(newLimit(t)))
	e.GET("/", func(c *echo.Context) error { calls++; return c.String(http.StatusOK, "hello") })
	wantLimit(t, serve(t, e), &calls)
}

func TestGin(t *testing.T) {
	gin.SetMode(gin.TestMode)
	calls := 0
	r := gin.New()
	r.Use(adapters.Gin(newLimit(t)))
	r.GET("/", func(c *gin.Context) { calls++; c.String(http.StatusOK, "hello") })
	wantLimit(t, serve(t, r), &calls)
}

func TestFiber(t *testing.T) {
	calls := 0
	app := fiber.New()
	app.Use(adaptor.HTTPMiddleware(newLimit(t)))
	app.Get("/", func(c fiber.Ctx) error { calls++; return c.SendString("hello") })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		if err := app.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := <-end; err != nil {
			t.Error(err)
		}
	})
	wantLimit(t, "http://"+l.Addr().String(), &calls)
}

// The real client of each protocol reads the refusal as one.
func TestConnect(t *testing.T) {
	for name, protocol := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			const procedure = "/greet.v1.Greet/Hello"
			limit, err := adapters.Connect(newLimiter(t), byUser)
			if err != nil {
				t.Fatal(err)
			}
			mux := http.NewServeMux()
			mux.Handle(procedure, limit(connect.NewUnaryHandler(procedure,
				func(context.Context, *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
					calls++
					return connect.NewResponse(wrapperspb.String("hello")), nil
				})))
			s := httptest.NewUnstartedServer(mux)
			s.EnableHTTP2 = true // gRPC's trailers
			s.StartTLS()
			t.Cleanup(s.Close)
			var status int
			var header http.Header
			client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](doer(func(r *http.Request) (*http.Response, error) {
				res, err := s.Client().Do(r)
				if err == nil {
					status, header = res.StatusCode, res.Header
				}
				return res, err
			}), s.URL+procedure, protocol...)
			for i := range burst {
				res, err := client.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("")))
				if err != nil || res.Msg.GetValue() != "hello" || res.Header().Get("RateLimit") == "" {
					t.Fatalf("call %d: %v %v", i, res, err)
				}
			}
			_, err = client.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("")))
			refused, ok := errors.AsType[*connect.Error](err)
			if !ok || refused.Code() != connect.CodeResourceExhausted || refused.Message() != "too many requests" || calls != burst {
				t.Fatalf("the call after the burst, %d calls: %v", calls, err)
			}
			want := map[string]int{"connect": 429, "grpc": 200, "grpc-web": 200}[name] // gRPC has the code in a trailer
			if retry, err := strconv.Atoi(header.Get("Retry-After")); err != nil || retry < 1 || retry > 3600 || status != want {
				t.Errorf("status %d, want %d; %v", status, want, header)
			}
		})
	}
}

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }
