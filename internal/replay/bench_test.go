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

// make bench-replay compares the rates of replays with loops that only split lines and
// parse their times: a simple one, and one that copies nothing.

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

func BenchmarkReplayInOrder(b *testing.B) { benchReplay(b, benchLog(benchLines, 0), benchLines, "") }
func BenchmarkReplayLate30s(b *testing.B) {
	benchReplay(b, benchLog(benchLines, 30*time.Second), benchLines, "")
}

func benchReplay(b *testing.B, log []byte, lines int64, pattern string) {
	b.ReportAllocs()
	for b.Loop() {
		rep, err := Run(context.Background(), inMemory(log), Options{Limits: benchLimits, Pattern: pattern})
		if err != nil || rep.Requests != lines {
			b.Fatal(err)
		}
	}
	perLine(b, int(lines))
}

// benchFormat replays lines of another format.
func benchFormat(b *testing.B, header, line string) {
	log := bytes.NewBufferString(header)
	for i := range benchLines {
		at := time.Date(2026, 3, 14, 9, 0, i/10, i%10*1e8, time.UTC)
		fmt.Fprintf(log, line+"\n", at.Format("2006-01-02T15:04:05.000000Z"), i%5000/256, i%256)
	}
	benchReplay(b, log.Bytes(), benchLines, "")
}

func BenchmarkReplayALB(b *testing.B) {
	benchFormat(b, "", `h2 %s app/web/0123456789abcdef 198.51.%d.%d:40000 10.0.0.5:80 0.000 0.003 0.000 200 200 29 805 "GET https://shop.example:443/a HTTP/2.0" "Mozilla/5.0 (X11; Linux x86_64)" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2`)
}

func BenchmarkReplayJSON(b *testing.B) {
	benchFormat(b, "", `{"level":"info","time":"%s","request":{"remote_ip":"198.51.%d.%d","method":"GET","uri":"/a"},"status":200,"size":805,"agent":"Mozilla/5.0 (X11; Linux x86_64)"}`)
}

func BenchmarkReplayCSV(b *testing.B) {
	benchFormat(b, "time,ip,path,agent\n", `%s,198.51.%d.%d,/a,"Mozilla/5.0 (X11; Linux x86_64)"`)
}

func BenchmarkReplayGrok(b *testing.B) {
	benchReplay(b, benchLog(20_000, 0), 20_000, `^%{NOTSPACE:ip} %{NOTSPACE} %{NOTSPACE} \[%{DATA:time}\]`)
}

func BenchmarkReplayGrokLibrary(b *testing.B) {
	benchReplay(b, benchLog(2000, 0), 2000, "COMBINEDAPACHELOG")
}

func BenchmarkReplayDecisions(b *testing.B) {
	log := benchLog(benchLines, 0)
	for b.Loop() {
		if _, err := Run(context.Background(), inMemory(log), Options{Limits: benchLimits, Decisions: io.Discard}); err != nil {
			b.Fatal(err)
		}
	}
	perLine(b, benchLines)
}

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
			if _, err := time.Parse("02/Jan/2006:15:04:05 -0700", string(line[at+1:at+1+len(clf)])); err != nil {
				b.Fatal(err)
			}
		}
	}
	perLine(b, benchLines)
}
