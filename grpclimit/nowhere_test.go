package grpclimit_test

import "google.golang.org/grpc/metadata"

// nowhere is a grpc.ServerTransportStream that discards metadata.
type nowhere struct{}

func (nowhere) Method() string               { return empty }
func (nowhere) SetHeader(metadata.MD) error  { return nil }
func (nowhere) SendHeader(metadata.MD) error { return nil }
func (nowhere) SetTrailer(metadata.MD) error { return nil }
