// Package httplimit is net/http middleware over a dipwell.Limiter: a request
// becomes a limit, a key and a cost; a decision becomes headers and a status.
// It computes no limit and imports no store.
package httplimit
