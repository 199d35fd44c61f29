// Package rls is Envoy's RateLimitService, a drop-in for envoyproxy/ratelimit that
// reads its descriptor configuration. Each rate_limit of the configuration is a
// limit of the limiter, and the descriptors of requests are keys.
package rls
