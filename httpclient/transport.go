package httpclient

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/pace"
	"github.com/dipwell/dipwell/store"
)

// Limit is one limit that outgoing requests are held to, as httplimit has it.
type Limit = httplimit.Limit

// Config says how a Transport waits and what it believes. A zero field means
// the default named in its comment.
type Config struct {
	Base http.RoundTripper // default http.DefaultTransport

	FailFast    bool          // a request that would have to wait fails at once; default: it waits, until its deadline at most
	MaxWait     time.Duration // the longest a request waits in all, its retries included; default 1 minute
	MaxBlock    time.Duration // the longest time a service is believed; one that says more is asked again after this; default 1 hour
	MaxAttempts int           // the first included; 1 never tries again; default 4, at most 100
	Backoff     time.Duration // the first wait where the service does not say how long, doubled each time, up to half of it random; default 1 s

	// Limiter and Limits hold requests to limits of one's own, all or nothing,
	// each attempt again. On a shared store several processes share one budget.
	Limiter *dipwell.Limiter
	Limits  []Limit // at most 16

	Spread        bool                       // what is left is spread over the time until the reset; default: it is spent as it comes
	Tokens        func(*http.Request) int64  // what a request will cost of quotas counted in tokens; default 1
	Budget        func(*http.Request) string // whose budget a request spends; default: the host's, for the credentials in Authorization, X-Api-Key and Api-Key
	MaxRemembered int                        // hosts, buckets and routes remembered; default 4096

	// OnWait sees every wait before it begins and every failure, for logs and
	// metrics. It must not keep the request. Default: nobody.
	OnWait func(*http.Request, *LimitedError)
}

const (
	defaultMaxWait       = time.Minute
	defaultMaxBlock      = time.Hour
	defaultMaxAttempts   = 4
	defaultBackoff       = time.Second
	defaultMaxRemembered = 4096

	maxAttempts = 100
	longest     = 366 * 24 * time.Hour // of any setting, so that no sum overflows
)

// Transport is an http.RoundTripper for callers of limited services. It is safe
// for concurrent use, and shares what it learns among all its requests.
type Transport struct {
	Config
	seed  maphash.Seed
	table table
}

var _ http.RoundTripper = (*Transport)(nil)

// New returns a transport for an http.Client.
func New(c Config) (*Transport, error) {
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"MaxWait", &c.MaxWait, defaultMaxWait}, {"MaxBlock", &c.MaxBlock, defaultMaxBlock}, {"Backoff", &c.Backoff, defaultBackoff}} {
		if *d.value < 0 || *d.value > longest {
			return nil, fmt.Errorf("httpclient: %s: %v is not between 0 and %v", d.name, *d.value, longest)
		}
		if *d.value == 0 {
			*d.value = d.def
		}
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
		if c.Limiter == nil {
			return nil, fmt.Errorf("httpclient: limit %s without a limiter", l.Name)
		}
		if c.Limiter.Limit(l.Name) == nil {
			return nil, fmt.Errorf("httpclient: %w %q", dipwell.ErrUnknownLimit, l.Name)
		}
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = defaultMaxAttempts
	}
	if c.MaxRemembered == 0 {
		c.MaxRemembered = defaultMaxRemembered
	}
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	return &Transport{Config: c, seed: maphash.MakeSeed(), table: table{max: c.MaxRemembered, spread: c.Spread}}, nil
}

// LimitedError is a request that was not granted in the time it had: it was not
// sent (Status 0), or the service refused it and a retry would come too late.
type LimitedError struct {
	Host   string
	Limit  string        // name of the quota or limit, where it has one
	Status int           // of the service's refusal; 0: the request was not sent
	Wait   time.Duration // how long to wait, counted from the error
	Until  time.Time     // the same as an instant of the local clock; zero: no wait will help, or nobody knows
	Err    error         // for limits of one's own: a *dipwell.RefusedError
}

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

// Is makes a LimitedError a dipwell.ErrRefused.
func (e *LimitedError) Is(target error) bool { return target == dipwell.ErrRefused }

func (e *LimitedError) Unwrap() error { return e.Err }

// RoundTrip sends a request when it may be sent, and again when the service
// refused it, said when to come back, and the request can be repeated. The last
// answer of the service is returned as it is; a *LimitedError says that no
// answer could be had in time.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	left := t.MaxWait
	for attempt, sent := 1, r; ; attempt++ {
		k, err := t.admit(r, &left)
		if err != nil {
			closeBody(sent)
			return nil, err
		}
		resp, err := t.Base.RoundTrip(sent)
		if err != nil {
			t.giveBack(&k, true)
			return nil, err
		}
		var a Advice
		retry, told, wait := t.learn(r, resp, &k, &a)
		if !retry || attempt == t.MaxAttempts || !told && !idempotent(r) || !replayable(r) {
			return resp, nil
		}
		if !told || wait <= 0 {
			wait = t.backoff(attempt)
		}
		e := limited(r, nameOf(&a), resp.StatusCode, wait)
		if t.FailFast || wait > pace.Left(r.Context(), left) {
			if !told {
				return resp, nil // there is no time to tell
			}
			drain(resp)
			t.onWait(r, e)
			return nil, e
		}
		drain(resp)
		t.onWait(r, e)
		if err := t.sleep(r.Context(), wait, &left, nil); err != nil {
			return nil, err
		}
		if sent, err = again(r); err != nil {
			return nil, err
		}
	}
}

// admit waits until what is known of the service lets a request through, and
// then for the limits of one's own.
func (t *Transport) admit(r *http.Request, left *time.Duration) (k ticket, err error) {
	if err := t.enter(r, &k, left); err != nil {
		return k, err
	}
	if len(t.Limits) == 0 {
		return k, nil
	}
	if err := t.take(r, left); err != nil {
		t.giveBack(&k, false)
		return k, err
	}
	return k, nil
}

func (t *Transport) enter(r *http.Request, k *ticket, left *time.Duration) error {
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
		t.find(r, id, k, now)
		p := t.table.admit(k, now)
		if p.wait <= 0 {
			t.table.mu.Unlock()
			return nil
		}
		may := pace.Left(r.Context(), *left)
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
		p.entry.waiting++
		t.table.mu.Unlock()
		if !p.soft {
			t.onWait(r, limited(r, p.name, 0, p.wait))
		}
		err := t.sleep(r.Context(), min(p.wait, may), left, changed)
		t.table.mu.Lock()
		p.entry.waiting--
		t.table.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// find fills in the entries that a request takes from.
func (t *Transport) find(r *http.Request, id key, k *ticket, now time.Time) {
	k.host, k.bucket = t.table.get(id, now), nil
	if k.host == nil || k.host.split == 0 {
		return
	}
	id.kind = 'r'
	id.name, _ = route(k.host.split, r)
	if leads := t.table.get(id, now); leads != nil {
		if leads.target.gone { // and may have been learned again, by another route
			id.kind, id.name = 'b', leads.bucket
			e := t.table.get(id, now)
			if e == nil {
				return
			}
			leads.target = e
		}
		leads.target.used = now
		k.bucket = leads.target
	}
}

// learn gives a request's place back and takes over what the response says.
func (t *Transport) learn(r *http.Request, resp *http.Response, k *ticket, a *Advice) (retry, told bool, wait time.Duration) {
	now := time.Now()
	Parse(a, resp.Header, now, t.MaxBlock)
	wait, told = a.Wait()
	retry, shared := verdict(resp.StatusCode, a, told)
	if retry && !told && a.github && resp.StatusCode == http.StatusTooManyRequests {
		wait, told = min(time.Minute, t.MaxBlock), true // what GitHub asks for where it says nothing
	}
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	t.table.done(k, a.n == 0)
	if a.n == 0 && (!shared || !told) {
		return
	}
	id := t.key(r)
	host := t.table.add(id, now)
	if host == nil {
		return
	}
	e := host
	if a.Bucket != "" && len(a.Bucket) <= maxBucket {
		e = t.bucket(r, host, id, a, now)
	}
	if e != nil {
		e.learn(a, now)
	}
	if shared && told {
		if e == nil || a.Global {
			e = host
		}
		e.block(now, wait, nameOf(a))
	}
	return
}

// maxBucket bounds the name of a bucket; real ones have 32 bytes.
const maxBucket = 256

// bucket returns the entry of the response's bucket, and remembers that the
// request's route leads to it.
func (t *Transport) bucket(r *http.Request, host *entry, id key, a *Advice, now time.Time) *entry {
	host.split = splitResource
	if a.discord {
		host.split = splitMajor
	}
	name, major := route(host.split, r)
	at := id
	at.kind, at.name = 'r', name
	leads := t.table.get(at, now)
	if leads != nil && !leads.target.gone && leads.name == a.Bucket {
		leads.target.used = now
		return leads.target
	}
	full := a.Bucket + "\x00" + major
	b := id
	b.kind, b.name = 'b', full
	e := t.table.add(b, now)
	if e == nil {
		return nil
	}
	e.waiting++ // it must not make room for its own route
	if leads = t.table.add(at, now); leads != nil {
		leads.name, leads.bucket, leads.target = full[:len(a.Bucket)], full, e
	}
	e.waiting--
	return e
}

// CloseIdleConnections closes those of Base, for http.Client.CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.Base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// Remembered is the number of hosts, buckets and routes that are remembered now.
func (t *Transport) Remembered() int {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	return len(t.table.entries)
}

func (t *Transport) giveBack(k *ticket, charged bool) {
	t.table.mu.Lock()
	t.table.done(k, charged)
	t.table.mu.Unlock()
}

// take takes from the limits of one's own.
func (t *Transport) take(r *http.Request, left *time.Duration) error {
	var buf [1]dipwell.Take
	takes := buf[:0]
	for i := range t.Limits {
		take, err := of(&t.Limits[i], r)
		if err != nil {
			return err
		}
		takes = append(takes, take)
	}
	bound := max(*left, 0)
	if t.FailFast {
		bound = 0
	}
	var d dipwell.Decision
	start := time.Now()
	err := pace.Wait(r.Context(), t.Limiter, &d, takes, bound)
	if *left -= time.Since(start); err != nil {
		if r.Context().Err() != nil {
			return r.Context().Err()
		}
		return fmt.Errorf("httpclient: %w", err)
	}
	if d.Allowed {
		return nil
	}
	e := limited(r, d.Limit, 0, d.RetryAfter)
	e.Err = d.Err()
	if d.Never {
		e.Wait, e.Until = 0, time.Time{}
	}
	t.onWait(r, e)
	return e
}

// of is what a request takes from a limit.
func of(l *Limit, r *http.Request) (take dipwell.Take, err error) {
	take = dipwell.Take{Limit: l.Name, Key: dipwell.Shared, Cost: 1}
	if l.Key != nil {
		if take.Key, err = l.Key(r); err != nil {
			return take, err
		}
		if take.Key == dipwell.Shared { // only the limit's own configuration says that
			return take, &dipwell.FieldError{Field: "key", Reason: "has a NUL byte"}
		}
	}
	if l.Cost != nil {
		take.Cost, err = l.Cost(r)
	}
	return take, err
}

// key tells whose budget a request spends.
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

// sleep waits a little longer than told, so that those who were told the same
// do not all come at once; or until changed.
func (t *Transport) sleep(ctx context.Context, wait time.Duration, left *time.Duration, changed <-chan struct{}) error {
	if changed == nil {
		spread := min(wait/10, time.Second, max(0, pace.Left(ctx, *left)-wait)/2)
		wait += rand.N(spread + 1)
	}
	start := time.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	*left -= time.Since(start)
	return err
}

func (t *Transport) backoff(attempt int) time.Duration {
	d := t.Backoff
	for range attempt - 1 {
		if d *= 2; d > t.MaxWait {
			d = t.MaxWait
			break
		}
	}
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

// nameOf names what refused: the bucket, or the quota that is used up.
func nameOf(a *Advice) string {
	if a.Bucket != "" {
		return a.Bucket
	}
	for _, q := range a.Quotas() {
		if q.Remaining == 0 {
			return q.Name
		}
	}
	return ""
}

const statusOverloaded = 529 // Anthropic's

// verdict reports whether a response may be retried, and whether its wait is
// for everybody. A 503 speaks for its own request: other paths may work.
func verdict(status int, a *Advice, told bool) (retry, shared bool) {
	switch status {
	case http.StatusTooManyRequests:
		return true, true
	case http.StatusServiceUnavailable, statusOverloaded:
		told = a.RetryAfter >= 0
		return told, false
	case http.StatusForbidden: // GitHub's refusals, and of some others
		limited := a.RetryAfter >= 0 || a.github && told
		return limited, limited
	}
	return false, false
}

// idempotent reports whether a request may be repeated though nobody said so.
func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return len(r.Header["Idempotency-Key"]) > 0 || len(r.Header["X-Idempotency-Key"]) > 0
}

// replayable reports whether the body can be had again.
func replayable(r *http.Request) bool {
	return r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
}

// again returns the request for another attempt, with a fresh body.
func again(r *http.Request) (*http.Request, error) {
	next := r.WithContext(r.Context()) // a copy: a RoundTripper changes no request
	if r.Body == nil || r.Body == http.NoBody {
		return next, nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, fmt.Errorf("httpclient: the body for another attempt: %w", err)
	}
	next.Body = body
	return next, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

// A refusal's body is read so that its connection can be used again: this much,
// for this long. One that is longer or slower costs the connection.
const (
	maxDrain     = 64 << 10
	maxDrainTime = time.Second
)

func drain(resp *http.Response) {
	slow := time.AfterFunc(maxDrainTime, func() { resp.Body.Close() })
	_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrain))
	slow.Stop()
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return // the connection is gone; the next attempt opens another
	}
}
