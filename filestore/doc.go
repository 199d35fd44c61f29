// Package filestore is a durable store.Store in one file: calls are decided in
// memory, and rows are kept in SQLite.
//
// Rows that changed are written to the file in groups, one transaction for all
// changes since the last one. Config.Every says when a call is answered: either
// from memory, so that a crash can lose the decisions of at most that time, or only
// once its group is on the disk (Each).
//
// If the disk cannot keep up, calls do not wait for it: the next group is larger, and a
// crash could lose the decisions of a longer time. The metrics of the store count such
// groups and have the longest time. While the disk fails, the failure modes of the limits
// decide calls.
package filestore
