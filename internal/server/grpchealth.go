package server

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Healthcheck answers GET /healthcheck as envoyproxy/ratelimit does: OK, or 500 while draining.
func (s *Server) Healthcheck(w http.ResponseWriter, _ *http.Request) {
	if s.Stopping() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("OK")) // an error means that the client has gone
}

// health implements grpc.health.v1. The services "" and "ratelimit" are the
// process: SERVING until Stop, even if the store is down, since limits have failure
// modes. Any other service is SERVING while /readyz answers 200.
type health struct {
	healthpb.UnimplementedHealthServer
	*api
	served func() map[string]grpc.ServiceInfo
}

const watchEvery = time.Second

func (h *health) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	st := h.status(ctx, r.GetService())
	if st == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

func (h *health) Watch(r *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := healthpb.HealthCheckResponse_ServingStatus(-1)
	for {
		stopping := h.Stopping() // read before the status, so that the last status is NOT_SERVING
		if st := h.status(stream.Context(), r.GetService()); st != last {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			last = st
		}
		if stopping {
			return status.Error(codes.Unavailable, "stopping") // end the watch, or the drain would wait for it
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-tick.C:
		}
	}
}

func (h *health) status(ctx context.Context, service string) healthpb.HealthCheckResponse_ServingStatus {
	process := service == "" || service == "ratelimit"
	if _, known := h.served()[service]; !known && !process {
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	}
	if h.Stopping() {
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	if !process {
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		if h.probe(ctx) != nil {
			return healthpb.HealthCheckResponse_NOT_SERVING
		}
	}
	return healthpb.HealthCheckResponse_SERVING
}
