// Package grpclimit has gRPC interceptors that limit calls and the messages of
// streams by a dipwell.Limiter.
//
// On a server ([New]), a refused call fails with RESOURCE_EXHAUSTED and the
// details QuotaFailure and, if waiting helps, RetryInfo. On a client
// ([NewClient]), calls wait for limits of the program's own, and a call that a
// server refused with RetryInfo is sent again after that delay.
//
// Limits, keys, costs and header fields are configured as in package httplimit.
package grpclimit
