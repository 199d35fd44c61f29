package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/internal/pace"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// ClientConfig says what outgoing calls are held to, and how a client meets the
// refusals of servers.
type ClientConfig struct {
	Limits   []Limit // taken before a call is sent, all or nothing at one instant; at most 16; default none
	Received []Limit // taken before each message that a stream receives; default none
	Sent     []Limit // taken for each message that a stream sends; default none

	FailFast    bool          // a call that would have to wait fails at once; default: it waits, until its deadline at most
	MaxWait     time.Duration // the longest a call waits in all, whatever its deadline and the server say; default 1 minute
	MaxAttempts int           // of a unary call, the first included; 1 never tries again; default 4

	Refused func(context.Context, *dipwell.Decision) error           // default: Refuse
	Failed  func(context.Context, error) error                       // default: Fail
	Observe func(d *dipwell.Decision, err error, took time.Duration) // sees every call of the limiter, for metrics; default: nobody
}

// Bounds of what a client remembers and believes.
const (
	defaultMaxWait     = time.Minute
	defaultMaxAttempts = 4
	maxAttempts        = 100
	maxMethods         = 1024      // methods whose server said when to come back
	maxBlock           = time.Hour // a server that says more is asked again after this
)

// Client limits the calls that a program makes, and honours RetryInfo: a unary
// call that a server refused with one is sent again when it says, and until then
// no other call of the same method to the same target is sent.
type Client struct {
	taker
	ClientConfig
	blocks blocks
}

// NewClient returns interceptors for connections. Without Limits the limiter
// may be nil: RetryInfo is then honoured, and nothing else is done.
func NewClient(limiter *dipwell.Limiter, c ClientConfig) (*Client, error) {
	if err := errors.Join(check(limiter, "Limits", c.Limits), check(limiter, "Received", c.Received), check(limiter, "Sent", c.Sent)); err != nil {
		return nil, err
	}
	if c.MaxWait < 0 {
		return nil, fmt.Errorf("grpclimit: MaxWait: %v is negative", c.MaxWait)
	}
	if c.MaxAttempts < 0 || c.MaxAttempts > maxAttempts {
		return nil, fmt.Errorf("grpclimit: MaxAttempts: %d is not between 1 and %d", c.MaxAttempts, maxAttempts)
	}
	if c.MaxWait == 0 {
		c.MaxWait = defaultMaxWait
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = defaultMaxAttempts
	}
	return &Client{taker: taker{limiter, c.Failed, c.Refused, c.Observe}, ClientConfig: c}, nil
}

// Options are the interceptors as options of grpc.NewClient, after those that are there.
func (c *Client) Options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream)}
}

// Unary is a grpc.UnaryClientInterceptor.
func (c *Client) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	w := waiter{left: c.MaxWait, failFast: c.FailFast}
	for attempt := 1; ; attempt++ {
		if err := c.admit(ctx, &w, cc.Target(), method, req); err != nil {
			return err
		}
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err == nil {
			return nil
		}
		wait, told := c.learn(cc.Target(), method, err)
		if !told || attempt == c.MaxAttempts || !w.mayWait(ctx, wait) {
			return err // the server's own status says how long
		}
		if w.sleep(ctx, wait) != nil {
			return err
		}
	}
}

// Stream is a grpc.StreamClientInterceptor. A stream is not opened again: its
// messages cannot be taken back.
func (c *Client) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	w := waiter{left: c.MaxWait, failFast: c.FailFast}
	if err := c.admit(ctx, &w, cc.Target(), method, nil); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		c.learn(cc.Target(), method, err)
		return nil, err
	}
	return &clientStream{stream, c, cc.Target(), method, !desc.ServerStreams, cancel}, nil
}

// admit waits for what the server said and for the limits.
func (c *Client) admit(ctx context.Context, w *waiter, target, method string, req any) error {
	for {
		wait := c.blocks.wait(target, method)
		if wait <= 0 {
			break
		}
		if !w.mayWait(ctx, wait) {
			return blocked(wait)
		}
		if err := w.sleep(ctx, wait); err != nil {
			return status.FromContextError(err).Err()
		}
	}
	if len(c.Limits) == 0 {
		return nil
	}
	var d dipwell.Decision
	call := &Call{Method: method, Message: req}
	if w.failFast {
		return c.take(ctx, &d, c.Limits, call, 0)
	}
	start := time.Now()
	err := c.take(ctx, &d, c.Limits, call, max(w.left, 0))
	w.left -= time.Since(start)
	return err
}

// blocked is the error of a call that was not sent, because the server said before when to come back.
func blocked(wait time.Duration) error {
	s := status.New(codes.ResourceExhausted, fmt.Sprintf("not sent: the server said to come back in %v", wait))
	if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
		s = with
	}
	return s.Err()
}

// learn remembers what a server's refusal says of when to come back.
func (c *Client) learn(target, method string, err error) (wait time.Duration, told bool) {
	wait, told = RetryInfo(err)
	if told {
		wait = min(wait, maxBlock)
		c.blocks.set(target, method, wait)
	}
	return wait, told
}

// RetryInfo is the delay that a status of RESOURCE_EXHAUSTED or UNAVAILABLE
// carries, never negative; false when it carries none.
func RetryInfo(err error) (time.Duration, bool) {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.ResourceExhausted && s.Code() != codes.Unavailable {
		return 0, false
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.RetryDelay != nil {
			return max(0, info.RetryDelay.AsDuration()), true // AsDuration clamps what is too large
		}
	}
	return 0, false
}

// waiter keeps the time that one call may still spend waiting.
type waiter struct {
	left     time.Duration
	failFast bool
}

func (w *waiter) mayWait(ctx context.Context, wait time.Duration) bool {
	return !w.failFast && wait <= pace.Left(ctx, w.left)
}

// sleep sleeps a little longer than told, so that those who were told the same
// do not all come at once.
func (w *waiter) sleep(ctx context.Context, wait time.Duration) error {
	wait = max(wait, minSleep)
	spread := min(wait/10, time.Second, max(0, pace.Left(ctx, w.left)-wait)/2)
	wait += rand.N(spread + 1)
	w.left -= wait
	return await.Sleep(ctx, wait)
}

// minSleep keeps a server that says "at once" from being asked in a busy loop.
const minSleep = time.Millisecond

// clientStream takes for each message, and learns from how the stream ends.
type clientStream struct {
	grpc.ClientStream
	c              *Client
	target, method string
	single         bool               // the server answers with one message
	cancel         context.CancelFunc // a refused message ends the stream, as any error of SendMsg does
}

func (s *clientStream) SendMsg(m any) error {
	if err := s.take(s.c.Sent, m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}

func (s *clientStream) RecvMsg(m any) error {
	if err := s.take(s.c.Received, nil); err != nil {
		return err
	}
	err := s.ClientStream.RecvMsg(m)
	if err != nil || s.single {
		s.cancel() // it is over
	}
	if err != nil {
		s.c.learn(s.target, s.method, err)
	}
	return err
}

func (s *clientStream) take(limits []Limit, m any) error {
	if len(limits) == 0 {
		return nil
	}
	bound := s.c.MaxWait
	if s.c.FailFast {
		bound = 0
	}
	var d dipwell.Decision
	err := s.c.take(s.Context(), &d, limits, &Call{Method: s.method, Message: m}, bound)
	if err != nil {
		s.cancel()
	}
	return err
}

// blocks remembers until when servers do not want to hear of a method.
type blocks struct {
	mu    sync.RWMutex
	until map[[2]string]time.Time
}

func (b *blocks) wait(target, method string) time.Duration {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if len(b.until) == 0 {
		return 0
	}
	until, ok := b.until[[2]string{target, method}]
	if !ok {
		return 0
	}
	return time.Until(until)
}

func (b *blocks) set(target, method string, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if len(b.until) >= maxMethods {
		for k, until := range b.until {
			if !until.After(now) {
				delete(b.until, k)
			}
		}
		for k := range b.until { // all are waiting: one is forgotten, and costs a refused call
			if len(b.until) < maxMethods {
				break
			}
			delete(b.until, k)
		}
	}
	if b.until == nil {
		b.until = map[[2]string]time.Time{}
	}
	k := [2]string{target, method}
	if until := now.Add(wait); until.After(b.until[k]) {
		b.until[k] = until
	}
}
