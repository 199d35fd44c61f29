package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// The service assigns quotas, counts them, and ends open streams when it stops.
func TestServeQuotas(t *testing.T) {
	p := start(t, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--rls-config", "../../examples/envoy/quota")
	addr := p.stdout.wait(t, `serving gRPC on (\S+)\n`)[1]
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	stream, err := rlqs.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(t.Context())
	must(t, err)
	must(t, stream.Send(&rlqs.RateLimitQuotaUsageReports{Domain: "web", BucketQuotaUsages: []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{
		{BucketId: &rlqs.BucketId{Bucket: map[string]string{"user": "7"}}, NumRequestsAllowed: 1},
	}}))
	r, err := stream.Recv()
	must(t, err)
	if r.BucketAction[0].GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket().GetMaxTokens() == 0 {
		t.Error(r)
	}
	res, err := http.Get(p.url + "/metrics")
	must(t, err)
	defer res.Body.Close()
	metrics, err := io.ReadAll(res.Body)
	must(t, err)
	for _, want := range []string{"dipwell_rlqs_streams 1\n", "dipwell_rlqs_buckets 1\n", `dipwell_rlqs_abandoned_total{reason="idle"} 0`} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	must(t, p.stop())
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}
