// Package server is the service: the JSON API, forward-auth, health, metrics
// and a rate-limiting reverse proxy over one dipwell.Limiter. It translates;
// the limiter decides.
package server
