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

// Healthcheck answers GET /healthcheck as envoyproxy/ratelimit does: OK, or 500
// while the process drains.
func (s *Server) Healthcheck(w http.ResponseWriter, _ *http.Request) {
	if s.stopping.Load() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("OK")) // the client is gone, and there is nobody to tell
}

// health is grpc.health.v1. "" and "ratelimit" are the process: serving until
// it drains, because limits have failure modes of their own. A service's name
// is what /readyz tells: serving while the store can decide.
type health struct {
	healthpb.UnimplementedHealthServer
	*api
	served func() map[string]grpc.ServiceInfo
}

// watchEvery is how often a watched status is looked at, while it is watched.
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
		stopping := h.stopping.Load() // before the status is read: the last one sent is NOT_SERVING
		if st := h.status(stream.Context(), r.GetService()); st != last {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			last = st
		}
		if stopping {
			return status.Error(codes.Unavailable, "stopping") // a watch must not hold up the drain
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
	if h.stopping.Load() {
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
