package httpclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// Limit is a limit that requests take from before they are sent.
type Limit = httplimit.Limit

// Config configures a Transport. Times in a Config are at most 366 days.
type Config struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper

	// FailFast makes a request that would have to wait fail at once with a *LimitedError. By
	// default such a request waits, at most until its context's deadline.
	FailFast bool

	// MaxWait is how long a request waits in total, its retries included. Default: 1 minute.
	MaxWait time.Duration

	// MaxBlock is the longest time for which a service can delay requests. A longer wait,
	// such as until a reset in a day, is shortened to MaxBlock. Default of MaxBlock: 1 hour.
	MaxBlock time.Duration

	// MaxAttempts is how often a request is sent, 1 to 100, the first time included. Default: 4.
	MaxAttempts int

	// Backoff is the wait before the first retry if the service does not say
	// how long to wait. Backoff doubles with each retry, and up to half of it is
	// random. If the wait is computed from a reset, it is at least Backoff, doubled
	// with each retry; a Retry-After may be shorter. Default of Backoff: 1 second.
	Backoff time.Duration

	// Limiter decides the Limits. Limiter may be nil if there are no Limits. If
	// its store is shared, several processes share one budget.
	Limiter *dipwell.Limiter
	// Limits, at most 16, are taken from Limiter before each attempt, at one instant, all or
	// nothing. A limit or a plan that the Limiter does not have is an error of the request.
	// A limit with a Floor has no debt (dipwell.NoDebt). Default: none.
	//
	// For adaptive Limits each attempt is observed: how long it took until the header of
	// the response, and whether it succeeded. An attempt fails if there is no response,
	// or one with a status of 429 or of 500 and above. An attempt whose context the
	// caller cancels before the header is not observed.
	Limits []Limit

	// Tokens returns the cost of a request in quotas counted in tokens, such as
	// those of language models. Default: 1.
	Tokens func(*http.Request) int64

	// Budget returns a name for the budget that a request spends. Requests with the same
	// name share the limits that the transport reads. Default of Budget: one budget for
	// each host and value of Authorization, X-Api-Key and Api-Key.
	Budget func(*http.Request) string

	// MaxRemembered is how many hosts and routes are kept in memory, at least 2. Default: 4096.
	MaxRemembered int

	// OnWait, if set, is called before every wait and for every failure, for
	// logs and metrics. OnWait must not keep the request.
	OnWait func(*http.Request, *LimitedError)
}

const (
	defaultMaxWait       = time.Minute
	defaultMaxBlock      = time.Hour
	defaultMaxAttempts   = 4
	defaultBackoff       = time.Second
	defaultMaxRemembered = 4096

	maxAttempts = 100
	longest     = 366 * 24 * time.Hour // longest time of each setting, so that sums do not overflow
)

// Transport is an http.RoundTripper for clients of rate-limited services. It is safe for
// concurrent use. All requests of a Transport share the limits that it has read. New makes a
// Transport; any other fails each request. The Config of a Transport must not be changed.
type Transport struct {
	Config
	seed  maphash.Seed
	table table
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a transport for an http.Client. New returns an error if a field of
// c is out of range or if c.Limiter does not have one of c.Limits.
func New(c Config) (*Transport, error) {
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"MaxWait", &c.MaxWait, defaultMaxWait}, {"MaxBlock", &c.MaxBlock, defaultMaxBlock}, {"Backoff", &c.Backoff, defaultBackoff}} {
		if *d.value < 0 || *d.value > longest {
			return nil, fmt.Errorf("httpclient: %s: %v is not between 0 and %v", d.name, *d.value, longest)
		}
		*d.value = cmp.Or(*d.value, d.def)
	}
	if c.MaxAttempts < 0 || c.MaxAttempts > maxAttempts {
		return nil, fmt.Errorf("httpclient: MaxAttempts: %d is not between 1 and %d", c.MaxAttempts, maxAttempts)
	}
	if c.MaxRemembered < 0 {
		return nil, fmt.Errorf("httpclient: MaxRemembered: %d is negative", c.MaxRemembered)
	}
	if len(c.Limits) > store.MaxTakes {
		return nil, fmt.Errorf("httpclient: %d limits; at most %d", len(c.Limits), store.MaxTakes)
	}
	for _, l := range c.Limits {
		if err := front.Check(c.Limiter, l.Name, l.Choose != nil, l.Floor, front.Waits); err != nil {
			return nil, fmt.Errorf("httpclient: %w", err)
		}
	}
	c.MaxAttempts, c.MaxRemembered = cmp.Or(c.MaxAttempts, defaultMaxAttempts), cmp.Or(c.MaxRemembered, defaultMaxRemembered)
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	t := &Transport{Config: c, seed: maphash.MakeSeed()}
	t.table.entries.Most = max(1, c.MaxRemembered/2) // half, because there are two generations
	return t, nil
}

// LimitedError is the error of a request that could not succeed in time: it was
// not sent, or the service refused it and a retry would be too late. An http.Client wraps
// it in a *url.Error; find it with errors.As:
//
//	var limited *httpclient.LimitedError
//	if errors.As(err, &limited) && !limited.Until.IsZero() {
//		tryAgainAt(limited.Until)
//	}
type LimitedError struct {
	Host   string        // host of the request's URL, with its port if it has one
	Limit  string        // name of the quota, resource or limit that refused; may be ""
	Status int           // status of the service's refusal; 0 if the request was not sent
	Wait   time.Duration // how long to wait from now
	Until  time.Time     // the end of Wait by the local clock; zero if waiting does not help
	Err    error         // a *dipwell.RefusedError if one of Config.Limits refused
}

// Error returns a sentence with the host, the limit, the status and how long to wait.
func (e *LimitedError) Error() string {
	what := "rate limited by " + e.Host
	if e.Err != nil {
		return "request to " + e.Host + ": " + e.Err.Error()
	}
	if e.Limit != "" {
		what += " (" + e.Limit + ")"
	}
	if e.Status != 0 {
		what += fmt.Sprintf(", status %d", e.Status)
	}
	return fmt.Sprintf("%s: retry after %v", what, e.Wait.Round(time.Millisecond))
}

// Unwrap returns e.Err.
func (e *LimitedError) Unwrap() error { return e.Err }

// RoundTrip waits until the request may be sent, and sends it. If the service
// refuses it, RoundTrip sends it again after the time that the service gives, or
// after the backoff if it gives none and the request is idempotent. A request
// whose body cannot be read again is not retried.
//
// It returns the service's last response, which may be a refusal, or a *LimitedError if a
// wait would be longer than the context's deadline or MaxWait allows.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.table.entries.Most == 0 {
		closeBody(r)
		return nil, errors.New("httpclient: the Transport was not made by New")
	}
	left := t.MaxWait
	for attempt, sent := 1, r; ; attempt++ {
		var k flight
		resp, err := t.attempt(r, sent, &k, &left)
		if err != nil {
			return nil, err
		}
		a := parse(resp.Header, time.Now(), longest)
		retry, known, wait := t.learn(r, resp.StatusCode, &k, a, attempt)
		if !retry || attempt == t.MaxAttempts || !known && !idempotent(r) || hasBody(r) && r.GetBody == nil {
			return resp, nil
		}
		if !known || wait <= 0 {
			wait = t.backoff(attempt)
		}
		late := t.FailFast || wait > front.Left(r.Context(), left)
		if late && !known {
			return resp, nil // the response says more than a LimitedError without a time would
		}
		drain(resp)
		e := limited(r, nameOf(a), resp.StatusCode, wait)
		if t.onWait(r, e); late {
			return nil, e
		}
		if err := t.sleep(r.Context(), wait, &left, nil); err != nil {
			return nil, err
		}
		if sent, err = nextAttempt(r); err != nil {
			return nil, err
		}
	}
}

// attempt waits until the service is expected to allow a request, and then for Config.Limits,
// and sends it.
func (t *Transport) attempt(r, sent *http.Request, k *flight, left *time.Duration) (resp *http.Response, err error) {
	if err = t.enter(r, k, left); err != nil {
		closeBody(sent)
		return nil, err
	}
	asked := false
	defer func() { // in a defer, in case Base or a function of a limit panics
		if resp == nil || err != nil {
			t.table.mu.Lock()
			t.table.done(k, asked)
			t.table.mu.Unlock()
		}
	}()
	if k.adaptive, err = t.take(r, left); err != nil {
		closeBody(sent)
		return nil, err
	}
	asked = true
	began := time.Now()
	resp, err = t.Base.RoundTrip(sent)
	if took := time.Since(began); resp != nil || !errors.Is(r.Context().Err(), context.Canceled) {
		ok := resp != nil && resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusTooManyRequests
		front.Observe(t.Limiter, k.adaptive, took, ok)
	}
	return resp, err
}

// enter waits until the table admits the request, and counts it as in flight.
func (t *Transport) enter(r *http.Request, k *flight, left *time.Duration) error {
	if err := r.Context().Err(); err != nil {
		return err
	}
	if k.tokens = 1; t.Tokens != nil {
		k.tokens = max(0, t.Tokens(r))
	}
	id := t.key(r)
	for {
		now := time.Now()
		t.table.mu.Lock()
		t.find(r, id, k)
		p := t.table.admit(k, now)
		if p.wait <= 0 {
			t.table.mu.Unlock()
			return nil
		}
		may := front.Left(r.Context(), *left)
		if t.FailFast || !p.soft && p.wait > may || may <= 0 {
			t.table.mu.Unlock()
			e := limited(r, p.name, 0, p.wait)
			t.onWait(r, e)
			return e
		}
		var changed chan struct{}
		if p.soft {
			if p.entry.changed == nil {
				p.entry.changed = make(chan struct{})
			}
			changed = p.entry.changed
		}
		t.table.mu.Unlock()
		if !p.soft {
			t.onWait(r, limited(r, p.name, 0, p.wait))
		}
		if err := t.sleep(r.Context(), min(p.wait, may), left, changed); err != nil {
			return err
		}
	}
}

func (t *Transport) find(r *http.Request, id key, k *flight) {
	k.host, _ = t.table.entries.Get(id)
	if k.route = nil; k.host != nil && k.host.split {
		id.route = route(r)
		k.route, _ = t.table.entries.Get(id)
	}
}

// learn ends a request and updates its entries from the response. retry reports
// whether the request may be sent again, after wait if that is known.
func (t *Transport) learn(r *http.Request, status int, k *flight, a *advice, attempt int) (retry, known bool, wait time.Duration) {
	now := time.Now()
	wait, known = a.wait()
	retry, shared := classify(status, a, known)
	if retry && !known && a.github && status == http.StatusTooManyRequests {
		wait, known = time.Minute, true // GitHub's documentation asks for a minute
	}
	told := a.RetryAfter >= 0
	least := min(t.leastWait(attempt), t.MaxBlock)
	if wait = min(wait, t.MaxBlock); known && !told {
		wait = max(wait, least)
	}
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	t.table.done(k, len(a.quotas) == 0)
	if len(a.quotas) > 0 || shared && known {
		t.remember(r, k, a, now)
	}
	if shared && known {
		k.block(a, now, wait)
	}
	switch {
	case retry && told && shared:
		k.obey(now, wait)
	case retry && !told: // an earlier response, or one to another request meanwhile, may have said more
		if len(a.quotas) == 0 {
			t.find(r, t.key(r), k)
		}
		if d := k.delay(now); d > 0 {
			wait, known = max(wait, d, least), true
		}
	}
	return retry, known, wait
}

func (t *Transport) remember(r *http.Request, k *flight, a *advice, now time.Time) {
	id := t.key(r)
	k.host, k.route = t.table.add(id), nil
	e := k.host
	if a.Bucket != "" {
		k.host.split = true
		id.route = route(r)
		k.route = t.table.add(id)
		e = k.route
	}
	for _, q := range a.quotas {
		e.quota(q).update(q, now, t.MaxBlock)
	}
}

// route returns the route of a request, the first segment of its path. At GitHub, requests
// of one route have the same limit.
func route(r *http.Request) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v3"), "/"), "/")
	return name
}

// CloseIdleConnections closes the idle connections of Base, if it has such a
// method. http.Client.CloseIdleConnections calls it.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.Base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) take(r *http.Request, left *time.Duration) (adaptive []string, err error) {
	var buf [1]dipwell.Take
	takes, err := front.AskAll(buf[:0], t.Limits, func(l *Limit) (dipwell.Take, error) {
		return front.Ask(r, l.Name, l.Floor, l.Choose, l.Plan, l.Key, l.Cost)
	})
	if err != nil || len(takes) == 0 {
		return nil, err
	}
	bound := max(*left, 0)
	if t.FailFast {
		bound = 0
	}
	var d dipwell.Decision
	start := time.Now()
	err = t.Limiter.DoWait(r.Context(), &d, takes, bound)
	if *left -= time.Since(start); err != nil {
		if r.Context().Err() != nil {
			return nil, r.Context().Err()
		}
		return nil, fmt.Errorf("httpclient: %w", err)
	}
	if d.Allowed {
		return front.Adaptive(&d), nil
	}
	e := limited(r, d.Limit, 0, d.RetryAfter)
	e.Err = d.Err()
	if d.Never {
		e.Wait, e.Until = 0, time.Time{}
	}
	t.onWait(r, e)
	return nil, e
}

func (t *Transport) key(r *http.Request) key {
	if t.Budget != nil {
		return key{host: t.Budget(r)}
	}
	k := key{host: r.URL.Host}
	for _, name := range [...]string{"Authorization", "X-Api-Key", "Api-Key"} {
		if v := r.Header[name]; len(v) > 0 {
			k.cred = k.cred*31 + maphash.String(t.seed, v[0])
		}
	}
	return k
}

// sleep waits until changed is closed or, if it is nil, for wait and a random part of up to a
// tenth more, so that clients with the same wait do not all return at once.
func (t *Transport) sleep(ctx context.Context, wait time.Duration, left *time.Duration, changed <-chan struct{}) error {
	if changed == nil {
		spread := min(wait/10, time.Second, max(0, front.Left(ctx, *left)-wait)/2)
		wait += rand.N(spread + 1)
	}
	start := time.Now()
	var err error
	select {
	case <-time.After(wait):
	case <-changed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	*left -= time.Since(start)
	return err
}

// leastWait returns Backoff, doubled with each attempt, up to MaxWait.
func (t *Transport) leastWait(attempt int) time.Duration {
	d := t.Backoff
	for range attempt - 1 {
		if d *= 2; d > t.MaxWait {
			return t.MaxWait
		}
	}
	return d
}

func (t *Transport) backoff(attempt int) time.Duration {
	d := t.leastWait(attempt)
	return d/2 + rand.N(d/2+1)
}

func (t *Transport) onWait(r *http.Request, e *LimitedError) {
	if t.OnWait != nil {
		t.OnWait(r, e)
	}
}

func limited(r *http.Request, limit string, status int, wait time.Duration) *LimitedError {
	return &LimitedError{Host: r.URL.Host, Limit: limit, Status: status, Wait: wait, Until: time.Now().Add(wait)}
}

// nameOf returns the name of what refused: the service's bucket, or the quota that is used up.
func nameOf(a *advice) string {
	if a.Bucket != "" {
		return a.Bucket
	}
	for _, q := range a.quotas {
		if q.Remaining == 0 {
			return q.Name
		}
	}
	return ""
}

const statusOverloaded = 529 // Anthropic's

// classify reports whether a response may be retried, and whether its wait is
// shared by other requests. The wait of a 503 is not shared, since other paths may work.
func classify(status int, a *advice, known bool) (retry, shared bool) {
	switch status {
	case http.StatusTooManyRequests:
		return true, true
	case http.StatusServiceUnavailable, statusOverloaded:
		return a.RetryAfter >= 0, false
	case http.StatusForbidden: // GitHub and some others refuse with this status
		limited := a.RetryAfter >= 0 || a.github && known
		return limited, limited
	}
	return false, false
}

func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return len(r.Header["Idempotency-Key"]) > 0 || len(r.Header["X-Idempotency-Key"]) > 0
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

func nextAttempt(r *http.Request) (*http.Request, error) {
	next := r.WithContext(r.Context()) // a copy: a RoundTripper must not change its request
	if !hasBody(r) {
		return next, nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, fmt.Errorf("httpclient: body for another attempt: %w", err)
	}
	next.Body = body
	return next, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

// A refusal's body is read so that its connection can be reused, up to these
// bounds. Beyond them the connection is closed.
const (
	maxDrain     = 64 << 10
	maxDrainTime = time.Second
)

func drain(resp *http.Response) {
	slow := time.AfterFunc(maxDrainTime, func() { resp.Body.Close() })
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrain)) // after an error the next attempt opens another connection
	slow.Stop()
	_ = resp.Body.Close()
}
