package replay

// maxBins is the most bins in a report's time axis.
const maxBins = 240

// binWidths are the possible widths of a bin in µs, and the possible distances of labels
// on the time axis, each a multiple of the one before.
var binWidths = [...]int64{1e3, 10e3, 100e3, second, 5 * second, 15 * second, 30 * second, minute, 5 * minute, 15 * minute,
	30 * minute, hour, 3 * hour, 6 * hour, 12 * hour, day, 7 * day, 28 * day, 364 * day, 10 * 364 * day}

const (
	second = 1_000_000
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// bins counts requests over time in at most maxBins bins of equal width. If the
// time span becomes too long for that, the width grows. Times must be in order.
type bins struct {
	start   int64 // start of the first bin in µs, a multiple of the width
	n       int   // number of bins in use
	size    int   // index of the width in binWidths
	current int   // bin of the last request
	until   int64 // end of the bin current
	bin     [maxBins]bin
}

type bin struct{ granted, refused int64 }

func (b *bins) width() int64 { return binWidths[b.size] }

func (b *bins) add(t int64, v verdict) {
	if t >= b.until || b.n == 0 {
		b.move(t)
	}
	if v == granted {
		b.bin[b.current].granted++
	} else {
		b.bin[b.current].refused++
	}
}

// move makes the bin that contains t the current one.
func (b *bins) move(t int64) {
	if b.n == 0 {
		b.start = t - t%b.width()
	}
	for t-b.start >= b.width()*maxBins && b.size < len(binWidths)-1 {
		b.widen()
	}
	b.current = min(int((t-b.start)/b.width()), maxBins-1)
	b.n = b.current + 1
	b.until = b.start + int64(b.n)*b.width()
}

// widen merges the bins into bins of the next width.
func (b *bins) widen() {
	old := *b
	b.size++
	b.start -= b.start % b.width()
	b.bin = [maxBins]bin{}
	for i := range old.n {
		to := &b.bin[(old.start+int64(i)*old.width()-b.start)/b.width()]
		to.granted += old.bin[i].granted
		to.refused += old.bin[i].refused
	}
}

// OverTime counts requests in equal parts of time, at most 240.
type OverTime struct {
	Start   int64   `json:"start_us"` // start of the first part, in µs since the Unix epoch
	Width   int64   `json:"width_us"`
	Granted []int64 `json:"granted"`
	Refused []int64 `json:"refused"` // refused by this limit or another; in shadow mode: would have been refused
}

// OverTime returns how many requests were granted and refused over time.
func (l *Limit) OverTime() OverTime {
	o := OverTime{Start: l.bins.start, Width: l.bins.width(), Granted: []int64{}, Refused: []int64{}}
	for _, b := range l.bins.bin[:l.bins.n] {
		o.Granted = append(o.Granted, b.granted)
		o.Refused = append(o.Refused, b.refused)
	}
	return o
}
