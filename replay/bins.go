package replay

// maxBins bounds the time axis of a report: twice what a plot has room for,
// since bins are paired when they run out.
const maxBins = 360

// bins count requests over time in a fixed number of bins of equal width,
// which doubles when time outgrows them. Times come in order.
type bins struct {
	start, width int64 // µs
	n            int
	bin          [maxBins]bin
}

type bin struct{ granted, refused int64 }

// firstWidth divides a minute: 240 ms × 2^k.
const firstWidth = 240_000

func (b *bins) add(t int64, v verdict) {
	if b.n == 0 {
		b.start, b.width, b.n = t, firstWidth, 1
	}
	for t-b.start >= b.width*maxBins {
		b.pair()
	}
	i := int((t - b.start) / b.width)
	b.n = max(b.n, i+1)
	if v == granted {
		b.bin[i].granted++
	} else {
		b.bin[i].refused++
	}
}

func (b *bins) pair() {
	for i := range maxBins / 2 {
		x, y := b.bin[2*i], b.bin[2*i+1]
		b.bin[i] = bin{x.granted + y.granted, x.refused + y.refused}
	}
	clear(b.bin[maxBins/2:])
	b.width *= 2
	b.n = (b.n + 1) / 2
}
