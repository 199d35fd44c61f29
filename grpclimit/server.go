package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Config configures New. At least one of Limits, Received and Sent is
// required. The functions in a Config are called by many goroutines at once.
type Config struct {
	// Limits are taken when a call begins, at one instant, all or nothing: a call that
	// one of them refuses takes from none. There may be at most 16 Limits, with their
	// parents. A stream has no message yet when it begins, so that Call.Message is nil.
	Limits []Limit

	// Received are taken for each message that a stream receives, after it was read,
	// and Sent for each message that it sends, before it is sent. Received and Sent may have
	// at most 16 each. Received and Sent cannot be concurrency limits. Unary calls do not
	// take from Received and Sent. Default: none.
	Received, Sent []Limit

	// Slow makes the messages of a stream wait for their tokens, until the
	// call's deadline; flow control then slows the client down. Without a deadline a
	// message waits for as long as it takes. By default a refused message ends the
	// stream: RecvMsg and SendMsg return the refusal from then on, and the call has
	// its status, whatever the handler returns.
	Slow bool

	// TTL is how long the tokens that a call holds stay taken if the program dies, as in
	// httplimit.Config. Default of TTL: 1 minute, and at most the TTL of each limit.
	TTL time.Duration

	// Headers selects the metadata that announces decisions: httplimit's header fields with
	// lower-case names. It is in the header of each call that was decided, and for a refused
	// call also in the trailer, because clients may not see the header of a failed call. For
	// messages only a refusal is announced, in the trailer. Default: httplimit.IETF.
	Headers httplimit.Headers

	// Skip reports whether a method, "/package.Service/Method", is not limited,
	// as health checks should not be. The messages of such a method are not limited
	// either. Default of Skip: every method is limited.
	Skip func(method string) bool

	// Refused returns the error of a refused call. The metadata is already set. If
	// Refused returns nil, the call goes on although it took nothing. Default: Refuse.
	Refused func(context.Context, *dipwell.Decision) error

	// Failed returns the error of a call that could not be decided: its key or cost
	// function failed, or the store did not answer and a limit fails closed. If
	// Failed returns nil, the call goes on. Default: Fail.
	Failed func(context.Context, error) error

	// Observe, if set, is called after every call of the limiter with its result and
	// duration, for metrics. Observe must not keep d. With Slow the duration includes the
	// wait for tokens. Calls whose key or cost function fails are not observed.
	Observe func(d *dipwell.Decision, err error, took time.Duration)
}

type server struct {
	taker
	Config
}

// New returns interceptors, as options of grpc.NewServer, that take from the limits
// before a handler runs. They run after the interceptors of earlier options, and may be
// given to several servers.
//
// A refused call fails with RESOURCE_EXHAUSTED and does not reach the handler. A call
// whose key or cost function fails with a *dipwell.FieldError gets INVALID_ARGUMENT,
// and UNAVAILABLE if the store does not answer. New returns an error if c has no
// limits, more than 16 in a list, or one that the limiter does not have.
//
// A call or message that a leaky bucket allows with a delay waits that long, except in shadow
// mode; so its calls are evenly spaced. If the call ends first, its tokens are given back.
//
// If one of Limits has the algorithm dipwell.Concurrency, the call holds its tokens, of
// all Limits in one hold, until its handler returns or panics, which ends a stream. The
// tokens are then settled to what was held, which releases those of concurrency limits.
// If the hold is lost before, the handler's context is cancelled.
func New(limiter *dipwell.Limiter, c Config) ([]grpc.ServerOption, error) {
	s, err := newServer(limiter, c)
	if err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream)}, nil
}

func newServer(limiter *dipwell.Limiter, c Config) (*server, error) {
	if len(c.Limits)+len(c.Received)+len(c.Sent) == 0 {
		return nil, errors.New("grpclimit: no limits")
	}
	messages := front.Takes
	if c.Slow {
		messages = front.Waits
	}
	if err := errors.Join(check(limiter, "Limits", c.Limits, front.Holds), check(limiter, "Received", c.Received, messages), check(limiter, "Sent", c.Sent, messages)); err != nil {
		return nil, err
	}
	var err error
	if c.TTL, err = front.CheckTTL(c.TTL); err != nil {
		return nil, fmt.Errorf("grpclimit: %w", err)
	}
	return &server{taker{limiter, c.Failed, c.Refused, c.Observe}, c}, nil
}

func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if s.skips(info.FullMethod) {
		return handler(ctx, req)
	}
	kept, release, err := s.admit(&Call{Context: ctx, Method: info.FullMethod, Message: req},
		func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }, func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) })
	if err != nil {
		return nil, err
	}
	defer release()
	return handler(kept, req)
}

// admit takes from the limits of a call and announces the decision, which header and trailer
// send. admit returns the handler's context, which ends if the call's hold is lost, and a
// function that releases the hold.
func (s *server) admit(c *Call, header func(metadata.MD) error, trailer func(metadata.MD)) (ctx context.Context, release func(), err error) {
	if len(s.Limits) == 0 {
		return c.Context, func() {}, nil
	}
	var d dipwell.Decision
	ttl, err := s.take(&d, s.Limits, c, front.NoWait, s.TTL)
	if decided(&d) {
		md := announce(s.Headers, &d)
		_ = header(md) // an error means that the call has ended
		if err != nil {
			trailer(md) // clients may not see the headers of a failed call
		}
	}
	if err != nil || d.Hold == "" {
		return c.Context, func() {}, err
	}
	ctx, release = front.Keep(c.Context, s.limiter, d.Hold, ttl)
	return ctx, release, nil
}

// decided reports whether d is announced: a decision of the store, not zero or a fallback.
func decided(d *dipwell.Decision) bool {
	return d.Limit != "" && d.Source != store.SourceFallbackClosed
}

func (s *server) skips(method string) bool { return s.Skip != nil && s.Skip(method) }

func (s *server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if s.skips(info.FullMethod) {
		return handler(srv, stream)
	}
	kept, release, err := s.admit(&Call{Context: stream.Context(), Method: info.FullMethod}, stream.SetHeader, stream.SetTrailer)
	if err != nil {
		return err
	}
	defer release()
	stream = &heldStream{stream, kept}
	if len(s.Received)+len(s.Sent) == 0 {
		return handler(srv, stream)
	}
	counted := &serverStream{ServerStream: stream, s: s, method: info.FullMethod}
	err = handler(srv, counted)
	if refused := counted.refused(); refused != nil {
		return refused // even if the handler returned nil or another error
	}
	return err
}

// heldStream is a stream whose context ends if its hold is lost.
type heldStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *heldStream) Context() context.Context { return s.ctx }

type serverStream struct {
	grpc.ServerStream
	s      *server
	method string

	mu    sync.Mutex // a handler may send and receive in two goroutines
	ended error      // what ended the stream; no message passes after it
}

func (w *serverStream) RecvMsg(m any) error {
	if err := w.refused(); err != nil {
		return err
	}
	if err := w.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return w.take(w.s.Received, m)
}

func (w *serverStream) SendMsg(m any) error {
	if err := w.take(w.s.Sent, m); err != nil {
		return err
	}
	return w.ServerStream.SendMsg(m)
}

func (w *serverStream) take(limits []Limit, m any) error {
	if err := w.refused(); err != nil || len(limits) == 0 {
		return err
	}
	bound := front.NoWait
	if w.s.Slow {
		bound = front.Forever
	}
	var d dipwell.Decision
	_, err := w.s.take(&d, limits, &Call{Context: w.Context(), Method: w.method, Message: m}, bound, 0)
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended == nil {
		if w.ended = err; decided(&d) {
			w.SetTrailer(announce(w.s.Headers, &d))
		}
	}
	return w.ended
}

func (w *serverStream) refused() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}
