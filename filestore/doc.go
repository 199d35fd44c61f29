// Package filestore is a durable store.Store in one file: calls are decided in
// memory, and rows are kept in SQLite.
//
// Rows that changed are written to the file in groups, one transaction for all
// changes since the last one. Config.Every says when a call is answered: either
// from memory, so that a crash can lose the decisions of at most that long, or only
// once its group is on the disk (Each).
//
// If the disk cannot keep up, calls do not wait for it: the next group is larger,
// and a crash could lose the decisions of a longer time. Metrics of Abilities count
// such groups and have the longest time. If the disk fails, calls fail, by the failure mode of
// their limits, until it works again.
package filestore
