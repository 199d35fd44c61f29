package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/front"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// ClientConfig configures NewClient. The zero value obeys RetryInfo and limits nothing.
type ClientConfig struct {
	// Limits are taken before each call is sent, at one instant, all or
	// nothing; a call that is sent again takes from them again. There may be at
	// most 16 Limits. The Limits cannot be concurrency limits. Default: none.
	//
	// For adaptive Limits each sent call is observed: how long it took, for a stream until
	// its first message or its end, and whether it succeeded. A call fails if its status is
	// UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE or DATA_LOSS. A
	// call that the caller cancels before that is not observed, nor is a stream that is not
	// read.
	Limits []Limit

	// FailFast makes a call that would have to wait fail at once, with the refusal of its
	// limit or the server's status. By default a call waits, at most until its deadline. If
	// the wait would end after the deadline, the call also fails at once.
	FailFast bool

	// MaxWait is the longest time that a call waits in total, whatever its deadline and the
	// server's RetryInfo: for the limits, for the RetryInfo of earlier calls, and between
	// its attempts. A negative MaxWait is an error of NewClient. Default of MaxWait: 1 minute.
	MaxWait time.Duration

	// MaxAttempts is how often a unary call is sent, 1 to 100, the first time
	// included. Only a call that the server refused with RetryInfo is sent again;
	// streams never are. Default: 4.
	MaxAttempts int

	// Refused returns the error of a call that Limits refused. If Refused returns
	// nil, the call goes on although it took nothing. Default: Refuse.
	Refused func(context.Context, *dipwell.Decision) error

	// Failed returns the error of a call that could not be decided. Default: Fail.
	Failed func(context.Context, error) error

	// Observe, if set, is called after every call of the limiter with its
	// result and duration, for metrics. Observe must not keep d.
	Observe func(d *dipwell.Decision, err error, took time.Duration)
}

const (
	defaultMaxWait     = time.Minute
	defaultMaxAttempts = 4
	maxAttempts        = 100
	maxMethods         = 1024             // number of methods whose RetryInfo is remembered
	maxBlock           = time.Hour        // longest time that a RetryInfo blocks; longer ones are cut
	minSleep           = time.Millisecond // prevents a busy loop when a server's delay is 0
)

type client struct {
	taker
	ClientConfig
	// By target and method, the time before which no call is sent. A forgotten entry costs at
	// most one refused call.
	blocks bounded.Map[[2]string, time.Time]
	learns sync.Mutex // held while a time is compared and replaced
}

// NewClient returns interceptors, as options of grpc.NewClient, that limit the calls that
// a program makes and obey RetryInfo: a unary call that a server refused with RetryInfo
// is sent again after its delay, and until then no other call of that method to the same
// target is sent. RetryInfo of up to 1024 methods is remembered, each for an hour at
// most. The interceptors run after those of earlier options. The options may be given to
// several connections, which then share the remembered RetryInfo.
//
// limiter may be nil if c names no limits. NewClient returns an error if the limiter does
// not have a limit that c names, or if a field of c is out of range.
func NewClient(limiter *dipwell.Limiter, c ClientConfig) ([]grpc.DialOption, error) {
	l, err := newClient(limiter, c)
	if err != nil {
		return nil, err
	}
	return l.options(), nil
}

func (c *client) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
}

func newClient(limiter *dipwell.Limiter, c ClientConfig) (*client, error) {
	if err := check(limiter, "Limits", c.Limits, front.Waits); err != nil {
		return nil, err
	}
	if c.MaxWait < 0 {
		return nil, fmt.Errorf("grpclimit: MaxWait: %v is negative", c.MaxWait)
	}
	if c.MaxAttempts < 0 || c.MaxAttempts > maxAttempts {
		return nil, fmt.Errorf("grpclimit: MaxAttempts: %d is not between 1 and %d", c.MaxAttempts, maxAttempts)
	}
	c.MaxWait, c.MaxAttempts = cmp.Or(c.MaxWait, defaultMaxWait), cmp.Or(c.MaxAttempts, defaultMaxAttempts)
	l := &client{taker: taker{limiter, c.Failed, c.Refused, c.Observe}, ClientConfig: c}
	l.blocks.Most = maxMethods
	return l, nil
}

func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	w := waitBudget{left: c.MaxWait, failFast: c.FailFast}
	for attempt := 1; ; attempt++ {
		adaptive, err := c.admit(ctx, &w, cc.Target(), method, req)
		if err != nil {
			return err
		}
		began := time.Now()
		err = invoke(ctx, method, req, reply, cc, opts...)
		c.observeCall(ctx, adaptive, began, err)
		if err == nil {
			return nil
		}
		wait, told := c.learn(cc.Target(), method, err)
		if !told || attempt == c.MaxAttempts || !w.mayWait(ctx, wait) {
			return err // the server's status has the RetryInfo
		}
		if w.sleep(ctx, wait) != nil {
			return err
		}
	}
}

// stream does not retry: messages that were sent on a stream cannot be sent again.
func (c *client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	w := waitBudget{left: c.MaxWait, failFast: c.FailFast}
	adaptive, err := c.admit(ctx, &w, cc.Target(), method, nil)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	first := func(err error) { c.observeCall(ctx, adaptive, began, err) }
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		first(err)
		c.learn(cc.Target(), method, err)
		return nil, err
	}
	return &clientStream{ClientStream: stream, c: c, target: cc.Target(), method: method, first: first}, nil
}

func (c *client) observeCall(ctx context.Context, adaptive []string, began time.Time, err error) {
	if len(adaptive) == 0 || err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	ok := true
	switch status.Code(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal, codes.Unavailable, codes.DataLoss:
		ok = errors.Is(err, io.EOF) // io.EOF is the normal end of a stream
	}
	front.Observe(c.limiter, adaptive, time.Since(began), ok)
}

// admit waits until an earlier RetryInfo has passed, and then for the limits. admit
// returns the adaptive limits that allowed the call.
func (c *client) admit(ctx context.Context, w *waitBudget, target, method string, req any) (adaptive []string, err error) {
	for {
		until, _ := c.blocks.Get([2]string{target, method})
		wait := time.Until(until)
		if wait <= 0 {
			break
		}
		if !w.mayWait(ctx, wait) {
			return nil, blocked(wait)
		}
		if err := w.sleep(ctx, wait); err != nil {
			return nil, status.FromContextError(err).Err()
		}
	}
	if len(c.Limits) == 0 {
		return nil, nil
	}
	call, most := &Call{Context: ctx, Method: method, Message: req}, time.Duration(0)
	var d dipwell.Decision
	if !w.failFast {
		most = max(w.left, 0)
	}
	start := time.Now()
	if _, err = c.take(&d, c.Limits, call, most, 0); !w.failFast {
		w.left -= time.Since(start)
	}
	if d.Allowed { // otherwise the call goes on although it took nothing
		adaptive = front.Adaptive(&d)
	}
	return adaptive, err
}

func blocked(wait time.Duration) error {
	return detailed(codes.ResourceExhausted, fmt.Sprintf("not sent: the server said to come back in %v", wait), &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}).Err()
}

func (c *client) learn(target, method string, err error) (wait time.Duration, told bool) {
	wait, told = RetryInfo(err)
	if told {
		wait = min(wait, maxBlock)
		c.learns.Lock()
		defer c.learns.Unlock()
		k, until := [2]string{target, method}, time.Now().Add(wait)
		if old, _ := c.blocks.Get(k); until.After(old) {
			c.blocks.Put(k, until)
		}
	}
	return wait, told
}

// RetryInfo returns the retry delay in the details of a status, at least 0. RetryInfo returns
// false if err is not a status of RESOURCE_EXHAUSTED or UNAVAILABLE, or has no RetryInfo.
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

// waitBudget is how much time one call may still wait.
type waitBudget struct {
	left     time.Duration
	failFast bool
}

func (w *waitBudget) mayWait(ctx context.Context, wait time.Duration) bool {
	return !w.failFast && wait <= front.Left(ctx, w.left)
}

// sleep sleeps for wait and a random part of up to a tenth more, so that clients
// that were given the same delay do not all return at once.
func (w *waitBudget) sleep(ctx context.Context, wait time.Duration) error {
	wait = max(wait, minSleep)
	spread := min(wait/10, time.Second, max(0, front.Left(ctx, w.left)-wait)/2)
	wait += rand.N(spread + 1)
	w.left -= wait
	return background.Sleep(ctx, wait)
}

// clientStream observes a stream's first message, and the RetryInfo of its last status.
type clientStream struct {
	grpc.ClientStream
	c              *client
	target, method string
	first          func(error) // called with the result of the first message, or the end; nil once it was called
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if s.first != nil {
		s.first(err)
		s.first = nil
	}
	if err != nil {
		s.c.learn(s.target, s.method, err)
	}
	return err
}
