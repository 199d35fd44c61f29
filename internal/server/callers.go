package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dipwell/dipwell/httplimit"
)

// A Role says what a caller may do. For a call, it is the role that its caller must have.
type Role uint8

// Roles. The roles Use and those that follow ReadLimits are roles of callers.
const (
	_          Role = iota // nobody may make the call
	Anybody                // the call needs no token
	Proxied                // the call cannot carry a token: a proxy asks on behalf of its client
	Known                  // any caller may make the call
	Use                    // may take, hold, wait and observe
	ReadLimits             // as Read, but without callers anybody may make the call
	Read                   // may read limits, keys and the audit, and not use them
	Support                // may also set overrides, refund and reset
	Admin                  // may also define limits
)

var roleNames = [...]string{Use: "use", ReadLimits: "read", Read: "read", Support: "support", Admin: "admin"}

func (r Role) String() string { return roleNames[r] }

// ParseRole returns the caller's role with a given name, or 0 if there is none.
func ParseRole(name string) Role {
	for _, r := range [...]Role{Use, Read, Support, Admin} {
		if r.String() == name {
			return r
		}
	}
	return 0
}

// may reports whether a caller of role r may make a call that needs a role.
func (r Role) may(needs Role) bool {
	switch needs {
	case 0:
		return false
	case Use:
		return r == Use || r >= Support
	case ReadLimits:
		return r >= Read
	}
	return r >= needs
}

// A Caller has a token with which it calls the service.
type Caller struct {
	Name   string
	Role   Role
	Limits []string // limits that the caller may name; nil: all
	Token  [sha256.Size]byte
}

// AdminCaller is the name of the caller that has the admin token.
const AdminCaller = "admin-token"

// caller returns the caller whose token is in the only value of Authorization, or nil. How
// long that takes tells nothing about the tokens, because a digest is looked up.
func (l *live) caller(authorization []string) *Caller {
	if len(authorization) != 1 {
		return nil
	}
	scheme, token, ok := strings.Cut(authorization[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	return l.byToken[sha256.Sum256([]byte(strings.TrimLeft(token, " ")))]
}

// A denial says why a call is not answered.
type denial struct {
	reason string // one of denialReasons
	field  string // field of the request that was denied
	detail string
}

var denialReasons = []string{"no_token", "unknown_token", "role", "limit", "listener"}

func (d *denial) Error() string { return d.detail }

// unknown reports whether the caller is unknown, so that another token would help.
func (d *denial) unknown() bool { return d.reason == "no_token" || d.reason == "unknown_token" }

// admit returns the caller of a call that needs a role, or why the call is denied. The
// caller is nil if anybody may make the call, and if the service has no callers. Only
// admit decides who may do what, over HTTP and gRPC.
func (a *api) admit(needs Role, authorization []string) (*Caller, *denial) {
	l := a.live.Load()
	admin := needs == 0 || needs >= Read || needs == Known && !l.named
	switch {
	case needs == Anybody, needs == Proxied && (a.site.Open || !l.named), !admin && !l.named:
		return nil, nil
	case needs == Proxied:
		return nil, &denial{"listener", "", "this call has no place for a token: with callers, only the listeners that open_listeners names answer it"}
	case admin && a.site.NoAdmin:
		return nil, &denial{"listener", "", "admin calls are on another listener"}
	case len(l.byToken) == 0 && a.site.Loopback:
		return nil, nil
	case len(l.byToken) == 0:
		return nil, &denial{"listener", "", "without an admin token, admin calls are answered on a loopback listener only"}
	}
	c := l.caller(authorization)
	switch {
	case c == nil:
		return nil, l.unknown(authorization)
	case needs == 0:
		return nil, &denial{"role", "", fmt.Sprintf("caller %s has the role %s, and nobody may make this call", c.Name, c.Role)}
	case !c.Role.may(needs):
		return nil, &denial{"role", "", fmt.Sprintf("caller %s has the role %s, and this call needs %s", c.Name, c.Role, needs)}
	case !l.named:
		return nil, nil // with a nil caller the audit records the address
	}
	return c, nil
}

// unknown is the denial of a call without the token of a caller.
func (l *live) unknown(authorization []string) *denial {
	d := &denial{"no_token", "Authorization", "admin calls need Authorization: Bearer and the admin token"}
	if l.named {
		d.detail = "calls need Authorization: Bearer and the token of a caller"
	}
	if len(authorization) > 0 {
		d.reason = "unknown_token"
		d.detail += ", and what was sent is none"
	}
	return d
}

// mayName returns a denial if the caller may not name a limit.
func (c *Caller) mayName(field, limit string) error {
	if c == nil || c.Limits == nil || slices.Contains(c.Limits, limit) {
		return nil
	}
	return &denial{"limit", field, fmt.Sprintf("caller %s may not name the limit %q", c.Name, clip(limit, maxField))}
}

type callerKey struct{}

// callerOf returns who makes the call of a context, or nil: see api.admit.
func callerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}

func withCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// gate returns the handler of a call that needs a role, and the right to name the path's limit.
// It reads the body, if the call has members, or the query.
func (a *api) gate(call *route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, d := a.admit(call.needs, r.Header["Authorization"])
		if d != nil {
			a.deny(w, d, a.address(r))
			return
		}
		if c != nil {
			r = r.WithContext(withCaller(r.Context(), c))
		}
		var err error
		if name := r.PathValue("name"); name != "" {
			err = c.mayName("name", name)
		}
		switch {
		case err != nil:
		case call.do == nil:
			var q *query
			if q, err = parseQuery(r.URL.RawQuery, call.params); err == nil {
				err = call.handle(a, w, r, q)
			}
		default:
			x := exchanges.Get().(*exchange)
			defer x.free()
			if call.members != 0 {
				err = a.read(r, x, call.members)
			}
			if x.verb = call.verb; err == nil && call.hot {
				err = a.timed(r.Context(), call.verb, &x.d, &x.req)
			}
			if err == nil {
				err = call.do(a, w, r, x)
			}
		}
		if err != nil {
			a.fail(w, err)
		}
	}
}

// deny answers a call with a denial. from is the sender's address, or "".
func (a *api) deny(w http.ResponseWriter, d *denial, from string) {
	a.metrics.deny(d, from)
	status := http.StatusForbidden
	if d.unknown() {
		status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	httplimit.Problem(w, status, d.field, d.detail)
}

func (a *api) whoami(w http.ResponseWriter, r *http.Request, _ *query) error {
	name, role := a.who(r), Admin // without callers this is an admin call
	if c := callerOf(r.Context()); c != nil {
		role = c.Role
	} else if len(a.live.Load().byToken) > 0 {
		name = AdminCaller
	}
	service := ""
	if k := a.metrics.keys; k != nil {
		service = k.process
	}
	return answerJSON(w, struct {
		Name     string            `json:"name"`
		Role     string            `json:"role"`
		Service  string            `json:"service"`
		Labels   map[string]string `json:"labels,omitempty"`
		Store    string            `json:"store"`
		TimeZone string            `json:"time_zone"`
	}{name, role.String(), service, a.metrics.labels, a.metrics.store, timeZone()}, nil)
}

// timeZone returns the name of this process's time zone, such as Europe/Rome.
func timeZone() string {
	name := time.Local.String()
	if name != "Local" {
		return name
	}
	at, _ := os.Readlink("/etc/localtime") // on an error the name stays as it is
	if _, zone, ok := strings.Cut(at, "zoneinfo/"); ok {
		return zone
	}
	name, _ = time.Now().Zone()
	return name
}
