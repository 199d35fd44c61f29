// Package rls is Envoy's RateLimitService: a drop-in for envoyproxy/ratelimit
// that reads its descriptor configuration. It translates and never computes:
// each rate_limit of the configuration is a limit of the limiter, and each
// descriptor of a request a key.
package rls
