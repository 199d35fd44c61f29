// Package httpclient is an http.RoundTripper for callers of rate-limited
// services. It reads what services say of their limits (Retry-After, the IETF
// RateLimit fields, the dialects of large providers), waits or fails at once by
// the context's deadline, shares what it learned among goroutines, and holds
// requests back before the service would refuse them. Through a dipwell.Limiter
// several processes share one budget.
package httpclient
