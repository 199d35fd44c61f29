package rls_test

import (
	"context"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

const quotas = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 500, quota: 1s}
  - key: path
    value: /api
    descriptors:
      - key: agent
        rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 600, quota: 2s}
  - key: window
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: free
    rate_limit: {unlimited: true}
  - key: banned
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: second, requests_per_unit: 10}
`

// quotaWorld is services over one store, in virtual time.
type quotaWorld struct {
	t        *testing.T
	store    store.Store
	limiters []*dipwell.Limiter
	services []*rls.Service
	quotas   []*rls.Quotas
	stop     chan struct{}
	late     time.Duration // at most, of messages in each direction
}

func newQuotaWorld(t *testing.T, processes int, yaml string) *quotaWorld {
	t.Helper()
	inner, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	w := &quotaWorld{t: t, store: inner, stop: make(chan struct{})}
	for range processes {
		l, err := dipwell.New(inner)
		if err != nil {
			t.Fatal(err)
		}
		s := rls.New(l, rls.Config{})
		w.limiters, w.services = append(w.limiters, l), append(w.services, s)
		w.quotas = append(w.quotas, rls.NewQuotas(s, w.stop))
	}
	w.use(yaml)
	return w
}

func (w *quotaWorld) use(yaml string) {
	w.t.Helper()
	for _, s := range w.services {
		rules, err := rls.Parse(rls.Defaults{}, rls.File{Name: "test.yaml", YAML: []byte(yaml)})
		if err == nil {
			err = s.Use(w.t.Context(), rules)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// pipe is a stream without a network. A message is late by a random time.
type pipe struct {
	grpc.ServerStream
	ctx     context.Context
	reports chan *rlqs.RateLimitQuotaUsageReports
	answers chan *rlqs.RateLimitQuotaResponse
}

func (p *pipe) Context() context.Context { return p.ctx }

func (p *pipe) Recv() (*rlqs.RateLimitQuotaUsageReports, error) {
	select {
	case r := <-p.reports:
		if r == nil {
			return nil, io.EOF
		}
		return r, nil
	case <-p.ctx.Done():
		return nil, status.FromContextError(p.ctx.Err()).Err()
	}
}

func (p *pipe) Send(r *rlqs.RateLimitQuotaResponse) error {
	select {
	case p.answers <- r:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// dial opens a stream to a process.
func (w *quotaWorld) dial(process int) (p *pipe, hangUp func() error) {
	ctx, cancel := context.WithCancel(w.t.Context())
	p = &pipe{ctx: ctx, reports: make(chan *rlqs.RateLimitQuotaUsageReports, 100), answers: make(chan *rlqs.RateLimitQuotaResponse, 100)}
	done := make(chan error, 1)
	go func() {
		done <- w.quotas[process].StreamRateLimitQuotas(p)
		cancel()
	}()
	return p, func() error { cancel(); return <-done }
}

// say sends a report.
func (p *pipe) say(id map[string]string, allowed, denied uint64) {
	p.reports <- &rlqs.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{
		{BucketId: &rlqs.BucketId{Bucket: id}, NumRequestsAllowed: allowed, NumRequestsDenied: denied, TimeElapsed: durationpb.New(time.Second)},
	}}
}

// next returns the next action.
func (p *pipe) next(t *testing.T) *rlqs.RateLimitQuotaResponse_BucketAction {
	t.Helper()
	select {
	case r := <-p.answers:
		return r.BucketAction[0]
	case <-p.ctx.Done():
		t.Fatal("the stream has ended")
	case <-time.After(time.Minute):
		t.Fatal("no answer in a minute")
	}
	return nil
}

// envoy is one bucket of an Envoy, as Envoy's global_client_impl.cc of 2025 treats it: the
// bucket of an assignment is full at first, an equal one is carried on, and its time is
// in whole seconds. Without an assignment all requests are denied.
type envoy struct {
	mu              sync.Mutex
	strategy        *typev3.RateLimitStrategy
	tokens          float64
	filled, ends    time.Time
	allowed, denied uint64
	pretended       uint64 // requests that each report says were denied, although none came
	grants          []limittest.Grant
	total           int
}

func (e *envoy) apply(a *rlqs.RateLimitQuotaResponse_BucketAction, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := a.GetQuotaAssignmentAction()
	if q == nil {
		e.strategy = nil
		return
	}
	e.fill(now)
	e.ends = now.Add(time.Duration(q.AssignmentTimeToLive.Seconds) * time.Second)
	b := q.RateLimitStrategy.GetTokenBucket()
	if old := e.strategy.GetTokenBucket(); b != nil && (old == nil || old.MaxTokens != b.MaxTokens ||
		old.TokensPerFill.Value != b.TokensPerFill.Value || old.FillInterval.Nanos != b.FillInterval.Nanos) {
		e.tokens, e.filled = float64(b.MaxTokens), now
	}
	e.strategy = q.RateLimitStrategy
}

func (e *envoy) fill(now time.Time) {
	if b := e.strategy.GetTokenBucket(); b != nil {
		rate := float64(b.TokensPerFill.Value) / float64(b.FillInterval.Seconds)
		e.tokens = min(float64(b.MaxTokens), e.tokens+rate*now.Sub(e.filled).Seconds())
		e.filled = now
	}
}

// request decides a request.
func (e *envoy) request(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.total++
	if !now.Before(e.ends) {
		e.strategy = nil
	}
	e.fill(now)
	switch s := e.strategy.GetStrategy().(type) {
	case *typev3.RateLimitStrategy_TokenBucket:
		if e.tokens >= 1 {
			e.tokens--
			e.allowed++
			e.grants = append(e.grants, limittest.Grant{Asked: now.UnixMicro(), Answered: now.UnixMicro()})
			return true
		}
	case *typev3.RateLimitStrategy_BlanketRule_:
		if s.BlanketRule == typev3.RateLimitStrategy_ALLOW_ALL {
			e.allowed++
			return true
		}
	}
	e.denied++
	return false
}

// usage returns what came since the last report.
func (e *envoy) usage() (allowed, denied uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	allowed, denied = e.allowed, e.denied+e.pretended
	e.allowed, e.denied = 0, 0
	return allowed, denied
}

// live lets an Envoy serve requests a second of a bucket until end, over a stream to a
// process that is opened anew lives times.
func (w *quotaWorld) live(e *envoy, process, lives int, id map[string]string, perSecond int, end time.Time) {
	for life := range lives {
		p, hangUp := w.dial(process)
		ends := time.Now().Add(time.Until(end) / time.Duration(lives-life))
		ctx, cancel := context.WithDeadline(w.t.Context(), ends)
		var wg sync.WaitGroup
		wg.Go(func() { // messages stay in order
			for {
				select {
				case r := <-p.answers:
					if w.late > 0 {
						time.Sleep(rand.N(w.late))
					}
					for _, a := range r.BucketAction {
						e.apply(a, time.Now())
					}
				case <-ctx.Done():
					return
				}
			}
		})
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				allowed, denied := e.usage()
				if i == 0 {
					denied++
				}
				if w.late > 0 {
					time.Sleep(rand.N(w.late))
				}
				p.say(id, allowed, denied)
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		})
		every := time.NewTicker(time.Second / time.Duration(perSecond))
		for ctx.Err() == nil {
			select {
			case <-every.C:
				e.request(time.Now())
			case <-ctx.Done():
			}
		}
		every.Stop()
		cancel()
		wg.Wait()
		_ = hangUp()
	}
}

// What several Envoys allow, over streams to two processes that break and are opened
// again, is never more than the burst and what comes back, though messages are late.
func TestQuotasKeepThePromise(t *testing.T) {
	for name, demand := range map[string]int{"below": 20, "at": 35, "above": 150} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newQuotaWorld(t, 2, quotas)
				w.late = 200 * time.Millisecond
				const envoys, length = 4, 40 * time.Second
				end := time.Now().Add(length)
				es := make([]*envoy, envoys)
				var wg sync.WaitGroup
				for i := range es {
					es[i] = &envoy{}
					wg.Go(func() { w.live(es[i], i%2, 1+i, map[string]string{"user": "a"}, demand, end) })
				}
				wg.Wait()
				var grants []limittest.Grant
				total := 0
				for _, e := range es {
					grants, total = append(grants, e.grants...), total+e.total
				}
				if most := limittest.MostGranted(grants, 100e-6); most > 500 {
					t.Errorf("%v above the rate; the burst is 500", most)
				}
				could := min(float64(total), 349+100*length.Seconds())
				t.Logf("%d of %d requests allowed, %.0f %% of what the limit has", len(grants), total, 100*float64(len(grants))/could)
				if float64(len(grants)) < 0.7*could {
					t.Errorf("only %d allowed of %.0f", len(grants), could)
				}
			})
		})
	}
}

// The same for many buckets on many streams, while the limits change to lower and back:
// nobody gets more of a bucket than the larger limit gives.
func TestQuotasOfManyBucketsKeepThePromise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuotaWorld(t, 2, quotas)
		w.late = 200 * time.Millisecond
		const buckets, envoys, length = 60, 3, 20 * time.Second
		end := time.Now().Add(length)
		es := make([]envoy, buckets*envoys)
		var wg sync.WaitGroup
		for i := range es {
			id := map[string]string{"user": strconv.Itoa(i / envoys)}
			wg.Go(func() { w.live(&es[i], i%2, 1+i%3, id, 60, end) })
		}
		for i := 0; time.Now().Before(end.Add(-5 * time.Second)); i++ {
			time.Sleep(3 * time.Second)
			yaml := quotas
			if i%2 == 0 {
				yaml = strings.Replace(quotas, "requests_per_unit: 100", "requests_per_unit: 60", 1)
				if yaml == quotas {
					t.Fatal("nothing to change")
				}
			}
			w.use(yaml)
		}
		wg.Wait()
		for b := range buckets {
			var grants []limittest.Grant
			for i := range envoys {
				grants = append(grants, es[b*envoys+i].grants...)
			}
			if most := limittest.MostGranted(grants, 100e-6); most > 500 {
				t.Errorf("bucket %d: %v above the rate; the burst is 500", b, most)
			}
			if len(grants) < 1000 {
				t.Errorf("bucket %d: only %d allowed", b, len(grants))
			}
		}
	})
}

// The same if they keep all that they have for the same instants, and use it then as
// fast as they can.
func TestQuotasAreNotStoredUp(t *testing.T) {
	for range 5 {
		synctest.Test(t, storeUp)
	}
}

func storeUp(t *testing.T) {
	w := newQuotaWorld(t, 2, quotas)
	w.late = 100 * time.Millisecond
	end := time.Now().Add(40 * time.Second)
	es := make([]*envoy, 4)
	var wg sync.WaitGroup
	for i := range es {
		es[i] = &envoy{pretended: 300}
		wg.Go(func() { w.live(es[i], i%2, 1, map[string]string{"user": "a"}, 1, end) })
	}
	wg.Go(func() {
		for time.Now().Before(end) {
			time.Sleep(rand.N(5 * time.Second))
			for range 200 { // for a second, more than there is
				for _, e := range es {
					for range 5 {
						e.request(time.Now())
					}
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	})
	wg.Wait()
	var grants []limittest.Grant
	for _, e := range es {
		grants = append(grants, e.grants...)
	}
	if most := limittest.MostGranted(grants, 100e-6); most > 500 {
		t.Errorf("%v above the rate; the burst is 500", most)
	} else {
		t.Logf("%v of 500", most)
	}
}

// What an Envoy has that does not report any more stays taken.
func TestQuotaOfDeadEnvoy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuotaWorld(t, 1, `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: token_bucket, burst: 100, quota: 1s}
`)
		p, hangUp := w.dial(0)
		p.say(map[string]string{"user": "a"}, 0, 1)
		n := int64(p.next(t).GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket().GetMaxTokens())
		_ = hangUp()
		time.Sleep(119 * time.Second) // the hold has expired
		l := w.limiters[0]
		if d, err := l.Take(t.Context(), "rls/d.user", "user=a", l.Limit("rls/d.user").Rule.Burst-n+2); err != nil || n < 5 || d.Allowed {
			t.Errorf("%d tokens taken after %d were assigned, %v", d.Granted, n, err)
		}
	})
}

// What an assignment does not use is given back.
func TestUnusedQuotaIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuotaWorld(t, 1, quotas)
		e := &envoy{}
		w.live(e, 0, 1, map[string]string{"user": "a"}, 80, time.Now().Add(30*time.Second))
		if share := float64(len(e.grants)) / float64(e.total); share < 0.97 {
			t.Errorf("%.0f %% of 80 requests a second are allowed, at 100 a second", 100*share)
		}
	})
}

// The actions for each kind of rule.
func TestQuotaActions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuotaWorld(t, 1, quotas)
		p, hangUp := w.dial(0)
		first := func(id map[string]string) *rlqs.RateLimitQuotaResponse_BucketAction {
			t.Helper()
			p.say(id, 0, 1)
			for {
				if a := p.next(t); maps.Equal(a.BucketId.Bucket, id) {
					return a
				}
			}
		}
		for _, id := range []map[string]string{{"nothing": "x"}, {"user": "a", "more": "b"}, {"path": "/other", "agent": "c"}, {"window": "x"}} {
			if a := first(id); a.GetAbandonAction() == nil {
				t.Errorf("%v: %v", id, a)
			}
		}
		if a := first(map[string]string{"free": "x"}).GetQuotaAssignmentAction(); a.GetRateLimitStrategy().GetBlanketRule() != typev3.RateLimitStrategy_ALLOW_ALL || a.AssignmentTimeToLive.AsDuration() != time.Second {
			t.Errorf("unlimited: %v", a)
		}
		if a := first(map[string]string{"banned": "x"}).GetQuotaAssignmentAction(); a.GetRateLimitStrategy().GetBlanketRule() != typev3.RateLimitStrategy_DENY_ALL {
			t.Errorf("none: %v", a)
		}
		if a := first(map[string]string{"agent": "x", "path": "/api"}).GetQuotaAssignmentAction(); a.GetRateLimitStrategy().GetTokenBucket() == nil || a.AssignmentTimeToLive.AsDuration() != 2*time.Second {
			t.Errorf("bucket: %v", a)
		}
		if holds, err := w.limiters[0].Holds(t.Context(), "rls/d.path_/api.agent", "path=/api,agent=x"); err != nil || len(holds) != 1 {
			t.Errorf("holds %v, %v", holds, err)
		}
		// In shadow mode all requests are allowed, and counted when they are reported.
		watched := map[string]string{"watched": "x"}
		if a := first(watched).GetQuotaAssignmentAction(); a.GetRateLimitStrategy().GetBlanketRule() != typev3.RateLimitStrategy_ALLOW_ALL {
			t.Errorf("shadow: %v", a)
		}
		p.say(watched, 7, 0)
		synctest.Wait()
		if d, err := w.limiters[0].Check(t.Context(), "rls/d.watched", "watched=x", 1); err != nil || d.Remaining != 3 {
			t.Errorf("shadow: %v remaining, %v", d.Remaining, err)
		}
		if err := hangUp(); status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
}

// A bucket without tokens is denied at the latest when its last assignment ends; one
// without requests is abandoned after a minute; requests that no assignment allowed are
// charged.
func TestQuotaLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuotaWorld(t, 1, quotas)
		id := map[string]string{"user": "a"}
		l := w.limiters[0]
		if _, err := l.Take(t.Context(), "rls/d.user", "user=a", 349); err != nil {
			t.Fatal(err)
		}
		p, hangUp := w.dial(0)
		p.say(id, 3000, 1)
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		p.say(id, 0, 1)
		synctest.Wait()
		if a := p.next(t).GetQuotaAssignmentAction(); a.GetRateLimitStrategy().GetBlanketRule() != typev3.RateLimitStrategy_DENY_ALL {
			t.Errorf("empty: %v", a)
		}
		time.Sleep(20 * time.Second) // the charged 3000 take 30 s
		synctest.Wait()
		for len(p.answers) > 0 {
			if a := p.next(t).GetQuotaAssignmentAction(); a.GetRateLimitStrategy().GetTokenBucket() != nil {
				t.Errorf("tokens of an overcharged bucket: %v", a)
			}
		}
		time.Sleep(15 * time.Second)
		p.say(id, 0, 0)
		abandoned := false
		for range 150 {
			time.Sleep(time.Second)
			synctest.Wait()
			for len(p.answers) > 0 {
				abandoned = p.next(t).GetAbandonAction() != nil
			}
			if abandoned {
				break
			}
			p.say(id, 0, 0)
			synctest.Wait()
		}
		if !abandoned {
			t.Error("never abandoned")
		}
		time.Sleep(10 * time.Second)
		if d, err := l.Check(t.Context(), "rls/d.user", "user=a", 1); err != nil || d.Remaining != d.Capacity {
			t.Errorf("%d of %d remain afterwards, %v", d.Remaining, d.Capacity, err)
		}
		if err := hangUp(); status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
}

// A changed definition decides the next assignment, one that is gone abandons, an
// override decides its key, and a service that stops ends its streams.
func TestQuotaChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuotaWorld(t, 1, quotas)
		id := map[string]string{"user": "a"}
		p, hangUp := w.dial(0)
		p.say(id, 0, 1)
		want := func(what string, is func(a *rlqs.RateLimitQuotaResponse_BucketAction) bool) {
			t.Helper()
			for range 20 {
				if is(p.next(t)) {
					return
				}
				p.say(id, 0, 1)
			}
			t.Errorf("never %s", what)
		}
		rule := func(r typev3.RateLimitStrategy_BlanketRule) func(a *rlqs.RateLimitQuotaResponse_BucketAction) bool {
			return func(a *rlqs.RateLimitQuotaResponse_BucketAction) bool {
				s, ok := a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetStrategy().(*typev3.RateLimitStrategy_BlanketRule_)
				return ok && s.BlanketRule == r
			}
		}
		bucket := func(a *rlqs.RateLimitQuotaResponse_BucketAction) bool {
			return a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket() != nil
		}
		want("assigned", bucket)
		l := w.limiters[0]
		set := func(o dipwell.Override) {
			t.Helper()
			o.Key = "user=a"
			if _, err := l.SetOverride(t.Context(), "rls/d.user", o); err != nil {
				t.Fatal(err)
			}
		}
		set(dipwell.Override{Rate: 10, Burst: 40})
		time.Sleep(3 * time.Second)
		most := uint32(0)
		want("smaller", func(a *rlqs.RateLimitQuotaResponse_BucketAction) bool {
			b := a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket()
			most = b.GetMaxTokens()
			return b != nil && most <= 40
		})
		for range 10 {
			a := p.next(t)
			if b := a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket(); b.GetMaxTokens() > 24 { // 40 less what comes back in 1.5 s
				t.Errorf("%v of a burst of 40 at 10 a second", b)
			}
			p.say(id, 100, 0)
		}
		if ended, err := l.EndOverride(t.Context(), "rls/d.user", "user=a"); !ended || err != nil {
			t.Error(ended, err)
		}
		w.use(`{domain: d, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 0}}]}`)
		want("denied", rule(typev3.RateLimitStrategy_DENY_ALL))
		w.use(`{domain: d, descriptors: [{key: user, rate_limit: {unlimited: true}}]}`)
		want("allowed", rule(typev3.RateLimitStrategy_ALLOW_ALL))
		w.use(quotas)
		want("assigned again", bucket)
		w.use(`{domain: d, descriptors: [{key: tenant, rate_limit: {unit: minute, requests_per_unit: 1}}]}`)
		want("abandoned", func(a *rlqs.RateLimitQuotaResponse_BucketAction) bool { return a.GetAbandonAction() != nil })
		close(w.stop)
		if err := hangUp(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
}

// Streams that break the protocol end with an error; there is a bound of buckets.
func TestQuotaBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuotaWorld(t, 1, quotas)
		for name, say := range map[string]func(p *pipe){
			"no domain": func(p *pipe) { p.reports <- &rlqs.RateLimitQuotaUsageReports{} },
			"another domain": func(p *pipe) {
				p.reports <- &rlqs.RateLimitQuotaUsageReports{Domain: "d"}
				p.reports <- &rlqs.RateLimitQuotaUsageReports{Domain: "e"}
			},
			"no id": func(p *pipe) { p.say(nil, 1, 0) },
			"long id": func(p *pipe) {
				p.say(map[string]string{"1": "", "2": "", "3": "", "4": "", "5": "", "6": "", "7": "", "8": "", "9": ""}, 1, 0)
			},
		} {
			p, hangUp := w.dial(0)
			say(p)
			<-p.ctx.Done()
			if err := hangUp(); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
		p, hangUp := w.dial(0)
		p.reports <- nil // the client ends the stream
		<-p.ctx.Done()
		if err := hangUp(); err != nil {
			t.Error(err)
		}
	})
}

// An Envoy never allows more of a bucket than it was made for.
func TestQuotaTokens(t *testing.T) {
	for _, quota := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second} {
		for n := int64(1); n < 1<<31; n += 1 + n/7 {
			s := rls.Tokens(n, quota, uint32(n))
			b := s.GetTokenBucket()
			if err := s.ValidateAll(); err != nil {
				t.Fatal(err)
			}
			rate := float64(b.TokensPerFill.Value) / float64(b.FillInterval.Seconds)
			if got := int64(math.Floor(float64(b.MaxTokens) + rate*(quota+500*time.Millisecond).Seconds())); got > n || got < n*4/5 {
				t.Errorf("%d tokens for %v: %d, %v", n, quota, got, b)
			}
			if float64(b.MaxTokens)/rate >= 180 {
				t.Errorf("%d tokens for %v: %.0f s to fill %v", n, quota, float64(b.MaxTokens)/rate, b)
			}
		}
	}
}
