// Package httplimit is net/http middleware that limits requests by a
// dipwell.Limiter.
//
// [New] takes from one or more limits before the next handler runs, announces
// the decision in header fields, and answers a refused request with status 429
// and a problem document (RFC 9457). Whose bucket a request takes from is told
// by a [KeyFunc] such as [ClientIP] or [Header].
//
// The parts are there for handlers that call the limiter themselves:
// [Headers.Set], [RetryAfter], [Refuse], [Fail] and [Problem].
package httplimit
