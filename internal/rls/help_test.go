package rls_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

const (
	ok   = pb.RateLimitResponse_OK
	over = pb.RateLimitResponse_OVER_LIMIT
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the start of the tests' clock, 30 s into a minute.
var noon = time.Date(2026, 11, 21, 12, 0, 30, 0, time.UTC).UnixMicro()

// world is a service behind a gRPC server, with a clock that the test moves.
type world struct {
	t       *testing.T
	now     atomic.Int64
	limiter *dipwell.Limiter
	service *rls.Service
	client  pb.RateLimitServiceClient
}

func (w *world) pass(d time.Duration) { w.now.Add(d.Microseconds()) }

func start(t *testing.T, yaml string) *world {
	t.Helper()
	return startWith(t, rls.Config{}, rls.Defaults{}, yaml)
}

func startWith(t *testing.T, c rls.Config, def rls.Defaults, yaml ...string) *world {
	t.Helper()
	w := &world{t: t}
	w.now.Store(noon)
	store, err := memstore.New(memstore.Config{Clock: w.now.Load})
	if err != nil {
		t.Fatal(err)
	}
	w.over(store, c)
	w.use(def, yaml...)
	return w
}

// over starts the service over a store.
func (w *world) over(store store.Store, c rls.Config) {
	w.t.Helper()
	var err error
	if w.limiter, err = dipwell.New(store); err != nil {
		w.t.Fatal(err)
	}
	w.service = rls.New(w.limiter, c)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	srv := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(srv, w.service)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.client = pb.NewRateLimitServiceClient(conn)
	w.t.Cleanup(func() {
		conn.Close()
		srv.Stop()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) use(def rls.Defaults, yaml ...string) {
	w.t.Helper()
	var files []rls.File
	for _, y := range yaml {
		files = append(files, rls.File{Name: "test.yaml", YAML: []byte(y)})
	}
	rules, err := rls.Parse(def, files...)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.service.Use(context.Background(), rules); err != nil {
		w.t.Fatal(err)
	}
}

// desc makes a descriptor of "key=value" entries.
func desc(entries ...string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for _, e := range entries {
		k, v, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: k, Value: v})
	}
	return d
}

func hits(n uint64, d *common.RateLimitDescriptor) *common.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func (w *world) send(req *pb.RateLimitRequest) *pb.RateLimitResponse {
	w.t.Helper()
	resp, err := w.client.ShouldRateLimit(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(resp.Statuses) != len(req.Descriptors) {
		w.t.Fatalf("%d statuses for %d descriptors", len(resp.Statuses), len(req.Descriptors))
	}
	return resp
}

func (w *world) ask(domain string, descs ...*common.RateLimitDescriptor) *pb.RateLimitResponse {
	w.t.Helper()
	return w.send(&pb.RateLimitRequest{Domain: domain, Descriptors: descs})
}

// want sends a request and compares the codes of the statuses.
func (w *world) want(domain string, overall pb.RateLimitResponse_Code, descs []*common.RateLimitDescriptor, codes ...pb.RateLimitResponse_Code) *pb.RateLimitResponse {
	w.t.Helper()
	resp := w.ask(domain, descs...)
	if resp.OverallCode != overall {
		w.t.Errorf("overall %v, not %v: %v", resp.OverallCode, overall, resp)
	}
	for i, c := range codes {
		if resp.Statuses[i].Code != c {
			w.t.Errorf("status %d is %v, not %v: %v", i, resp.Statuses[i].Code, c, resp)
		}
	}
	return resp
}

// spend sends n requests, which must all be OK.
func (w *world) spend(domain string, n int, descs ...*common.RateLimitDescriptor) {
	w.t.Helper()
	for i := range n {
		if resp := w.ask(domain, descs...); resp.OverallCode != ok {
			w.t.Fatalf("call %d: %v", i+1, resp)
		}
	}
}

// bad sends a request that must fail with INVALID_ARGUMENT and this text.
func (w *world) bad(req *pb.RateLimitRequest, words string) {
	w.t.Helper()
	_, err := w.client.ShouldRateLimit(w.t.Context(), req)
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), words) {
		w.t.Errorf("%v, not InvalidArgument with %q", err, words)
	}
}

type descs = []*common.RateLimitDescriptor

// fuzzed is a service without a server.
func fuzzed(t *testing.T) *rls.Service {
	t.Helper()
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := dipwell.New(store)
	if err != nil {
		t.Fatal(err)
	}
	s := rls.New(limiter, rls.Config{})
	rules, err := rls.Parse(rls.Defaults{}, rls.File{Name: "test.yaml", YAML: []byte(plain)})
	if err == nil {
		err = s.Use(t.Context(), rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}
