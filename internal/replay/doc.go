// Package replay decides calls by limits in virtual time, with the same rules as the
// stores.
//
// Run decides the requests of an access log, and reports what the limits would have granted
// and refused. Its memory is bounded, however long the log is. A log that is not in time
// order is sorted, on disk if it is large.
//
// Play runs a pattern of calls against one bucket, for the page that shows how a limit
// behaves.
package replay

//go:generate go run ../../cmd/dipwell replay --log ../../testdata/access.log --limit page=12/1m,burst=15 --plot ../../docs/img/replay.svg
//go:generate go run ../../cmd/dipwell replay --log ../../testdata/bursts.csv --by user --limit api=100/1m,algorithm=sliding_window,start=0s --limit strict=50/1m,burst=50 --plot ../../docs/img/sliding.svg
