package lockstep

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// quotaRules leaves 5000 - 1503 tokens: 1503 come back in 1.5 s and two thousandths.
const quotaRules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 1000, algorithm: token_bucket, burst: 5000, quota: 1s}
`

// TestQuotas: four clients of the RateLimitQuotaService, of two services with a store
// each, use all that they are assigned. Between any two instants no more is taken for
// assignments than the smaller bucket has and what came back, and no more is assigned
// than was taken.
func TestQuotas(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) func() store.Store{
		"memory": func(t *testing.T) func() store.Store {
			s, err := memstore.New(memstore.Config{})
			ok(t, err)
			return func() store.Store { return s }
		},
		"postgres": func(t *testing.T) func() store.Store {
			url := newDatabase(t)
			return func() store.Store { return openLimiter(t.Context(), url, jobs).Store() }
		},
		"redis": func(t *testing.T) func() store.Store {
			url := redisURL(t) + fmt.Sprint("&prefix=quotas", prefixes.Add(1))
			return func() store.Store { return openLimiter(t.Context(), url, jobs).Store() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quotas(t, open(t))
		})
	}
}

func quotas(t *testing.T, open func() store.Store) {
	const enough = 3497 + 1500 // of which some came back
	taken := &holds{of: map[string][]limittest.Grant{}}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var mu sync.Mutex
	assigned := int64(0)
	var group sync.WaitGroup
	for range 2 {
		client := quotaService(t, &recorded{Store: open(), holds: taken})
		for range 2 {
			group.Go(func() {
				useQuota(ctx, client, func(n int64) {
					mu.Lock()
					defer mu.Unlock()
					if assigned += n; assigned >= enough {
						stop()
					}
				})
			})
		}
	}
	group.Wait()
	if assigned < enough {
		t.Errorf("only %d tokens were assigned", assigned)
	}
	var grants []limittest.Grant
	for _, held := range taken.of {
		grants = append(grants, held...)
	}
	if int64(len(grants)) < assigned {
		t.Errorf("%d tokens assigned, but %d taken", assigned, len(grants))
	}
	most := limittest.MostGranted(grants, 1000e-6)
	t.Logf("%d tokens taken, at most %.0f above the rate", len(grants), most)
	if most > 5000-1503 {
		t.Errorf("%.0f taken above the rate; the bucket has %d", most, 5000-1503)
	}
}

// holds are the tokens that were taken by each hold, or that it was settled to.
type holds struct {
	mu sync.Mutex
	of map[string][]limittest.Grant
}

// recorded is a store that records holds.
type recorded struct {
	store.Store
	*holds
}

func (r *recorded) Abilities() store.Abilities {
	ab := store.AbilitiesOf(r.Store)
	ab.Store, ab.Quick, ab.Lanes = r, nil, nil
	return ab
}

func (r *recorded) Apply(ctx context.Context, b *store.Batch) error {
	asked := time.Now()
	err := r.Store.Apply(ctx, b)
	g := &b.Groups[0]
	if g.Hold == nil || err != nil || g.Err != nil || !g.Allowed {
		return err
	}
	took := limittest.Grant{Asked: asked.UnixMicro(), Answered: time.Now().UnixMicro()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.Hold.Verb == store.MakeHold {
		r.of[g.Hold.ID] = slices.Repeat([]limittest.Grant{took}, int(g.Ops[0].Granted))
	} else {
		r.of[g.Hold.ID] = r.of[g.Hold.ID][:g.Hold.Costs[0]]
	}
	return nil
}

// quotaService serves the RateLimitQuotaService over a store, and returns a client of it.
func quotaService(t *testing.T, s store.Store) rlqs.RateLimitQuotaServiceClient {
	t.Helper()
	l, err := dipwell.New(s)
	ok(t, err)
	service := rls.New(l, rls.Config{})
	rules, err := rls.Parse(rls.Defaults{}, rls.File{Name: "test.yaml", YAML: []byte(quotaRules)})
	ok(t, err)
	ok(t, service.Use(t.Context(), rules))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	server := grpc.NewServer()
	rlqs.RegisterRateLimitQuotaServiceServer(server, rls.NewQuotas(service, nil))
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	ok(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return rlqs.NewRateLimitQuotaServiceClient(conn)
}

// useQuota asks for much, reports all that is assigned as used, and hangs up now and then.
func useQuota(ctx context.Context, client rlqs.RateLimitQuotaServiceClient, assigned func(n int64)) {
	for ctx.Err() == nil {
		life, hangUp := context.WithCancel(ctx)
		stream, err := client.StreamRateLimitQuotas(life)
		for i := uint64(0); err == nil && i < 6; i++ {
			used := uint64(0)
			if i > 0 {
				var r *rlqs.RateLimitQuotaResponse
				if r, err = stream.Recv(); err != nil {
					break
				}
				b := r.BucketAction[0].GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket()
				if used = uint64(b.GetMaxTokens()); used > 8 {
					used += 2 * uint64(b.TokensPerFill.Value) // in 1.5 s
				}
				assigned(int64(used))
			}
			err = stream.Send(&rlqs.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{
				{BucketId: &rlqs.BucketId{Bucket: map[string]string{"user": "a"}}, NumRequestsAllowed: used, NumRequestsDenied: 500},
			}})
		}
		hangUp() // or the service has: a busy machine may read too late
	}
}
