// Package replay decides the requests of an access log by limits, in virtual time
// and with the same rules as the stores, and reports what the limits would have
// granted and refused.
//
// Memory is bounded, however long the log is. A log that is not in time order is
// sorted, on disk if it is large.
package replay

//go:generate go run ../../cmd/dipwell replay --log ../../testdata/access.log --limit page=12/1m,burst=15 --plot ../../docs/img/replay.png
