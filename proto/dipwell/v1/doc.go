// Package dipwellv1 is the verbs of the JSON API over gRPC, generated from dipwell.proto.
package dipwellv1

// With protoc, protoc-gen-go and protoc-gen-go-grpc on the path:
//
//	protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative proto/dipwell/v1/dipwell.proto
