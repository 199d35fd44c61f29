// Package grpclimit has gRPC interceptors that limit calls and the messages of
// streams by a dipwell.Limiter.
//
// On a server ([New]), a refused call fails with RESOURCE_EXHAUSTED and the details
// QuotaFailure and, if waiting helps, RetryInfo. On a client ([NewClient]), calls wait
// for the program's own limits, and a call that a server refused with RetryInfo is sent
// again after that delay.
//
//	options, err := grpclimit.New(limiter, grpclimit.Config{
//		Limits: []grpclimit.Limit{{Name: "api", Key: grpclimit.ClientIP()}},
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	server := grpc.NewServer(options...)
//
// If the store does not answer, a call fails with UNAVAILABLE, unless its limit has
// OnStoreError FailOpen or FailLocal.
//
// Limits, keys, costs and header fields are configured as in package httplimit.
package grpclimit
