package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/server"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

// serveVerbs serves the gRPC service of s, and what register adds, and returns a client of it.
func serveVerbs(t *testing.T, s *server.Server, register func(grpc.ServiceRegistrar)) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.ServeGRPC(ctx, server.Listener{Listener: l}, s.GRPC(server.Site{Loopback: true}, register))
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// throughGRPC makes a call of the HTTP API through gRPC: its form's or object's members have
// the same names in the messages, but times are in µs. ok is false if there is no such call:
// limits and overrides are defined over HTTP alone, and a message does not distinguish an
// empty text or number from one that is absent.
func (s *surface) throughGRPC(call string) (err error, ok bool) {
	method, rest, _ := strings.Cut(call, " ")
	path, form, _ := strings.Cut(rest, " ")
	path, query, _ := strings.Cut(path, "?")
	if query != "" || method == "GET" || method == "DELETE" {
		return nil, false
	}
	name := map[string]string{"/v1/take": "Take", "/v1/hold": "Hold", "/v1/settle": "Settle", "/v1/extend": "Extend"}[path]
	fields := map[string]any{}
	var in, out proto.Message
	switch name {
	case "Take":
		in, out = new(dipwellv1.Call), new(dipwellv1.Decision)
	case "Hold":
		in, out = new(dipwellv1.HoldRequest), new(dipwellv1.Decision)
	case "Settle":
		in, out = new(dipwellv1.SettleRequest), new(dipwellv1.Decision)
	case "Extend":
		in, out = new(dipwellv1.ExtendRequest), new(dipwellv1.Decision)
	default:
		return nil, false
	}
	if strings.HasPrefix(form, "{") {
		if err := json.Unmarshal([]byte(form), &fields); err != nil {
			s.Fatal(err)
		}
	} else {
		values, err := url.ParseQuery(form)
		if err != nil {
			s.Fatal(err)
		}
		for k := range values {
			fields[k] = values.Get(k)
		}
	}
	for k, v := range fields {
		text, _ := v.(string)
		if v == "" && k != "key" && k != "ttl" {
			return nil, false
		}
		switch k {
		case "costs":
			if text != "" {
				fields[k] = strings.Split(text, ",")
			}
		case "ttl":
			d, err := period.ParseDuration(text)
			if err != nil {
				return nil, false //nolint:nilerr // it cannot be expressed
			}
			delete(fields, k)
			fields[k+"_us"] = d.Microseconds()
		}
	}
	text, err := json.Marshal(fields)
	if err == nil {
		err = protojson.Unmarshal(text, in)
	}
	if err != nil {
		s.Fatal(call, err)
	}
	return s.verbs.Invoke(bg, "/"+dipwellv1.Limiter_ServiceDesc.ServiceName+"/"+name, in, out), true
}

// makeGRPC makes a mistake through gRPC. want is the error of Go, or nil.
func (s *surface) makeGRPC(c *badCall, want error) {
	err, ok := s.throughGRPC(c.http)
	if !ok {
		return
	}
	s.grpcCalls++
	code := codes.InvalidArgument
	switch {
	case errors.Is(want, store.ErrUnknownPlan):
		code = codes.NotFound
	case errors.Is(want, store.ErrHoldConflict):
		code = codes.FailedPrecondition
	}
	if text := status.Convert(err).Message(); status.Code(err) != code || !strings.Contains(text, cmp.Or(c.field, "hold")) || !strings.Contains(text, c.reason) {
		s.Errorf("%s by gRPC: %v; want %v, %s and %q", c.name, err, code, c.field, c.reason)
	}
}
