package grpclimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pace"
	"github.com/dipwell/dipwell/store"
	"google.golang.org/grpc"
)

// Config says what a call costs on a server, and of which limits.
type Config struct {
	Limits   []Limit // taken when a call begins, all or nothing at one instant; at most 16
	Received []Limit // taken for each message that a stream receives; default none
	Sent     []Limit // taken for each message that a stream sends; default none
	Slow     bool    // a stream's messages wait for their tokens, until the call's deadline, and flow control slows the client; default: a refusal ends the stream

	Headers Headers                                                  // default IETF
	Skip    func(method string) bool                                 // calls that are not limited, such as health checks; default none
	Refused func(context.Context, *dipwell.Decision) error           // default: Refuse; the metadata is set already
	Failed  func(context.Context, error) error                       // default: Fail
	Observe func(d *dipwell.Decision, err error, took time.Duration) // sees every call of the limiter, for metrics; default: nobody
}

// Server limits the calls that a server gets.
type Server struct {
	taker
	Config
}

// New returns interceptors that take from the limits before a handler runs. A
// refused call gets RESOURCE_EXHAUSTED and never reaches it; one whose key or
// cost cannot be told gets INVALID_ARGUMENT, and UNAVAILABLE is for a store that
// cannot answer.
func New(limiter *dipwell.Limiter, c Config) (*Server, error) {
	if len(c.Limits)+len(c.Received)+len(c.Sent) == 0 {
		return nil, errors.New("grpclimit: no limits")
	}
	if err := errors.Join(check(limiter, "Limits", c.Limits), check(limiter, "Received", c.Received), check(limiter, "Sent", c.Sent)); err != nil {
		return nil, err
	}
	return &Server{taker{limiter, c.Failed, c.Refused, c.Observe}, c}, nil
}

// Options are the interceptors as options of grpc.NewServer, after those that are there.
func (s *Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(s.Stream)}
}

// Unary is a grpc.UnaryServerInterceptor.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if len(s.Limits) > 0 && !s.skips(info.FullMethod) {
		var d dipwell.Decision
		err := s.take(ctx, &d, s.Limits, &Call{Method: info.FullMethod, Message: req}, noWait)
		if decided(&d) {
			md := MD(s.Headers, &d)
			_ = grpc.SetHeader(ctx, md) // fails only where the call is over
			if err != nil {
				_ = grpc.SetTrailer(ctx, md) // for clients who see no headers of a failed call
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return handler(ctx, req)
}

// decided reports whether there is a decision to announce, rather than an error.
func decided(d *dipwell.Decision) bool {
	return d.Limit != "" && d.Source != store.SourceFallbackClosed
}

func (s *Server) skips(method string) bool { return s.Skip != nil && s.Skip(method) }

// Stream is a grpc.StreamServerInterceptor.
func (s *Server) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if s.skips(info.FullMethod) {
		return handler(srv, stream)
	}
	if len(s.Limits) > 0 {
		var d dipwell.Decision
		err := s.take(stream.Context(), &d, s.Limits, &Call{Method: info.FullMethod}, noWait)
		if decided(&d) {
			md := MD(s.Headers, &d)
			_ = stream.SetHeader(md)
			if err != nil {
				stream.SetTrailer(md)
			}
		}
		if err != nil {
			return err
		}
	}
	if len(s.Received)+len(s.Sent) == 0 {
		return handler(srv, stream)
	}
	counted := &serverStream{ServerStream: stream, s: s, method: info.FullMethod}
	err := handler(srv, counted)
	if refused := counted.refused(); refused != nil {
		return refused // whatever the handler made of it
	}
	return err
}

// serverStream takes for each message.
type serverStream struct {
	grpc.ServerStream
	s      *Server
	method string

	mu    sync.Mutex // messages are received and sent by two goroutines
	ended error
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
	bound := noWait
	if w.s.Slow {
		bound = pace.Forever
	}
	var d dipwell.Decision
	err := w.s.take(w.Context(), &d, limits, &Call{Method: w.method, Message: m}, bound)
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended == nil {
		if w.ended = err; decided(&d) {
			w.SetTrailer(MD(w.s.Headers, &d))
		}
	}
	return w.ended
}

// refused is what ended the stream: no further message passes.
func (w *serverStream) refused() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}
