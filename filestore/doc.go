// Package filestore is the durable dipwell.Store in one file: memory decides,
// SQLite keeps.
//
// Every call is decided by a memstore. Rows that changed are written to the file
// in groups, one transaction for all that changed since the last. Config.Every
// says when a call is answered: from memory, so that a crash can forget the
// decisions of that long at most, or only once its group is on the disk (Each).
//
// When the disk cannot keep up, nobody waits for it: the next group is larger
// and the time that a crash could forget is longer. Stats counts such groups and
// has the longest. When the disk fails, calls fail, by the failure mode of their
// limits, until it works again.
package filestore
