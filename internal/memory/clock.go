package memory

import "time"

// A ticker tells the time between two readings of the system's clock from the
// processor's time stamp counter: with a reading of the clock in each call, a Take
// is 24 % slower. It belongs to a shard and is used under its lock.
//
// The counter is used for at most a millisecond or two after a reading of the
// clock, and its pace is measured again at each reading; if the counter jumps,
// it is dropped at once. So whatever the counter does, the time is off by no
// more than that; with a steady counter, which current machines have, it is off
// by well below a microsecond. Decisions stay correct in either case: a time
// before a row's own counts as the row's.
type ticker struct {
	us    int64  // the time at the last reading of the clock, in µs
	part  uint64 // of the µs after it, in 2^-42 µs
	count uint64 // the counter then
	most  uint64 // counts to rely on; 0: the pace is not known yet
	pace  uint64 // of a count, in 2^-42 µs
	nanos int64  // the system's clock then, since the store was made
}

const (
	reliance   = int64(time.Millisecond)
	measured   = int64(10 * time.Second) // a pace measured over longer may hide that the machine slept
	mostRelied = 6_000_000               // counts: reliance at 6 GHz
	mostPace   = 16 << 42 / 1000         // 16 ns a count
	mostApart  = 1 << 12                 // counts between two readings that are to be of one instant
)

// at is the time at a count of the counter, in µs. It returns false if the
// clock must be read.
func (t *ticker) at(count uint64) (us int64, ok bool) {
	since := count - t.count
	return t.us + int64((since*t.pace+t.part)>>42), since < t.most
}

// read is the time by the system's clock, in µs since epoch, for a counter that
// was just read. It measures the counter's pace since the last time.
func (t *ticker) read(start time.Time, epoch int64, count uint64) int64 {
	nanos := int64(time.Since(start))
	us := epoch + nanos/1000
	last := *t
	if since := nanos - last.nanos; last.count != 0 && since < reliance/2 && last.most == 0 {
		return us // too soon to measure
	}
	*t = ticker{us: us, part: uint64(nanos%1000) << 42 / 1000, count: count, nanos: nanos}
	if counter()-count > mostApart { // interrupted between the two
		t.count = 0
		return us
	}
	since, counts := nanos-last.nanos, count-last.count
	if last.count == 0 || since < reliance/2 || since > measured || counts > 1<<40 {
		return us
	}
	pace := uint64(since) << 24 / counts << 18 / 1000
	if steady := last.pace == 0 || pace-last.pace+last.pace>>8 < last.pace>>7; steady && pace < mostPace {
		t.pace, t.most = pace, min(counts*uint64(reliance)/uint64(since), mostRelied)
	}
	return us
}
