package replay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// stretch generates a log of n lines in order while it is read.
type stretch struct {
	n, i int
	key  func(i int) string
	rest []byte
	peak uint64 // live heap at its highest, looked at a few times
}

func (s *stretch) Read(p []byte) (int, error) {
	for len(s.rest) < len(p) && s.i < s.n {
		if s.i%(s.n/8) == s.n/16 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			s.peak = max(s.peak, m.HeapAlloc)
		}
		at := time.Unix(1_773_478_800+int64(s.i)/100, 0).UTC()
		s.rest = append(s.rest, s.key(s.i)...)
		s.rest = at.AppendFormat(s.rest, " - - [02/Jan/2006:15:04:05 -0700] \"GET / HTTP/1.1\" 200 1\n")
		s.i++
	}
	n := copy(p, s.rest)
	s.rest = s.rest[:copy(s.rest, s.rest[n:])]
	if n == 0 && s.i == s.n {
		return 0, io.EOF
	}
	return n, nil
}

// heapOf replays n lines and returns the highest size of the live heap.
func heapOf(t *testing.T, n int, again bool, o Options, key func(int) string) (uint64, *Report) {
	t.Helper()
	s := &stretch{n: n, key: key}
	o.Limits, o.TempDir = benchLimits, t.TempDir()
	in := Stream("log", s)
	in.Again = again
	rep, err := Run(context.Background(), in, o)
	if err != nil || rep.Requests != int64(n) {
		t.Fatal(err, rep)
	}
	return s.peak, rep
}

// Memory does not grow with the length of a log in order, nor with its number of
// keys over time.
func TestMemoryIsIndependentOfLength(t *testing.T) {
	const mib = 1 << 20
	few := func(i int) string { return "192.0.2." + strconv.Itoa(i%250) }
	fresh := func(i int) string {
		return "2001:db8:" + strconv.FormatInt(int64(i>>8), 16) + ":" + strconv.FormatInt(int64(i&255), 16) + "::"
	}
	for _, c := range []struct {
		name  string
		again bool
		o     Options
		key   func(int) string
	}{
		{"a file", true, Options{}, few},
		{"a pipe", false, Options{SortRecords: 1 << 12}, few},
		{"ever new keys", true, Options{MaxKeys: 1 << 12}, fresh},
	} {
		short, _ := heapOf(t, 20_000, c.again, c.o, c.key)
		long, rep := heapOf(t, 250_000, c.again, c.o, c.key)
		if long > short+4*mib {
			t.Errorf("%s: %d KiB live with 20,000 lines, %d KiB with 250,000", c.name, short>>10, long>>10)
		}
		if want := c.o.MaxKeys > 0; (rep.Forgotten > 0) != want || rep.Disorder != 0 {
			t.Errorf("%s: %d keys forgotten, %d out of order", c.name, rep.Forgotten, rep.Disorder)
		}
	}
}

// Forgetting counts does not change decisions, and the report bounds the error.
func TestForgettingKeys(t *testing.T) {
	var log strings.Builder
	at := time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)
	for i := range 4000 {
		key := "192.0.2.1"
		if i%4 != 0 {
			key = fmt.Sprintf("198.51.100.%d", i/40) // many requests, then never again
		}
		fmt.Fprintf(&log, "%s - - [%s] \"GET /\"\n", key, at.Format("02/Jan/2006:15:04:05 -0700"))
		at = at.Add(2 * time.Second)
	}
	o := Options{Limits: limits(t, "slow=1/20s,burst=1")}
	want, exact := decisions(t, inMemory([]byte(log.String())), o)
	o.MaxKeys = 8
	got, rough := decisions(t, inMemory([]byte(log.String())), o)
	if got != want {
		t.Error(firstDifference(got, want))
	}
	e, r := exact.Limits[0], rough.Limits[0]
	if e.Missed != 0 || r.Missed == 0 || rough.Forgotten == 0 || r.Refused != e.Refused || r.KeysRefused > 16 {
		t.Errorf("exact %+v\nrough %+v", e, r)
	}
	if k := r.Worst[0]; k.Key != e.Worst[0].Key || k.Refused > e.Worst[0].Refused || k.Refused+r.Missed < e.Worst[0].Refused {
		t.Errorf("%+v is not within %d of %+v", k, r.Missed, e.Worst[0])
	}
}

func TestBinsWidenAndLoseNothing(t *testing.T) {
	var b bins
	t0, total := int64(1_773_478_812_345_678), int64(0)
	for i := range int64(3000) {
		b.add(t0+i*i*1_000_003, verdict(i%3%2))
		total++
	}
	var granted, refused int64
	for _, x := range b.bin {
		granted += x.granted
		refused += x.refused
	}
	if granted != 2000 || refused != 1000 || b.start > t0 || b.start%b.width() != 0 || b.start+int64(b.n)*b.width() <= t0+2999*2999*1_000_003 || b.n < maxBins/8 {
		t.Errorf("%d granted, %d refused, %d bins of %d from %d", granted, refused, b.n, b.width(), b.start)
	}
	for i := 1; i < len(binWidths); i++ {
		if binWidths[i]%binWidths[i-1] != 0 {
			t.Errorf("a bin of %d µs does not hold whole bins of %d", binWidths[i], binWidths[i-1])
		}
	}
}

func TestPlots(t *testing.T) {
	logs := map[string]string{
		"example": string(read(t, exampleLog)), "empty": "", "one line": "192.0.2.1 - - [14/Mar/2026:09:00:00 +0000] \"GET /\"\n",
		"26 years":   "a - - [14/Mar/2000:09:00:00 +0000]\nb - - [14/Mar/2026:09:00:00 +0000]\n",
		"nasty keys": strings.Repeat("<script>&\x1b[31m\""+strings.Repeat("é", 100)+" - - [14/Mar/2026:09:00:00 +0000]\n", 50),
	}
	for name, log := range logs {
		rep, err := Run(context.Background(), inMemory([]byte(log)), Options{
			Limits: limits(t, "page=12/1m,burst=15", "day=40/1d,algorithm=fixed_window", "queue=1/10s,algorithm=leaky_bucket,max_debt=9"), By: "host"})
		if err != nil {
			t.Fatal(name, err)
		}
		var svg bytes.Buffer
		if err := rep.WritePlot(&svg); err != nil || !strings.Contains(svg.String(), "</svg>") || strings.Contains(svg.String(), "<script") || strings.Contains(svg.String(), "\x1b") {
			t.Errorf("%s: %v %.100s", name, err, svg.String())
		}
		if svg.Len() > 2<<20 {
			t.Errorf("%s: %d bytes", name, svg.Len())
		}
		if err := rep.Write(io.Discard); err != nil {
			t.Error(name, err)
		}
	}
}

func TestTicks(t *testing.T) {
	day := func(h int) float64 { return float64(time.Date(2026, 3, 14, h, 0, 0, 0, time.UTC).UnixMicro()) }
	for _, c := range []struct {
		low, high float64
		want      string
	}{
		{day(9), day(12), "09:00\n14 Mar 2026|09:30|10:00|10:30|11:00|11:30|12:00"},
		{day(20), day(28), "20:00\n14 Mar 2026|21:00|22:00|23:00|00:00\n15 Mar 2026|01:00|02:00|03:00|04:00"},
	} {
		var got []string
		for _, k := range timeTicks(c.low, c.high) {
			got = append(got, k.Label)
		}
		if strings.Join(got, "|") != c.want {
			t.Errorf("%q", strings.Join(got, "|"))
		}
	}
}
