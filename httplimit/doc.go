// Package httplimit is net/http middleware that limits requests by a dipwell.Limiter.
//
// [New] takes from one or more limits before the next handler runs, announces the
// decision in header fields, and answers a refused request with status 429 and a problem
// document (RFC 9457). A [KeyFunc] such as [ClientIP] or [Header] chooses the bucket from
// which a request takes.
//
//	limit, err := httplimit.New(limiter, httplimit.Config{
//		Limits: []httplimit.Limit{{Name: "api", Key: httplimit.ClientIP()}},
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	http.Handle("/", limit(handler))
//
// examples/adapters uses this middleware in chi, Echo, Gin, Fiber and Connect.
//
// If the store does not answer, a request gets status 503, unless its limit has
// OnStoreError FailOpen or FailLocal. A Timeout of the limit bounds how long a request
// waits for the store.
//
// Handlers that call the limiter themselves can use the parts: [Headers.Set],
// [Refuse], [Fail] and [Problem].
package httplimit
