//go:build upstream

package rls_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/procs"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/memstore"
)

const differential = `
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: to_number
    rate_limit: {unit: hour, requests_per_unit: 40, name: numbers}
  - key: path
    value: files/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 30}
  - key: path
    value: free/*
    rate_limit: {unlimited: true}
  - key: path
    value: v*
    value_to_metric: true
    descriptors:
      - key: user
        rate_limit: {unit: week, requests_per_unit: 6}
      - key: user
        value: root
        rate_limit: {unit: month, requests_per_unit: 9, replaces: [{name: numbers}]}
  - key: path
    rate_limit: {unit: year, requests_per_unit: 50}
  - key: ip
    rate_limit: {unit: hour, requests_per_unit: 12}
    shadow_mode: true
  - key: ip
    value: 50.0.0.5
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: white
`

// TestUpstreamConfigurations loads every example and test configuration of
// envoyproxy/ratelimit, each as the only file of a directory, with its own checker and with
// this package, and wants both to accept it or both to refuse it. RATELIMIT_CHECK is that
// project's config_check_cmd, RATELIMIT_SOURCE its source.
func TestUpstreamConfigurations(t *testing.T) {
	check, source := os.Getenv("RATELIMIT_CHECK"), os.Getenv("RATELIMIT_SOURCE")
	if check == "" || source == "" {
		t.Fatal("RATELIMIT_CHECK must be the path of envoyproxy/ratelimit's config_check_cmd, RATELIMIT_SOURCE the directory of its source")
	}
	good, bad := 0, 0
	for _, pattern := range []string{"examples/ratelimit/config/*", "test/config/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, files, err)
		}
		for _, f := range files {
			dir := t.TempDir()
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, filepath.Base(f)), string(b))
			out, theirs := exec.Command(check, "-config_dir", dir).CombinedOutput()
			_, ours := rls.Load(rls.Defaults{}, dir)
			if (theirs == nil) != (ours == nil) {
				t.Errorf("%s: theirs %v %s, ours %v", f, theirs, out, ours)
			}
			if good++; theirs != nil {
				good--
				bad++
			}
		}
	}
	t.Logf("%d configurations accepted and %d refused alike", good, bad)
}

// TestUpstream sends the same requests to envoyproxy/ratelimit on a Redis and
// to this package with charge_all, and wants the same answers. RATELIMIT_BIN is
// its service_cmd; RATELIMIT_CONFIG, when set, is a directory with more of its
// configuration.
func TestUpstream(t *testing.T) {
	bin := os.Getenv("RATELIMIT_BIN")
	if bin == "" {
		t.Fatal("RATELIMIT_BIN must be the path of envoyproxy/ratelimit's service_cmd")
	}
	root := t.TempDir()
	dir := filepath.Join(root, "ratelimit", "config")
	write(t, filepath.Join(dir, "messaging.yaml"), differential)
	if more := os.Getenv("RATELIMIT_CONFIG"); more != "" {
		files, err := filepath.Glob(filepath.Join(more, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, filepath.Base(f)), string(b))
		}
	}
	theirs := upstreamClient(t, bin, root)

	store, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	w.over(store, rls.Config{})
	rules, err := rls.Load(rls.Defaults{ChargeAll: true, AllowOverride: true}, dir)
	if err == nil {
		err = w.service.Use(t.Context(), rules)
	}
	if err != nil {
		t.Fatal(err)
	}

	if s := time.Now().Second(); s > 40 { // the minutes of the examples must not turn meanwhile
		time.Sleep(time.Duration(61-s) * time.Second)
	}
	g := generator{rand.New(rand.NewPCG(limittest.NewSeed(t), 0))}
	over := map[pb.RateLimitResponse_Code]int{}
	const calls = 5000
	for i := range calls {
		req := g.request()
		want, wantErr := theirs.ShouldRateLimit(t.Context(), req)
		got, gotErr := w.client.ShouldRateLimit(t.Context(), req)
		if (wantErr == nil) != (gotErr == nil) {
			t.Fatalf("call %d %v\ntheirs %v\nours   %v", i, req, wantErr, gotErr)
		}
		if wantErr != nil {
			continue
		}
		over[want.OverallCode]++
		if why := differ(req, want, got); why != "" {
			t.Fatalf("call %d: %s\n%v\ntheirs %v\nours   %v", i, why, req, want, got)
		}
	}
	t.Logf("%d calls answered alike: %v", calls, over)
}

// differ says how two answers differ. A status may name its window's end one
// second apart, because the two are asked one after the other. Of a look at an
// exhausted limit theirs says over when a refusal was counted as well.
func differ(req *pb.RateLimitRequest, want, got *pb.RateLimitResponse) string {
	unsure := false
	for i := range want.Statuses {
		w, g := want.Statuses[i], got.Statuses[i]
		if h := req.Descriptors[i].HitsAddend; h != nil && h.Value == 0 && w.LimitRemaining == 0 && g.LimitRemaining == 0 {
			unsure = true
			continue
		}
		if unit := w.CurrentLimit.GetUnit(); unit == pb.RateLimitResponse_RateLimit_SECOND && proto.Equal(w.CurrentLimit, g.CurrentLimit) {
			unsure = true // a second may turn between the two
			continue
		}
		d := w.DurationUntilReset.AsDuration() - g.DurationUntilReset.AsDuration()
		switch {
		case w.Code != g.Code || w.LimitRemaining != g.LimitRemaining || !proto.Equal(w.CurrentLimit, g.CurrentLimit):
			return fmt.Sprintf("status %d", i)
		case (w.DurationUntilReset == nil) != (g.DurationUntilReset == nil) || d.Abs() > time.Second:
			return fmt.Sprintf("reset of %d", i)
		}
	}
	if !unsure && want.OverallCode != got.OverallCode {
		return "overall"
	}
	return ""
}

type generator struct{ *rand.Rand }

func (g generator) of(list ...string) string { return list[g.IntN(len(list))] }

func (g generator) request() *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: g.of("messaging", "messaging", "rl", "mongo_cps", "unknown", "")}
	if g.IntN(10) == 0 {
		req.HitsAddend = uint32(g.IntN(4))
	}
	if req.Domain == "" && g.IntN(10) > 0 {
		req.Domain = "messaging"
	}
	for range g.IntN(40)/10 + min(1, g.IntN(9)) {
		req.Descriptors = append(req.Descriptors, g.descriptor(req.Domain))
	}
	return req
}

func (g generator) descriptor(domain string) *common.RateLimitDescriptor {
	number := fmt.Sprint("to_number=", g.IntN(30))
	d := desc(g.of("white=1", "nothing=1", "path=files/a", "path=files/b", "path=free/x", "path=other", "ip=50.0.0.5", "ip=10.0.0.1", "=x", "message_type=marketing"))
	switch g.IntN(4) {
	case 0:
		d = desc("message_type="+g.of("marketing", "other"), number)
	case 1:
		d = desc(number)
	case 2:
		d = desc("path="+g.of("v1", "v2", "x", "files/a"), "user="+g.of("root", "7", ""))
	}
	switch domain {
	case "rl":
		d = desc(g.of("category=account", "unspec=x", "unspec=y", "qux=1", "foo=1", "foo=2"))
		switch g.IntN(3) {
		case 0:
			d = desc("source_cluster=proxy", "destination_cluster="+g.of("bkthomps", "mock", "override", "fake", "other"))
		case 1:
			d = desc("foo="+g.of("1", "2"), g.of("bar=1", "bar=bkthomps", "bar=banned", "baz=not-so-shady", "baz=shady", "bay=1", "x=1"))
		}
	case "mongo_cps":
		d = desc("database=" + g.of("users", "other")) // by the second, and far from its limit
	}
	if g.IntN(10) == 0 {
		return hits(uint64(g.IntN(5)), d)
	}
	return d
}

// upstreamClient starts envoyproxy/ratelimit on a Redis of its own.
func upstreamClient(t *testing.T, bin, root string) pb.RateLimitServiceClient {
	t.Helper()
	redis := redistest.Start(t)
	var ports []string
	for range 3 {
		port, err := procs.Port()
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, strconv.Itoa(port))
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), "GRPC_HOST=127.0.0.1", "GRPC_PORT="+ports[0], "HOST=127.0.0.1", "PORT="+ports[1], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+ports[2],
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr(), "USE_STATSD=false", "LOG_LEVEL=error")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		late.Stop()
	})
	conn, err := grpc.NewClient("127.0.0.1:"+ports[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := pb.NewRateLimitServiceClient(conn)
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		r, err := c.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "messaging", Descriptors: descs{desc("path=free/x")}}, grpc.WaitForReady(true))
		if err == nil && r.Statuses[0].LimitRemaining > 0 {
			return c
		}
		if time.Now().After(until) {
			t.Fatal(err, log.String())
		}
	}
}
