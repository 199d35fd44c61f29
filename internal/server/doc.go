// Package server is the service over a dipwell.Limiter: the JSON API, gRPC,
// forward-auth, health, metrics and a rate-limiting reverse proxy.
package server
