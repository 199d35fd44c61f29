package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/grpclimit"
	"github.com/dipwell/dipwell/memstore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func Example() {
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "api", Rate: 1, Period: time.Minute, Burst: 2})
	if err != nil {
		panic(err)
	}
	options, err := grpclimit.New(limiter, grpclimit.Config{Limits: []grpclimit.Limit{
		{Name: "api", Key: grpclimit.Metadata("user")},
	}})
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(options...) // after the interceptors of earlier options
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	defer func() { server.Stop(); <-done }()

	// A client that fails at once where it would have to wait.
	client, err := grpclimit.NewClient(nil, grpclimit.ClientConfig{FailFast: true})
	if err != nil {
		panic(err)
	}
	conn, err := grpc.NewClient(listener.Addr().String(), append(client, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "user", "7")
	for range 3 {
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		wait, told := grpclimit.RetryInfo(err)
		fmt.Println(status.Code(err), told, wait.Round(time.Minute))
	}
	// Output:
	// OK false 0s
	// OK false 0s
	// ResourceExhausted true 1m0s
}
