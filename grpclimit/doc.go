// Package grpclimit is gRPC interceptors over a dipwell.Limiter, for servers and
// for clients: a call becomes a limit, a key and a cost; a decision becomes
// metadata and a status. It computes no limit and imports no store. Who knows
// httplimit knows it.
package grpclimit
