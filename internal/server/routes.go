package server

import (
	"net/http"
	"strings"

	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

// A route is one call of the API. The mux, the role that a caller needs over HTTP and
// gRPC, and /openapi.json are made from the table of routes.
type route struct {
	method, path string // the method "" means any
	tag, summary string
	hot          bool                                                            // answered without the mux, which is slower
	needs        Role                                                            // role that the caller needs
	rpc          string                                                          // method of gRPC for the same call, or ""
	always       bool                                                            // answered during an overload too, because it shows the overload
	moved        func(Site) bool                                                 // reports whether only the admin listener answers it
	params       []string                                                        // names in components/parameters of the query's parameters
	verb         store.Verb                                                      // of a hot call, which is decided before do answers
	members      members                                                         // members of the body, or of the query
	body         string                                                          // schema of a body that is not described by members
	answers      map[int]string                                                  // schema of each successful status; "": no body
	text         string                                                          // media type of an answer that is not JSON
	refuses      bool                                                            // may answer 429 with a Refusal
	errors       []int                                                           // error statuses in addition to those that follow from the other fields
	handle       func(*api, http.ResponseWriter, *http.Request, *query) error    // of a call without a body
	do           func(*api, http.ResponseWriter, *http.Request, *exchange) error // of a call with a body
}

func ok(schema string) map[int]string { return map[int]string{http.StatusOK: schema} }

func ofVerb(v store.Verb, rpc, summary string) route {
	r := route{method: http.MethodPost, path: "/v1/" + v.String(), tag: "decisions", summary: summary, hot: true, needs: Use, rpc: rpc,
		members: membersOf(v), answers: ok("Decision"), errors: []int{http.StatusNotFound}}
	r.refuses = v <= store.VerbReserve
	r.verb, r.do = v, (*api).decided
	if v >= store.VerbRefund {
		r.needs = Support
	}
	return r
}

func noLimits(at Site) bool  { return at.NoLimits }
func noMetrics(at Site) bool { return at.NoMetrics }

const ofLimit = "/v1/limits/{name}"

var (
	listing      = []string{"prefix", "after", "n", "key"}
	notFound     = []int{http.StatusNotFound}
	notSupported = []int{http.StatusNotFound, http.StatusNotImplemented}
	changing     = []int{http.StatusNotFound, http.StatusConflict, http.StatusNotImplemented}
)

// routes is a function because /openapi.json, one of its rows, is made from the table.
func routes() []route {
	return []route{
		ofVerb(store.VerbTake, "Take", "Take the tokens, if all of them are there"),
		ofVerb(store.VerbCheck, "Check", "Answer as take would, and change nothing"),
		ofVerb(store.VerbTakeUpTo, "TakeUpTo", "Take as many as there are, at least one"),
		ofVerb(store.VerbReserve, "Reserve", "Take ahead of time, with a delay and a reservation"),
		ofVerb(store.VerbCharge, "Charge", "Take the tokens even if they are not there"),
		ofVerb(store.VerbRefund, "Refund", "Give tokens back"),
		ofVerb(store.VerbReset, "Reset", "Make the bucket full, and end its reservations and holds"),
		{method: "POST", path: "/v1/cancel", needs: Use, rpc: "Cancel", tag: "decisions", summary: "Give back what is left of a reservation", members: hasReservation,
			answers: ok("Cancelled"), errors: []int{http.StatusConflict, http.StatusNotImplemented}, do: (*api).cancel},
		{method: "POST", path: "/v1/wait", needs: Use, rpc: "Wait", tag: "decisions", summary: "Take the tokens as soon as they can be had", members: ofTake | hasTakes | hasTimeout,
			answers: ok("Decision"), refuses: true, errors: notFound, do: (*api).wait},
		{method: "POST", path: "/v1/ready", needs: Use, rpc: "Ready", tag: "decisions", summary: "Say which of many keys a take would be allowed for, and take nothing", members: hasLimit | hasKeys | hasCost | hasPlan,
			answers: ok("Ready"), errors: notFound, do: (*api).ready},
		{method: "POST", path: "/v1/hold", needs: Use, rpc: "Hold", tag: "holds", summary: "Take, and hold until the cost is known", members: ofTake | hasTakes | hasTTL | hasID,
			answers: ok("Decision"), refuses: true, errors: changing, do: (*api).hold},
		{method: "POST", path: "/v1/settle", needs: Use, rpc: "Settle", tag: "holds", summary: "End a hold with the actual cost", members: hasHold | hasCost | hasCosts | hasNote,
			answers: ok("Decision"), errors: changing, do: (*api).settle},
		{method: "POST", path: "/v1/extend", needs: Use, rpc: "Extend", tag: "holds", summary: "Let a hold expire later", members: hasHold | hasTTL,
			answers: ok("Decision"), errors: changing, do: (*api).extend},
		{method: "POST", path: "/v1/observe", needs: Use, tag: "decisions", summary: "Say what was seen of calls behind an adaptive limit", members: hasLimit | hasLatency | hasOK | hasCount,
			answers: map[int]string{http.StatusNoContent: ""}, errors: []int{http.StatusNotFound, http.StatusNotImplemented}, do: (*api).observe},
		{path: "/v1/auth", needs: Proxied, tag: "decisions", summary: "Answer a proxy that asks whether to allow a request, which may have any method",
			params: []string{"limit", "key", "key_header", "key_ip", "cost", "plan", "floor", "deny"}, answers: ok("Decision"), refuses: true,
			errors: []int{http.StatusUnauthorized, http.StatusNotFound}, handle: (*api).auth},
		{method: "GET", path: "/v1/limits", needs: ReadLimits, tag: "limits", summary: "List definitions in the order of names", moved: noLimits,
			params: []string{"after", "n"}, answers: ok("LimitsPage"), handle: (*api).listLimits},
		{method: "GET", path: ofLimit, needs: ReadLimits, tag: "limits", summary: "Read a definition", moved: noLimits, answers: ok("Limit"), errors: notFound, handle: (*api).getLimit},
		{method: "PUT", path: ofLimit, needs: Admin, tag: "limits", summary: "Define a limit, or change it", body: "LimitSettings",
			answers: map[int]string{http.StatusOK: "Limit", http.StatusCreated: "Limit"}, errors: changing, do: (*api).putLimit},
		{method: "DELETE", path: ofLimit, needs: Admin, tag: "limits", summary: "Drop a limit", params: []string{"note"},
			answers: map[int]string{http.StatusNoContent: ""}, errors: changing, handle: (*api).deleteLimit},
		{method: "GET", path: "/v1/keys", needs: Read, tag: "keys", summary: "What every limit knows of a key: why is this customer limited?",
			params: []string{"key", "prefix", "after", "n"}, answers: ok("KeyOfLimits KeysOfLimits"), handle: (*api).everyLimit},
		{method: "GET", path: ofLimit + "/keys", needs: Read, tag: "keys", summary: "List live keys, or look at one, and take nothing",
			params: append([]string{"key_cost"}, listing...), answers: ok("KeysPage Key"), errors: changing, handle: (*api).keys},
		{method: "GET", path: ofLimit + "/usage", needs: Read, tag: "keys", summary: "What a key used, by the hour, for 31 days",
			params: []string{"key", "others", "from", "to"}, answers: ok("Usage"), errors: notSupported, handle: (*api).usage},
		{method: "GET", path: ofLimit + "/holds", needs: Read, tag: "holds", summary: "List the live holds of a key",
			params: []string{"key"}, answers: ok("Holds"), errors: changing, handle: (*api).holds},
		{method: "GET", path: "/v1/overrides", needs: Read, tag: "limits", summary: "How many overrides each limit has, and those that end first",
			params: []string{"top"}, answers: ok("OverridesOfLimits"), errors: []int{http.StatusNotImplemented}, handle: (*api).everyOverride},
		{method: "GET", path: ofLimit + "/overrides", needs: Read, tag: "limits", summary: "List overrides, or read that of a key",
			params: append([]string{"kind"}, listing...), answers: ok("OverridesPage Override"), errors: changing, handle: (*api).overrides},
		{method: "PUT", path: ofLimit + "/overrides", needs: Support, tag: "limits", summary: "Set an override of a key, in place of the one of its kind", body: "OverrideSettings",
			answers: ok("Override"), errors: changing, do: (*api).putOverride},
		{method: "DELETE", path: ofLimit + "/overrides", needs: Support, tag: "limits", summary: "End an override of a key",
			params: []string{"key", "note", "kind"}, answers: map[int]string{http.StatusNoContent: ""}, errors: changing, handle: (*api).deleteOverride},
		{method: "GET", path: "/v1/audit", needs: Read, tag: "service", summary: "What people have changed, the newest first",
			params: []string{"before", "n", "limit", "audit_key"}, answers: ok("AuditPage"),
			errors: []int{http.StatusNotImplemented}, handle: (*api).audit},
		{method: "GET", path: "/v1/top", needs: Read, tag: "keys", summary: "Decisions by limit, and the busiest and most refused keys, or those of an hour, or decisions by the minute",
			params: []string{"top", "limit", "hour", "minutes"}, answers: ok("Top TopHour TopMinutes"), errors: []int{http.StatusNotFound, http.StatusNotImplemented}, handle: (*api).top},
		{method: "GET", path: "/v1/whoami", needs: Known, tag: "service", summary: "Who asks, with which role, and which service answers", answers: ok("Whoami"), handle: (*api).whoami},
		{method: "GET", path: "/healthz", needs: Anybody, tag: "service", summary: "Is the service alive?", always: true, answers: ok("Status"), handle: (*api).healthz},
		{method: "GET", path: "/readyz", needs: Anybody, tag: "service", summary: "Can it decide?", always: true, answers: ok("Status"), handle: (*api).readyz},
		{method: "GET", path: "/metrics", needs: Anybody, tag: "service", summary: "Metrics for Prometheus", always: true, moved: noMetrics, answers: ok(""), text: "text/plain",
			handle: func(a *api, w http.ResponseWriter, r *http.Request, _ *query) error {
				a.scrape.ServeHTTP(w, r)
				return nil
			}},
		{method: "GET", path: "/openapi.json", needs: Anybody, tag: "service", summary: "This document", always: true, answers: ok(""), text: "application/json", handle: (*api).describe},
	}
}

func (a *api) add(r route) {
	h := a.gate(&r)
	if r.moved != nil && r.moved(a.site) {
		h = elsewhere
	}
	if r.hot {
		a.hot[r.path] = h
	}
	a.always[r.path] = r.always
	a.rest.HandleFunc(strings.TrimPrefix(r.method+" "+r.path, " "), h)
}

// elsewhere answers a call that only the admin listener may answer.
func elsewhere(w http.ResponseWriter, _ *http.Request) {
	httplimit.Problem(w, http.StatusForbidden, "", "this is answered on the admin listener")
}
