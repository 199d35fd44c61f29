// Package httpclient is an http.RoundTripper for clients of rate-limited services.
//
// The transport reads the limits in a service's responses: Retry-After, the IETF RateLimit
// fields, X-RateLimit-* and the fields of GitHub, Discord, OpenAI and Anthropic. A request
// that the service would refuse waits, or fails at once if it could not be sent before its
// context's deadline. All requests of a [Transport] share the limits that it has read. With a
// dipwell.Limiter on a shared store, several processes share one budget.
package httpclient
