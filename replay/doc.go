// Package replay runs the requests of an access log through limits in virtual
// time, with the very algebra of the stores, and reports what would have been
// granted and refused.
package replay

//go:generate go run ../cmd/dipwell replay --log ../testdata/access.log --limit page=12/1m,burst=15 --plot ../docs/img/replay.png
