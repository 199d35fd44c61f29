package rls

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds of the RateLimitQuotaService. A bucket costs a goroutine, and a few calls of the
// store in each of its assignments.
const (
	maxQuotaStreams  = 1000
	maxQuotaBuckets  = 20000 // of all streams
	maxStreamBuckets = 2000  // of a stream
	maxBucketEntries = 8     // in a bucket id; they are matched in any order
	maxQuotaCalls    = 256   // calls of the store in flight
)

// Quotas is Envoy's RateLimitQuotaService (RLQS) with the rules of a Service. For each
// bucket that an Envoy reports, it takes tokens in advance, as holds, and assigns them to
// that Envoy for a time. Only rules that have a quota are assigned.
type Quotas struct {
	rlqs.UnimplementedRateLimitQuotaServiceServer
	service *Service
	stop    <-chan struct{} // when closed, all streams end
	calls   chan struct{}   // an entry for each call of the store in flight

	streams, buckets                                      atomic.Int64
	assigned, returned, lost, excess, idle, unknown, full atomic.Uint64
}

var _ rlqs.RateLimitQuotaServiceServer = (*Quotas)(nil)

// NewQuotas returns the RateLimitQuotaService of s. All streams end when stop is closed;
// nil means never.
func NewQuotas(s *Service, stop <-chan struct{}) *Quotas {
	return &Quotas{service: s, stop: stop, calls: make(chan struct{}, maxQuotaCalls)}
}

// A quotaStream is the stream of one Envoy.
type quotaStream struct {
	*Quotas
	grpc.BidiStreamingServer[rlqs.RateLimitQuotaUsageReports, rlqs.RateLimitQuotaResponse]
	domain string
	fail   context.CancelCauseFunc // ends the stream

	sending sync.Mutex
	running sync.WaitGroup
	mu      sync.Mutex
	buckets map[string]*quotaBucket // by key, the entries of which are in order of name
}

// StreamRateLimitQuotas implements Envoy's RateLimitQuotaService.
func (q *Quotas) StreamRateLimitQuotas(stream grpc.BidiStreamingServer[rlqs.RateLimitQuotaUsageReports, rlqs.RateLimitQuotaResponse]) error {
	defer q.streams.Add(-1)
	if q.streams.Add(1) > maxQuotaStreams {
		return status.Errorf(codes.ResourceExhausted, "more than %d streams", maxQuotaStreams)
	}
	ctx, fail := context.WithCancelCause(stream.Context())
	s := &quotaStream{Quotas: q, BidiStreamingServer: stream, fail: fail, buckets: map[string]*quotaBucket{}}
	defer s.running.Wait()
	defer fail(nil)
	reports := make(chan *rlqs.RateLimitQuotaUsageReports)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil { // also after this call has returned
				fail(err)
				return
			}
			select {
			case reports <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case r := <-reports:
			if err := s.report(ctx, r); err != nil {
				return err
			}
		case <-q.stop:
			return status.Error(codes.Unavailable, "stopping")
		case <-ctx.Done():
			err := context.Cause(ctx)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if status.Code(err) == codes.Unknown {
				err = status.FromContextError(err).Err()
			}
			return err
		}
	}
}

// report records the usage that an Envoy reports. The first report of a bucket also
// subscribes the Envoy to its assignments.
func (s *quotaStream) report(ctx context.Context, r *rlqs.RateLimitQuotaUsageReports) error {
	switch {
	case r.GetDomain() == "" && s.domain == "":
		return status.Error(codes.InvalidArgument, "domain: is empty in the first report")
	case s.domain == "":
		s.domain = r.GetDomain()
	case r.GetDomain() != "" && r.GetDomain() != s.domain:
		return status.Errorf(codes.InvalidArgument, "domain: is %q after %q on the same stream", r.GetDomain(), s.domain)
	}
	now := time.Now()
	for _, u := range r.GetBucketQuotaUsages() {
		id := u.GetBucketId().GetBucket()
		if len(id) == 0 || len(id) > maxBucketEntries {
			return status.Errorf(codes.InvalidArgument, "bucket_id: has %d entries; from 1 to %d", len(id), maxBucketEntries)
		}
		b := s.bucket(ctx, id)
		if b == nil {
			s.full.Add(1)
			if err := s.abandon(u.GetBucketId()); err != nil {
				return err
			}
			continue
		}
		b.report(u, now)
	}
	return nil
}

// bucket returns the bucket with an id, and makes it if it is new. It returns nil if
// there are too many.
func (s *quotaStream) bucket(ctx context.Context, id map[string]string) *quotaBucket {
	var key []byte
	for _, name := range slices.Sorted(maps.Keys(id)) {
		key = appendEntry(key, name, id[name])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.buckets[string(key)]; b != nil {
		return b
	}
	if len(s.buckets) >= maxStreamBuckets {
		return nil
	}
	if s.Quotas.buckets.Add(1) > maxQuotaBuckets {
		s.Quotas.buckets.Add(-1)
		return nil
	}
	b := &quotaBucket{stream: s, id: &rlqs.BucketId{Bucket: id}, name: string(key), wake: make(chan struct{}, 1)}
	s.buckets[b.name] = b
	s.running.Go(func() { b.run(ctx) })
	return b
}

// forget removes a bucket.
func (s *quotaStream) forget(b *quotaBucket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.buckets, b.name)
	s.Quotas.buckets.Add(-1)
}

// abandon tells the Envoy to forget a bucket until its next request. The behavior that
// the Envoy is configured with for buckets without an assignment then applies.
func (s *quotaStream) abandon(id *rlqs.BucketId) error {
	return s.send(&rlqs.RateLimitQuotaResponse_BucketAction{BucketId: id,
		BucketAction: &rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction_{AbandonAction: &rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction{}}})
}

func (s *quotaStream) send(action *rlqs.RateLimitQuotaResponse_BucketAction) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.Send(&rlqs.RateLimitQuotaResponse{BucketAction: []*rlqs.RateLimitQuotaResponse_BucketAction{action}})
}

// rule returns the rule and the key for a bucket id. The entries of an id have no order,
// so the rule is that of the first descriptor that has all of them; at each level,
// descriptors are tried in order of name. If there is none, the ask has no rule.
func (s *quotaStream) rule(ctx context.Context, rules *Rules, id map[string]string) (a ask, err error) {
	d := rules.domains[s.domain]
	if d == nil {
		return a, nil
	}
	entries := make([]*common.RateLimitDescriptor_Entry, 0, len(id))
	for _, name := range slices.Sorted(maps.Keys(id)) {
		entries = append(entries, &common.RateLimitDescriptor_Entry{Key: name, Value: id[name]})
	}
	if entries = d.order(entries); entries == nil {
		return a, nil
	}
	a.desc = &common.RateLimitDescriptor{Entries: entries}
	if err = s.service.find(ctx, d, &a); err != nil {
		return ask{}, fmt.Errorf("bucket %v: %w", id, err)
	}
	return a, nil
}

// order returns the entries in an order for which there is a rule below n, or nil.
func (n *node) order(entries []*common.RateLimitDescriptor_Entry) []*common.RateLimitDescriptor_Entry {
	if len(entries) == 0 && n.rule != nil {
		return []*common.RateLimitDescriptor_Entry{}
	}
	for i, e := range entries {
		if next, _ := n.find(e.Key, e.Value); next != nil {
			if rest := next.order(slices.Concat(entries[:i], entries[i+1:])); rest != nil {
				return append([]*common.RateLimitDescriptor_Entry{e}, rest...)
			}
		}
	}
	return nil
}

// call waits until a call of the store may begin. The caller calls end after it.
func (q *Quotas) call() (end func()) {
	q.calls <- struct{}{}
	return func() { <-q.calls }
}

var (
	descStreams    = prometheus.NewDesc("dipwell_rlqs_streams", "Streams of Envoys that ask for quota assignments.", nil, nil)
	descBuckets    = prometheus.NewDesc("dipwell_rlqs_buckets", "Buckets of all streams that have quota assignments.", nil, nil)
	descAssigned   = prometheus.NewDesc("dipwell_rlqs_tokens_assigned_total", "Tokens that were taken for quota assignments.", nil, nil)
	descReturned   = prometheus.NewDesc("dipwell_rlqs_tokens_returned_total", "Tokens of quota assignments that were not used, and given back.", nil, nil)
	descLost       = prometheus.NewDesc("dipwell_rlqs_tokens_lost_total", "Tokens of quota assignments that could not be given back, because the store did not answer.", nil, nil)
	descUnassigned = prometheus.NewDesc("dipwell_rlqs_requests_without_assignment_total", "Requests that Envoys allowed without an assigned token, and that were charged afterwards.", nil, nil)
	descAbandoned  = prometheus.NewDesc("dipwell_rlqs_abandoned_total", "Buckets that Envoys were told to abandon, by reason: idle, unknown (no rule with a quota) or full (too many buckets).", []string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (q *Quotas) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(q, ch) }

// Collect implements prometheus.Collector.
func (q *Quotas) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descStreams, prometheus.GaugeValue, float64(q.streams.Load()))
	ch <- prometheus.MustNewConstMetric(descBuckets, prometheus.GaugeValue, float64(q.buckets.Load()))
	counter := func(d *prometheus.Desc, n *atomic.Uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n.Load()), labels...)
	}
	counter(descAssigned, &q.assigned)
	counter(descReturned, &q.returned)
	counter(descLost, &q.lost)
	counter(descUnassigned, &q.excess)
	counter(descAbandoned, &q.idle, "idle")
	counter(descAbandoned, &q.unknown, "unknown")
	counter(descAbandoned, &q.full, "full")
}
