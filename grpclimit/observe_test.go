package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/grpclimit"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/memstore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Each call that an adaptive limit lets through is observed: how long it took, and whether
// its status says that the server could do it.
func TestAdaptiveObserved(t *testing.T) {
	const slow, failed, good, nothing = "latency", "errors", "good", "nothing"
	answer := func(took time.Duration, err error) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(took):
				return err
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
	}
	for name, c := range map[string]struct {
		answer func(context.Context) error
		ends   time.Duration // of the caller, who goes away
		late   time.Duration // deadline
		want   string
	}{
		"good":            {answer: answer(0, nil), want: good},
		"slow":            {answer: answer(time.Second, nil), want: slow},
		"not found":       {answer: answer(0, status.Error(codes.NotFound, "no")), want: good},
		"bad argument":    {answer: answer(0, status.Error(codes.InvalidArgument, "no")), want: good},
		"unavailable":     {answer: answer(0, status.Error(codes.Unavailable, "no")), want: failed},
		"refused":         {answer: answer(0, status.Error(codes.ResourceExhausted, "no")), want: failed},
		"unknown":         {answer: answer(0, errors.New("no")), want: failed},
		"too late":        {answer: answer(time.Hour, nil), late: time.Second, want: failed},
		"the caller goes": {answer: answer(time.Hour, nil), ends: time.Second, want: nothing},
	} {
		for _, kind := range []string{"unary", "stream", "stream that does not open"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					cc := unused(t)
					defer cc.Close()
					mem, err := memstore.New(memstore.Config{})
					if err != nil {
						t.Fatal(err)
					}
					defer mem.Close()
					l, err := dipwell.New(mem, limittest.Adaptive)
					if err != nil {
						t.Fatal(err)
					}
					client := newClient(t, l, grpclimit.ClientConfig{Limits: []grpclimit.Limit{{Name: "up"}}})
					got := limittest.Observed(l, func() {
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						if c.ends > 0 {
							time.AfterFunc(c.ends, cancel)
						}
						if c.late > 0 {
							ctx, cancel = context.WithTimeout(ctx, c.late)
							defer cancel()
						}
						switch kind {
						case "unary":
							_ = client.Unary(ctx, "/s/m", nil, nil, cc, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
								return c.answer(ctx)
							})
						default:
							s, err := client.Stream(ctx, &grpc.StreamDesc{ServerStreams: true}, cc, "/s/m", func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
								if kind == "stream" {
									return &received{ctx: ctx, first: c.answer}, nil
								}
								if err := c.answer(ctx); err != nil {
									return nil, err
								}
								return &received{ctx: ctx, first: func(context.Context) error { return io.EOF }}, nil
							})
							for err == nil {
								err = s.RecvMsg(nil)
							}
						}
					})
					if got != c.want {
						t.Errorf("%s; want %s", got, c.want)
					}
				})
			})
		}
	}
}

// received is a stream whose first message takes its time, and whose second is its end.
type received struct {
	grpc.ClientStream
	ctx   context.Context //nolint:containedctx // as a stream has it
	first func(context.Context) error
	n     int
}

func (s *received) Context() context.Context { return s.ctx }

func (s *received) RecvMsg(any) error {
	if s.n++; s.n > 1 {
		time.Sleep(time.Second) // after the first message nothing counts
		return io.EOF
	}
	return s.first(s.ctx)
}
