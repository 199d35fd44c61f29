package memory

import "time"

// A Ticker computes the time between two readings of the system's clock from the
// processor's time stamp counter. Reading the clock in each call makes a Take 24 %
// slower. Each shard has one ticker, under its lock.
//
// The counter is used for at most 2 ms after a reading of the clock, its rate is
// measured again at each reading, and a counter that jumps is ignored until the
// next one. So the time is off by at most 2 ms, and by well below 1 µs if the
// counter is steady, as on current machines. Decisions stay correct in any case,
// because a time before the row's own counts as the row's.
type Ticker struct {
	us    int64  // the time at the last reading of the clock, in µs
	part  uint64 // fraction of the µs after us, in 2^-42 µs
	count uint64 // value of the counter at that reading
	most  uint64 // how far the counter may move before the clock must be read again; 0 if the pace is unknown
	pace  uint64 // length of one count, in 2^-42 µs
	nanos int64  // the system's clock at that reading, in ns since the store was made
}

const (
	reliance   = int64(time.Millisecond)
	measured   = int64(10 * time.Second) // ns: over a longer time the machine may have slept, and the pace be wrong
	mostRelied = 6_000_000               // counts: 1 ms at 6 GHz
	mostPace   = 16 << 42 / 1000         // a pace of 16 ns for each count
	mostApart  = 1 << 12                 // counts: two readings that are closer count as one instant
)

// At returns the time at a count of the counter, in µs, or false if the clock must be read.
func (t *Ticker) At(count uint64) (us int64, ok bool) {
	since := count - t.count
	return t.us + int64((since*t.pace+t.part)>>42), since < t.most
}

// Read returns the time of the system's clock in µs. The caller has just read
// count from the counter. It measures the counter's pace since the last reading.
func (t *Ticker) Read(start time.Time, epoch int64, count uint64) int64 {
	nanos := int64(time.Since(start))
	us := epoch + nanos/1000
	last := *t
	if since := nanos - last.nanos; last.count != 0 && since < reliance/2 && last.most == 0 {
		return us // too soon after the last reading to measure the pace
	}
	*t = Ticker{us: us, part: uint64(nanos%1000) << 42 / 1000, count: count, nanos: nanos}
	if counter()-count > mostApart { // the thread was interrupted between the two readings
		t.count = 0
		return us
	}
	since, counts := nanos-last.nanos, count-last.count
	if last.count == 0 || since < reliance/2 || since > measured || counts == 0 || counts > 1<<40 {
		return us
	}
	pace := uint64(since) << 24 / counts << 18 / 1000
	if steady := last.pace == 0 || pace-last.pace+last.pace>>8 < last.pace>>7; steady && pace < mostPace {
		t.pace, t.most = pace, min(counts*uint64(reliance)/uint64(since), mostRelied)
	}
	return us
}

// Counter returns the processor's time stamp counter, or 0 if it cannot be read quickly.
func Counter() uint64 { return counter() }
