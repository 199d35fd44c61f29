package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
)

const (
	nameNoop      = "no-op handler"
	nameMemory    = "dipwell, memory"
	nameRedis     = "dipwell, Redis"
	nameLogged    = "dipwell, PostgreSQL, logged"
	namePostgres  = "dipwell, PostgreSQL, unlogged"
	nameUpstream  = "envoyproxy/ratelimit, Redis"
	namePipelined = "envoyproxy/ratelimit, Redis, REDIS_PIPELINE_WINDOW=150us"
)

// gogc is the value that `dipwell serve` sets. All servers use it.
const gogc = "GOGC=150"

// upstream is the compared version of envoyproxy/ratelimit.
const upstream = "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36"

// descriptors allow all requests of users, in windows longer than a run, and
// one request a day of each drained key.
const descriptors = `domain: bench
descriptors:
  - key: user
    rate_limit:
      unit: day
      requests_per_unit: 4000000000
  - key: gone
    rate_limit:
      unit: day
      requests_per_unit: 1
`

// noop serves requests without a decision: it measures the cost of gRPC.
func noop(addr string) {
	g := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(g, noopServer{})
	panic(g.Serve(must(net.Listen("tcp", addr))))
}

type noopServer struct {
	pb.UnimplementedRateLimitServiceServer
}

func (noopServer) ShouldRateLimit(_ context.Context, r *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	if r.Descriptors[0].Entries[0].Key == "gone" {
		return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT, Statuses: []*pb.RateLimitResponse_DescriptorStatus{{
			Code: pb.RateLimitResponse_OVER_LIMIT, CurrentLimit: noopLimit, DurationUntilReset: &durationpb.Duration{Seconds: 43210},
		}}}, nil
	}
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK, Statuses: []*pb.RateLimitResponse_DescriptorStatus{{
		Code: pb.RateLimitResponse_OK, CurrentLimit: noopLimit, LimitRemaining: 3_999_999_999, DurationUntilReset: &durationpb.Duration{Seconds: 43210},
	}}}, nil
}

var noopLimit = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: 4_000_000_000, Unit: pb.RateLimitResponse_RateLimit_DAY}

// start builds and starts the contenders chosen by flags.
func (b *bench) start(only string) {
	dir := must(os.MkdirTemp("", "bench-rls"))
	b.closers = append(b.closers, func() { os.RemoveAll(dir) })
	config := filepath.Join(dir, "ratelimit", "config")
	if err := os.MkdirAll(config, 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(descriptors), 0o644); err != nil {
		panic(err)
	}
	bin := filepath.Join(dir, "dipwell")
	build := exec.Command("go", "build", "-o", bin, "./cmd/dipwell")
	build.Dir = ".."
	run(build)

	b.add(nameNoop, only, func(c *contender) *exec.Cmd { return exec.Command(must(os.Executable()), "noop", c.addr) })
	dipwell := func(store func(*contender) string) func(*contender) *exec.Cmd {
		return func(c *contender) *exec.Cmd {
			return exec.Command(bin, "serve", "--listen", freeAddr(), "--grpc", c.addr, "--rls-config", config, "--store", store(c))
		}
	}
	migrated := func(flags ...string) func(*contender) string {
		return func(c *contender) string {
			dsn := b.postgres(c)
			run(exec.Command(bin, append([]string{"migrate", "up", "--store", dsn}, flags...)...))
			return dsn
		}
	}
	b.add(nameMemory, only, dipwell(func(*contender) string { return "memory:" }))
	b.add(nameRedis, only, dipwell(b.redis))
	b.add(nameLogged, only, dipwell(migrated()))
	b.add(namePostgres, only, dipwell(migrated("--unlogged")))
	rival := filepath.Join(dir, "service_cmd")
	envoyproxy := func(more ...string) func(*contender) *exec.Cmd {
		return func(c *contender) *exec.Cmd {
			if _, err := os.Stat(rival); err != nil {
				install := exec.Command("go", "install", upstream)
				install.Env = append(os.Environ(), "GOBIN="+dir)
				install.Dir = dir
				run(install)
			}
			return ratelimit(rival, dir, c.addr, strings.TrimPrefix(b.redis(c), "redis://"), more...)
		}
	}
	b.add(nameUpstream, only, envoyproxy())
	b.add(namePipelined, only, envoyproxy("REDIS_PIPELINE_WINDOW=150us"))
}

// ratelimit is the command of envoyproxy/ratelimit, quiet and without statsd.
func ratelimit(bin, root, addr, redis string, more ...string) *exec.Cmd {
	cmd := exec.Command(bin)
	_, port, _ := net.SplitHostPort(addr)
	cmd.Env = append(cmd.Environ(), "GRPC_HOST=127.0.0.1", "GRPC_PORT="+port, "HOST=127.0.0.1", "PORT="+portOf(freeAddr()), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+portOf(freeAddr()),
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis, "USE_STATSD=false", "LOG_LEVEL=error")
	cmd.Env = append(cmd.Env, more...)
	return cmd
}

func portOf(addr string) string { _, port, _ := net.SplitHostPort(addr); return port }

// add starts a contender, if a flag chose it, and waits until it answers.
func (b *bench) add(name, only string, command func(*contender) *exec.Cmd) {
	if !wanted(name, only) {
		return
	}
	c := &contender{name: name, addr: freeAddr(), conns: b.conns}
	cmd := command(c)
	cmd.Env = append(cmd.Environ(), gogc)
	log := must(os.CreateTemp("", "bench-rls-log"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	c.pid = cmd.Process.Pid
	b.closers = append(b.closers, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		late.Stop()
		log.Close()
		os.Remove(log.Name())
	})
	b.all = append(b.all, c)
	if err := c.connect(); err != nil {
		text, _ := os.ReadFile(log.Name())
		b.close()
		panic(fmt.Sprintf("%s: %v\n%s", name, err, text))
	}
	b.closers = append(b.closers, c.disconnect)
}

// redis starts a Redis server for one contender.
func (b *bench) redis(c *contender) string {
	s := must(redistest.New())
	c.store = s.PID()
	b.closers = append(b.closers, s.Close)
	return s.URL()
}

// postgres starts a PostgreSQL server for one contender, with its default settings.
func (b *bench) postgres(c *contender) string {
	s := must(pgtest.New())
	c.store = s.PID()
	b.closers = append(b.closers, func() {
		_ = s.Signal(syscall.SIGQUIT)
		s.Wait()
		s.Close()
	})
	return fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", s.Port, url.QueryEscape(s.Dir))
}

func run(cmd *exec.Cmd) {
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %v\n%s", cmd.Args, err, out))
	}
}

var given = map[string]bool{}

// freeAddr returns a different free address each time: envoyproxy/ratelimit
// shares ports, and would serve HTTP and gRPC on one.
func freeAddr() string {
	for {
		l := must(net.Listen("tcp", "127.0.0.1:0"))
		l.Close()
		if addr := l.Addr().String(); !given[addr] {
			given[addr] = true
			return addr
		}
	}
}
