package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell/internal/redistest"
)

// On SIGTERM during gRPC calls, every take that charged was answered, and the
// process leaves no connections to the store.
func TestDrainUnderLoad(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		dsn := migratedDatabase(t)
		drain(t, dsn, func() error {
			var n int
			if err := connectTo(t, dsn).QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'dipwell'").Scan(&n); err != nil || n > 0 {
				return fmt.Errorf("%d connections of the service: %w", n, err)
			}
			return nil
		})
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		db := redistest.Start(t)
		drain(t, db.URL(), func() error {
			list, err := db.Do("client", "list", "type", "normal")
			if n := strings.Count(fmt.Sprint(list), " laddr="); err != nil || n > 1 { // the one that asks
				return fmt.Errorf("%d connections: %w\n%v", n, err, list)
			}
			return nil
		})
	})
}

const (
	drainClients = 16
	drainAfter   = 400 // calls that were answered
)

func drain(t *testing.T, store string, closed func() error) {
	file := filepath.Join(t.TempDir(), "d.yaml")
	if err := os.WriteFile(file, []byte(descriptors+"4000000000}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--rls-config", file, "--store", store}
	req := &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "7"}}}}}
	dial := func(p *process) *grpc.ClientConn {
		conn, err := grpc.NewClient(p.stdout.wait(t, `serving gRPC on (\S+)\n`)[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	p := start(t, args...)
	eventually(t, func() error { return isReady(t, p.url) })
	var answered atomic.Int64
	enough := make(chan struct{})
	var wg sync.WaitGroup
	for i := range drainClients {
		conn := dial(p)
		wg.Go(func() {
			for c := pb.NewRateLimitServiceClient(conn); ; {
				r, err := c.ShouldRateLimit(t.Context(), req)
				if status.Code(err) == codes.Unavailable {
					return // it stops, and did not take the call
				}
				if err != nil || r.OverallCode != pb.RateLimitResponse_OK {
					t.Errorf("client %d: %v %v", i, r, err)
					return
				}
				if answered.Add(1) == drainAfter {
					close(enough)
				}
			}
		})
	}
	<-enough
	err := p.stop()
	wg.Wait()
	if err != nil {
		t.Errorf("SIGTERM: %v, want exit status 0\n%s", err, &p.stderr.all)
	}
	eventually(t, closed)
	p = start(t, args...)
	eventually(t, func() error { return isReady(t, p.url) })
	r, err := pb.NewRateLimitServiceClient(dial(p)).ShouldRateLimit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if taken := 4000000000 - int64(r.Statuses[0].LimitRemaining) - 1; taken != answered.Load() {
		t.Errorf("%d were taken, %d answered", taken, answered.Load())
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}
