package server

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// auth answers a proxy that asks whether to allow a request. Only limits with auth: true can be
// asked, because clients of a proxy may be able to reach this path too.
func (a *api) auth(w http.ResponseWriter, r *http.Request, q *query) error {
	err := q.completeAuth()
	if err == nil && q.ip && len(a.live.Load().TrustedProxies) == 0 {
		err = bad("key_ip", "needs trusted_proxies: without them every request has the proxy's own address")
	}
	if err != nil {
		return err
	}
	def := a.limiter.Limit(q.limit)
	if def == nil || !def.Auth {
		httplimit.Problem(w, http.StatusNotFound, "limit", fmt.Sprintf("there is no limit %q with auth: true", q.limit))
		return nil
	}
	key := dipwell.Shared
	switch keyed := q.key != "" || q.header != "" || q.ip; {
	case keyed && def.Shared:
		return bad("key", "limit "+def.Name+" is shared: its calls have no key")
	case !keyed && !def.Shared:
		return bad("key", "is missing: give key, key_header or key_ip")
	case keyed:
		if key, err = a.authKey(r, q); err != nil {
			return a.refuseKey(w, def, q, err)
		}
	}
	if q.ip && def.Paths && !def.Shared {
		key = dipwell.Key(key) // the key of an IPv6 address has a '/', which is escaped
	}
	var d dipwell.Decision
	start := time.Now()
	err = a.limiter.Do(r.Context(), &d, store.VerbTake, dipwell.Take{Limit: q.limit, Key: key, Cost: q.cost, Plan: q.plan, Floor: q.floor})
	a.metrics.observe(r.Context(), store.VerbTake, &d, err, time.Since(start))
	if f, ok := errors.AsType[*dipwell.FieldError](err); ok && f.Field == "key" && q.key == "" { // the header's value is no key of this limit, such as a path of one part
		return a.refuseKey(w, def, q, err)
	}
	if err != nil {
		return err
	}
	a.live.Load().Headers.Set(w.Header(), &d)
	if !d.Allowed {
		return refuse(w, &d, q.deny)
	}
	return allowed(w, &d)
}

// refuseKey answers a request whose key is unknown: it is at fault, so it must not pass.
func (a *api) refuseKey(w http.ResponseWriter, def *store.Definition, q *query, err error) error {
	a.metrics.keyless(def.Name, q.ip, err)
	if a.live.Load().Shadow {
		return allowed(w, &dipwell.Decision{Limit: def.Name, Allowed: true, Shadow: true, Cost: q.cost, Capacity: def.Rule.Burst, Source: store.SourceFallbackOpen})
	}
	httplimit.Problem(w, q.deny, "key", err.Error())
	return nil
}

// allowed writes a decision, with status 200 even if it refuses.
func allowed(w http.ResponseWriter, d *dipwell.Decision) error {
	return writeJSON(w, http.StatusOK, append(d.AppendMembers([]byte{'{'}), "}\n"...))
}

func (a *api) authKey(r *http.Request, q *query) (key string, err error) {
	switch {
	case q.ip:
		return a.clientAddress(r)
	case q.header != "":
		key, err = httplimit.Header(q.header)(r)
	default:
		key = q.key
	}
	if err == nil {
		err = wrongKey(key)
	}
	return key, err
}

func wrongKey(key string) error {
	if len(key) > store.MaxKey || !plainKey(key) {
		return bad("key", fmt.Sprintf("must be 1 to %d bytes of UTF-8 without NUL", store.MaxKey))
	}
	return nil
}

// clientAddress returns the key for the parameter key_ip. A trusted proxy must name
// the client's address, or all its clients would share the bucket of the proxy.
func (a *api) clientAddress(r *http.Request) (string, error) {
	l := a.live.Load()
	if front.Proxies(l.TrustedProxies).Sent(r.RemoteAddr) && strings.TrimSpace(strings.Join(r.Header["X-Forwarded-For"], "")) == "" {
		return "", bad("X-Forwarded-For", "is missing or empty: the trusted proxy did not send the client's address")
	}
	return l.clientIP(r)
}

// completeAuth sets the defaults of a query of /v1/auth, and checks it.
func (q *query) completeAuth() error {
	q.deny = cmp.Or(q.deny, http.StatusTooManyRequests)
	if !q.given["cost"] {
		q.cost = 1
	}
	switch {
	case q.given["key"] && wrongKey(q.key) != nil:
		return wrongKey(q.key)
	case !q.given["limit"]:
		return bad("limit", "is missing")
	case q.key != "" && q.header != "", q.key != "" && q.ip, q.header != "" && q.ip:
		return bad("key", "give one of key, key_header and key_ip")
	}
	return nil
}

// badHeaderName returns why a header field cannot be a key, or "".
func badHeaderName(name string) string {
	if name == "" {
		return "names no header field"
	}
	if !IsHeaderName(name) {
		return fmt.Sprintf("%q is not the name of a header field", name[:min(len(name), 64)])
	}
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Transfer-Encoding", "Trailer": // Go does not keep these in http.Request.Header
		return name + " cannot be a key; it says nothing about who asks"
	}
	return ""
}

func IsHeaderName(name string) bool { return httpguts.ValidHeaderFieldName(name) }
