package replay

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
)

// go test -bench . ./replay compares the rate of a replay with loops that only
// split the same lines and parse their times: a simple one, one that copies
// nothing, and one written by hand.

const benchLines = 200_000

// benchLog is a combined log of n lines with 5,000 clients, about ten lines a
// second. Out of order, each line is up to half a minute late.
func benchLog(n int, late time.Duration) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	type at struct{ written, happened time.Time }
	t := time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)
	times := make([]at, n)
	for i := range times {
		times[i] = at{t, t}
		if late > 0 {
			times[i].happened = t.Add(-time.Duration(r.Int64N(int64(late))))
		}
		t = t.Add(100 * time.Millisecond)
	}
	var b bytes.Buffer
	for _, x := range times {
		c := r.IntN(5000)
		fmt.Fprintf(&b, "198.51.%d.%d - - [%s] \"GET /assets/%d/page.html HTTP/1.1\" 200 %d \"https://www.example.org/index.html\" \"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\"\n",
			c/256, c%256, x.happened.Format("02/Jan/2006:15:04:05 -0700"), r.IntN(100000), r.IntN(30000))
	}
	return b.Bytes()
}

func inMemory(log []byte) Input {
	return Input{Name: "log", Size: int64(len(log)), Again: true,
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(log)), nil }}
}

var benchLimits = []dipwell.Limit{{Name: "page", Rate: 10, Period: 10 * time.Second, Burst: 20}}

func perLine(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/line")
}

func BenchmarkReplayInOrder(b *testing.B) { benchReplay(b, 0) }
func BenchmarkReplayLate30s(b *testing.B) { benchReplay(b, 30*time.Second) }

func benchReplay(b *testing.B, late time.Duration) {
	log := benchLog(benchLines, late)
	b.ReportAllocs()
	for b.Loop() {
		rep, err := Run(context.Background(), inMemory(log), Options{Limits: benchLimits})
		if err != nil || rep.Requests != benchLines {
			b.Fatal(err)
		}
	}
	perLine(b, benchLines)
}

func BenchmarkReplayDecisions(b *testing.B) {
	log := benchLog(benchLines, 0)
	for b.Loop() {
		if _, err := Run(context.Background(), inMemory(log), Options{Limits: benchLimits, Decisions: discard{}}); err != nil {
			b.Fatal(err)
		}
	}
	perLine(b, benchLines)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Reset() error                { return nil }

func BenchmarkSplitAndParseTime(b *testing.B) {
	log := benchLog(benchLines, 0)
	for b.Loop() {
		sc := bufio.NewScanner(bytes.NewReader(log))
		for sc.Scan() {
			f := strings.Fields(sc.Text())
			if _, err := time.Parse("[02/Jan/2006:15:04:05 -0700]", f[3]+" "+f[4]); err != nil {
				b.Fatal(err)
			}
		}
	}
	perLine(b, benchLines)
}

// The same without copying, with the standard library's parser of times.
func BenchmarkSplitInPlaceAndParseTime(b *testing.B) {
	log := benchLog(benchLines, 0)
	for b.Loop() {
		sc := bufio.NewScanner(bytes.NewReader(log))
		for sc.Scan() {
			line := sc.Bytes()
			at := bytes.IndexByte(line, '[')
			if _, err := time.Parse("02/Jan/2006:15:04:05 -0700", string(line[at+1:at+1+clfLen])); err != nil {
				b.Fatal(err)
			}
		}
	}
	perLine(b, benchLines)
}

func BenchmarkSplitAndParseTimeByHand(b *testing.B) {
	log := benchLog(benchLines, 0)
	var times clfTimes
	fields := make([][]byte, 0, 16)
	for b.Loop() {
		sc := bufio.NewScanner(bytes.NewReader(log))
		sc.Buffer(make([]byte, 0, 64<<10), 1<<20)
		for sc.Scan() {
			fields = fields[:0]
			line := sc.Bytes()
			for rest := line; len(fields) < 5; {
				at := bytes.IndexByte(rest, ' ')
				fields = append(fields, rest[:at])
				rest = rest[at+1:]
			}
			at := bytes.IndexByte(line, '[')
			if _, _, ok := times.parse(line[at+1:]); !ok {
				b.Fatal(string(line))
			}
		}
	}
	perLine(b, benchLines)
}

// All of the work of a replay, written by hand for one limit: it splits the
// line, parses its time, and takes a token from the address's bucket in a map.
func BenchmarkDecideByHand(b *testing.B) {
	log := benchLog(benchLines, 0)
	var times clfTimes
	rate, burst := float64(benchLimits[0].Rate)/float64(benchLimits[0].Period.Microseconds()), float64(benchLimits[0].Burst)
	type bucket struct {
		tokens float64
		us     int64
	}
	for b.Loop() {
		buckets, refused := map[string]*bucket{}, 0
		sc := bufio.NewScanner(bytes.NewReader(log))
		sc.Buffer(make([]byte, 0, 64<<10), 1<<20)
		for sc.Scan() {
			line := sc.Bytes()
			at := bytes.IndexByte(line, '[')
			us, _, ok := times.parse(line[at+1:])
			if !ok {
				b.Fatal(string(line))
			}
			key := line[:bytes.IndexByte(line, ' ')]
			k := buckets[string(key)]
			if k == nil {
				k = &bucket{burst, us}
				buckets[string(key)] = k
			}
			k.tokens, k.us = min(burst, k.tokens+float64(us-k.us)*rate), us
			if k.tokens < 1 {
				refused++
				continue
			}
			k.tokens--
		}
		if len(buckets) == 0 {
			b.Fatal(refused, "refused of none")
		}
	}
	perLine(b, benchLines)
}
