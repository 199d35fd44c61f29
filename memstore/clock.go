package memstore

import "time"

// A ticker tells the time between two readings of the system's clock from the
// processor's time stamp counter: reading the clock is the largest part of a
// call. It belongs to a shard and is used under its lock.
//
// The counter is used for at most a millisecond or two after a reading of the
// clock, and its pace is measured again at each reading; if the counter jumps,
// it is dropped at once. So whatever the counter does, the time is off by no
// more than that; with a steady counter, which current machines have, it is off
// by well below a microsecond. Decisions stay correct in either case: a time
// before a row's own counts as the row's.
type ticker struct {
	nanos int64  // the system's clock at the last reading, since the store was made
	count uint64 // the counter then
	most  uint64 // counts to rely on; 0: the pace is not known yet
	pace  uint64 // nanoseconds in 2^32 counts
}

const (
	reliance   = int64(time.Millisecond)
	measured   = int64(10 * time.Second) // a pace measured over longer may hide that the machine slept
	mostRelied = 6_000_000               // counts: reliance at 6 GHz
	mostApart  = 1 << 12                 // counts between two readings that are to be of one instant
)

// now is the time since the store was made, in nanoseconds.
func (t *ticker) now(start time.Time) int64 { return t.at(start, counter()) }

// at is now for a counter that was just read.
func (t *ticker) at(start time.Time, count uint64) int64 {
	if d := count - t.count; d < t.most {
		return t.nanos + int64(d*t.pace>>32)
	}
	return t.read(start, count)
}

// read looks at the system's clock, and measures the counter's pace since the
// last time.
func (t *ticker) read(start time.Time, count uint64) int64 {
	nanos := int64(time.Since(start))
	last := *t
	if since := nanos - last.nanos; last.count != 0 && since < reliance/2 && last.most == 0 {
		return nanos // too soon to measure
	}
	*t = ticker{nanos: nanos, count: count}
	if counter()-count > mostApart { // interrupted between the two
		t.count = 0
		return nanos
	}
	since, counts := nanos-last.nanos, count-last.count
	if last.count == 0 || since < reliance/2 || since > measured || counts > 1<<40 {
		return nanos
	}
	pace := uint64(since) << 24 / counts << 8
	if steady := last.pace == 0 || pace-last.pace+last.pace>>8 < last.pace>>7; steady && pace < 1<<36 {
		t.pace, t.most = pace, min(counts*uint64(reliance)/uint64(since), mostRelied)
	}
	return nanos
}
