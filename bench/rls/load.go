package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dipwell/dipwell/bench/internal/cpu"
)

// contender is a server and its results.
type contender struct {
	name, addr string
	pid, conns int
	store      int // process id of its store's first process; 0: it has none
	clients    []*grpc.ClientConn
	measured
}

// measured has the results of the rounds under one load; processor times are in
// µs per call.
type measured struct{ perSecond, server, storeTime, client, p99 []float64 }

// users and gone are the requests, made once so that the client uses little time.
var users, gone = requests("user"), requests("gone")

func requests(kind string) []*pb.RateLimitRequest {
	all := make([]*pb.RateLimitRequest, keys)
	for i := range all {
		all[i] = &pb.RateLimitRequest{Domain: "bench", Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: kind, Value: fmt.Sprintf("user-%d", i)}},
		}}}
	}
	return all
}

// connect waits until the server gives the expected answers.
func (c *contender) connect() error {
	for range c.conns {
		c.clients = append(c.clients, must(grpc.NewClient(c.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))))
	}
	var err error
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err = ask(ctx, pb.NewRateLimitServiceClient(c.clients[0]), 0, grpc.WaitForReady(true))
		cancel()
		if err == nil {
			return nil
		}
	}
	return errors.Join(errors.New("does not answer"), err)
}

func (c *contender) disconnect() {
	for _, conn := range c.clients {
		conn.Close()
	}
}

// ask makes a call and panics unless a limit decided it.
func ask(ctx context.Context, client pb.RateLimitServiceClient, i int, o ...grpc.CallOption) error {
	r, err := client.ShouldRateLimit(ctx, users[i%keys], o...)
	if err != nil {
		return err
	}
	if r.OverallCode != pb.RateLimitResponse_OK || len(r.Statuses) != 1 || r.Statuses[0].CurrentLimit.GetRequestsPerUnit() != 4_000_000_000 {
		return fmt.Errorf("not the answer of the limit: %v", r)
	}
	return nil
}

// refusal makes a call and panics unless it is refused.
func refusal(ctx context.Context, client pb.RateLimitServiceClient, i int) error {
	r, err := client.ShouldRateLimit(ctx, gone[i%keys])
	if err == nil && r.OverallCode != pb.RateLimitResponse_OVER_LIMIT {
		err = fmt.Errorf("not refused: %v", r)
	}
	return err
}

// fill takes from every key once, and drains the keys that are to be refused.
func (c *contender) fill(refused int) {
	client := pb.NewRateLimitServiceClient(c.clients[0])
	var wg sync.WaitGroup
	var errs [16]error
	for w := range errs {
		wg.Go(func() {
			for i := w; i < keys && errs[w] == nil; i += len(errs) {
				if errs[w] = ask(context.Background(), client, i); errs[w] == nil && refused > 0 {
					_, errs[w] = client.ShouldRateLimit(context.Background(), gone[i])
				}
			}
		})
	}
	wg.Wait()
	c.panicWith(errs[:])
}

// panicWith panics in the main goroutine, in which deferred functions end the
// servers.
func (c *contender) panicWith(errs []error) {
	if err := errors.Join(errs...); err != nil {
		panic(fmt.Errorf("%s: %w", c.name, err))
	}
}

// load makes calls from concurrent callers for a while, a number of every ten on
// drained keys, and returns how many were answered and their 99th percentile in µs.
func (c *contender) load(streams, refused int, length time.Duration) (n int, p99 float64) {
	var mu sync.Mutex
	var all []float64
	var wg sync.WaitGroup
	until := time.Now().Add(length)
	errs := make([]error, streams)
	for s := range streams {
		client := pb.NewRateLimitServiceClient(c.clients[s%len(c.clients)])
		wg.Go(func() {
			var took []float64
			mine := 0
			for i := s * 2654435761; errs[s] == nil; i += 7919 {
				start := time.Now()
				if start.After(until) {
					break
				}
				if mine%10 < refused {
					errs[s] = refusal(context.Background(), client, i)
				} else {
					errs[s] = ask(context.Background(), client, i)
				}
				if mine++; mine%7 == 0 {
					took = append(took, float64(time.Since(start).Nanoseconds())/1e3)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			n += mine
			all = append(all, took...)
		})
	}
	wg.Wait()
	c.panicWith(errs)
	slices.Sort(all)
	if len(all) > 0 {
		p99 = all[len(all)*99/100]
	}
	return n, p99
}

// round measures one contender for one round under a load.
func (c *contender) round(streams, refused int, length time.Duration) {
	server, store, client := must(cpu.Process(c.pid)), c.storeUsed(), cpu.Own()
	n, p99 := c.load(streams, refused, length)
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	c.server = append(c.server, each(must(cpu.Process(c.pid))-server))
	c.storeTime = append(c.storeTime, each(c.storeUsed()-store))
	c.client = append(c.client, each(cpu.Own()-client))
	c.perSecond = append(c.perSecond, float64(n)/length.Seconds())
	c.p99 = append(c.p99, p99)
}

func (c *contender) storeUsed() time.Duration {
	if c.store == 0 {
		return 0
	}
	return must(cpu.Server(c.store))
}

func (c *contender) rssMiB() float64 {
	for line := range strings.Lines(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid))))) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return float64(must(strconv.Atoi(strings.Fields(kb)[0]))) / 1024
		}
	}
	return 0
}
