package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

var update = flag.Bool("update", false, "write the golden files")

const exampleLog = "../../testdata/access.log"

func limit(t testing.TB, s string) dipwell.Limit {
	t.Helper()
	l, err := dipwell.ParseLimit(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func limits(t testing.TB, texts ...string) (ls []dipwell.Limit) {
	t.Helper()
	for _, s := range texts {
		ls = append(ls, limit(t, s))
	}
	return ls
}

func decisions(t testing.TB, in Input, o Options) (string, *Report) {
	t.Helper()
	var s bytes.Buffer
	o.Decisions = &s
	o.TempDir = t.TempDir()
	rep, err := Run(context.Background(), in, o)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(o.TempDir); len(left) > 0 {
		t.Fatalf("%s is left behind", left[0].Name())
	}
	return s.String(), rep
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := string(read(t, path)); got != want {
		t.Errorf("%s differs; go test ./replay -update writes it anew. Got:\n%s", path, got)
	}
}

func TestReportIsGolden(t *testing.T) {
	in, err := File(exampleLog, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines, rep := decisions(t, in, Options{Limits: limits(t, "page=12/1m,burst=15", "day=40/1d,algorithm=fixed_window,start=0s")})
	rep.Log = "access.log"
	var text strings.Builder
	if err := rep.Write(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/report.golden", text.String())
	golden(t, "testdata/decisions.golden", lines)
}

// modelLine parses a combined line independently of the package's parser.
var modelLine = regexp.MustCompile(`^(\S+) .*?\[([^\]]+)\] .*?" \d+ (\d+)`)

// model decides a log by sorting it in memory and applying the rules.
func model(t testing.TB, log string, o Options, cost func([]string) int64) string {
	type request struct {
		at   int64
		line int
		key  string
		cost int64
	}
	var all []request
	for i, line := range strings.Split(strings.TrimSuffix(log, "\n"), "\n") {
		m := modelLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, err := time.Parse("02/Jan/2006:15:04:05 -0700", m[2])
		if err != nil {
			continue
		}
		key := m[1]
		if a := netip.MustParseAddr(key); a.Is6() {
			key = netip.PrefixFrom(a, 64).Masked().String()
		}
		all = append(all, request{at.UnixMicro(), i + 1, key, cost(m)})
	}
	slices.SortStableFunc(all, func(a, b request) int { return int(a.at - b.at) })
	rows := map[string]store.State{}
	var out strings.Builder
	for _, r := range all {
		ops, after := make([]store.Op, len(o.Limits)), make([]store.State, len(o.Limits))
		every := true
		for i, l := range o.Limits {
			def := limittest.Definition(l)
			ops[i] = store.Op{Def: def, Key: r.key, Cost: r.cost}
			var err error
			if after[i], _, err = ops[i].Step(r.at, rows[l.Name+" "+r.key], false); err != nil {
				t.Fatal(err)
			}
			every = every && ops[i].Allowed
		}
		for i, l := range o.Limits {
			op, row := &ops[i], rows[l.Name+" "+r.key]
			allowed, retry := op.Allowed && (every || !o.All), "null"
			if allowed {
				row = after[i]
				rows[l.Name+" "+r.key] = row
			} else if !op.Never {
				retry = fmt.Sprint(op.Retry)
			}
			var scratch store.Rule
			used := op.RuleFor(&scratch).Used(row, r.at)
			rule := limittest.Definition(l).Rule
			fmt.Fprintf(&out, `{"line":%d,"t_us":%d,"limit":%q,"key":%q,"allowed":%v,"remaining":%d,"retry_after_us":%s}`+"\n",
				r.line, r.at, l.Name, r.key, allowed, max(0, (rule.Cap-used)/rule.Unit), retry)
		}
	}
	return out.String()
}

func TestDecisionsEqualTheModel(t *testing.T) {
	logs := map[string]string{
		"example": string(read(t, exampleLog)),
		"sorted":  string(benchLog(3000, 0)),
		"late":    string(benchLog(3000, 5*time.Minute)),
	}
	one := func([]string) int64 { return 1 }
	size := func(m []string) (n int64) { fmt.Sscan(m[3], &n); return n }
	for name, log := range logs {
		for _, o := range []Options{
			{Limits: limits(t, "page=12/1m,burst=15")},
			{Limits: limits(t, "spread=3/1h,algorithm=fixed_window", "month=5/1mo,algorithm=fixed_window")},
			{Limits: limits(t, "slow=1/7m,burst=1", "day=40/1d,algorithm=fixed_window,start=0s", "grid=2/10s,algorithm=interval,burst=5")},
			{Limits: limits(t, "slow=1/7m,burst=2", "page=12/1m,burst=3", "spread=3/1h,algorithm=fixed_window"), All: true},
			{Limits: limits(t, "traffic=20000/1m"), Cost: "bytes"},
			{Limits: limits(t, "traffic=20000/1m", "more=100000/1h"), Cost: "bytes", All: true, SortRecords: 10},
			{Limits: limits(t, "page=12/1m,burst=15"), SortRecords: 3, MaxKeys: 4},
		} {
			cost := one
			if o.Cost != "" {
				cost = size
			}
			want := model(t, log, o, cost)
			if got, _ := decisions(t, inMemory([]byte(log)), o); got != want {
				t.Errorf("%s %v, from a file: decisions differ from the model's\n%s", name, o.Limits, firstDifference(got, want))
			}
			if got, _ := decisions(t, Stream("pipe", strings.NewReader(log)), o); got != want {
				t.Errorf("%s %v, from a pipe: decisions differ from the model's\n%s", name, o.Limits, firstDifference(got, want))
			}
		}
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// If all times are distinct, the order of the lines does not change any decision.
func TestOrderOfLinesDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var lines []string
	at := time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)
	for range 2000 {
		at = at.Add(time.Duration(1+r.IntN(4)) * time.Second)
		lines = append(lines, fmt.Sprintf(`192.0.2.%d - - [%s] "GET / HTTP/1.1" 200 1 "-" "-"`, r.IntN(9), at.Format("02/Jan/2006:15:04:05 -0700")))
	}
	number := regexp.MustCompile(`"line":\d+,`)
	decide := func(o Options) string {
		got, _ := decisions(t, inMemory([]byte(strings.Join(lines, "\n"))), o)
		return number.ReplaceAllString(got, "")
	}
	o := Options{Limits: limits(t, "page=3/1m,burst=5", "day=100/1d,algorithm=fixed_window")}
	want := decide(o)
	for _, records := range []int{0, 1, 2, 31, 700} {
		r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		o.SortRecords = records
		if got := decide(o); got != want {
			t.Errorf("with %d records in memory: %s", records, firstDifference(got, want))
		}
	}
}

// A log is read once if it is in order or if its decisions are wanted, which are only those
// of the sorted log.
func TestALogInOrderIsReadOnce(t *testing.T) {
	for _, c := range []struct {
		late      time.Duration
		decisions io.Writer
		reads     int
	}{{0, nil, 1}, {time.Minute, nil, 2}, {0, io.Discard, 1}, {time.Minute, io.Discard, 1}} {
		in := inMemory(benchLog(5000, c.late))
		opened := 0
		open := in.Open
		in.Open = func() (io.ReadCloser, error) { opened++; return open() }
		if _, err := Run(context.Background(), in, Options{Limits: benchLimits, Decisions: c.decisions}); err != nil {
			t.Fatal(err)
		}
		if opened != c.reads {
			t.Errorf("late by %v, decisions %v: read %d times", c.late, c.decisions, opened)
		}
	}
}

// The same requests in every format, compressed, and with other line ends get the
// same decisions.
func TestFormatsGiveSameDecisions(t *testing.T) {
	var combined, json, csv, quoted strings.Builder
	json.WriteString("\ufeff")
	csv.WriteString("time,remote_addr,bytes\n")
	quoted.WriteString("time;x;ip;bytes\r\n")
	at := time.Date(2026, 3, 14, 9, 0, 0, 0, time.FixedZone("", 3600))
	for i := range 100 {
		ip, at := fmt.Sprintf("2001:db8::%d", i%3), at.Add(time.Duration(i)*time.Second)
		fmt.Fprintf(&combined, "%s - - [%s] \"GET / HTTP/1.1\" 200 %d\n", ip, at.Format("02/Jan/2006:15:04:05 -0700"), i)
		fmt.Fprintf(&json, "{\"request\": {\"id\": [\"}\", 1], \"remote_ip\": %q}, \"ts\": %d.0, \"size\": %d, \"broken\": \n", ip, at.Unix(), i)
		fmt.Fprintf(&csv, "%s,%s,%d\n", at.Format(time.RFC3339), ip, i)
		fmt.Fprintf(&quoted, "\"%s\";\"a \"\"quote\"\", a;b\";\"%s\";%d;\"open\r\n", at.UTC().Format("2006-01-02 15:04:05"), ip, i)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(combined.String()))
	_ = z.Close()
	o := Options{Limits: limits(t, "page=3/1m,burst=5", "all=1000/1h"), Cost: "bytes"}
	want, _ := decisions(t, inMemory([]byte(combined.String())), o)
	if strings.Count(want, "\n") != 200 || !strings.Contains(want, `"allowed":false`) {
		t.Fatal(want)
	}
	for name, c := range map[string]struct {
		log []byte
		o   Options
		off int
	}{
		"json":   {[]byte(json.String()), o, 0},
		"csv":    {[]byte(csv.String()), o, 1},
		"quoted": {[]byte(quoted.String()), o, 1},
		"gzip":   {packed.Bytes(), o, 0},
		"crlf":   {[]byte(strings.ReplaceAll(combined.String(), "\n", "\r\n")), o, 0},
	} {
		got, rep := decisions(t, inMemory(c.log), c.o)
		if c.off > 0 { // the header is line 1
			got = regexp.MustCompile(`"line":(\d+)`).ReplaceAllStringFunc(got, func(s string) string {
				var n int
				fmt.Sscanf(s, `"line":%d`, &n)
				return fmt.Sprintf(`"line":%d`, n-c.off)
			})
		}
		if got != want {
			t.Errorf("%s (read as %s, %d malformed %v): %s", name, rep.Format, rep.Malformed, rep.BadLines, firstDifference(got, want))
		}
	}
}

func TestSharedBucketAndShadow(t *testing.T) {
	log := `192.0.2.1 - - [14/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 1
192.0.2.2 - - [14/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 1
`
	one := limits(t, "one=1/1h,shared=true", "look=1/1h,mode=shadow,shared=true")
	got, rep := decisions(t, inMemory([]byte(log)), Options{Limits: one, By: "none"})
	want := `{"line":1,"t_us":1773478800000000,"limit":"one","key":null,"allowed":true,"remaining":0,"retry_after_us":null}
{"line":1,"t_us":1773478800000000,"limit":"look","key":null,"allowed":true,"remaining":0,"retry_after_us":null}
{"line":2,"t_us":1773478800000000,"limit":"one","key":null,"allowed":false,"remaining":0,"retry_after_us":3600000000}
{"line":2,"t_us":1773478800000000,"limit":"look","key":null,"allowed":true,"remaining":0,"retry_after_us":3600000000}
`
	if got != want {
		t.Error(firstDifference(got, want))
	}
	if rep.Limits[1].Refused != 1 || !rep.Limits[1].Shadow {
		t.Errorf("%+v", rep.Limits[1])
	}
	for _, by := range []string{"ip", "user", "shoe+status"} { // fields that lines do not have too
		if again, _ := decisions(t, inMemory([]byte(log)), Options{Limits: one, By: by}); again != want {
			t.Errorf("by %s: %s", by, firstDifference(again, want))
		}
	}
}

// Beside a limit for keys, a shared one counts all requests.
func TestSharedBesideKeys(t *testing.T) {
	log := `192.0.2.1 - - [14/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 1
192.0.2.2 - - [14/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 1
192.0.2.2 - - [14/Mar/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 1
`
	o := Options{Limits: limits(t, "each=1/1h", "two=2/1h,shared=true")}
	got, _ := decisions(t, inMemory([]byte(log)), o)
	want := `{"line":1,"t_us":1773478800000000,"limit":"each","key":"192.0.2.1","allowed":true,"remaining":0,"retry_after_us":null}
{"line":1,"t_us":1773478800000000,"limit":"two","key":null,"allowed":true,"remaining":1,"retry_after_us":null}
{"line":2,"t_us":1773478800000000,"limit":"each","key":"192.0.2.2","allowed":true,"remaining":0,"retry_after_us":null}
{"line":2,"t_us":1773478800000000,"limit":"two","key":null,"allowed":true,"remaining":0,"retry_after_us":null}
{"line":3,"t_us":1773478800000000,"limit":"each","key":"192.0.2.2","allowed":false,"remaining":0,"retry_after_us":3600000000}
{"line":3,"t_us":1773478800000000,"limit":"two","key":null,"allowed":false,"remaining":0,"retry_after_us":1800000000}
`
	if got != want {
		t.Error(firstDifference(got, want))
	}
}

func TestOptionsAreChecked(t *testing.T) {
	log := inMemory([]byte("time,ip\n2026-03-14T09:00:00Z,192.0.2.1\n"))
	one := limits(t, "a=1/1s")
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "limit: 0 limits would decide"},
		{Options{Limits: limits(t, "a=1/1s", "a=2/1s")}, "limit: a is given twice"},
		{Options{Limits: one, Pattern: "xml"}, `pattern: ^%{xml}: pattern definition "xml" unknown`},
		{Options{Limits: one, Pattern: "%{IP:ip"}, `pattern: `},
		{Options{Limits: one, By: "shoe"}, `by: there is no column "shoe"`},
		{Options{Limits: one, Pattern: "combined", By: "shoe"}, `by: "shoe" is no field`},
		{Options{Limits: one, Pattern: "combined", Cost: "shoe"}, `cost: "shoe" is no field`},
		{Options{Limits: one, Cost: "1.5"}, `cost: "1.5" is neither`},
		{Options{Limits: one, Cost: "-1"}, `cost: "-1" is neither`},
		{Options{Limits: one, Pattern: "json", Cost: "9007199254740992"}, `cost: "9007199254740992" is neither`},
		{Options{Limits: one, TimeField: "when"}, `time-field: there is no column "when"`},
		{Options{Limits: []dipwell.Limit{{Name: "a"}}}, "rate"},
	} {
		_, err := Run(context.Background(), log, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %s", c.o, err, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	o := Options{Limits: benchLimits}
	boom := errors.New("the disk is gone")
	broken := func() io.Reader {
		return io.MultiReader(bytes.NewReader(benchLog(5, 0)), errReader{boom})
	}
	if _, err := Run(context.Background(), Stream("log", broken()), o); !errors.Is(err, boom) || !strings.Contains(err.Error(), "line 6") {
		t.Errorf("a read error: %v", err)
	}
	o.TempDir, o.SortRecords = "/nonexistent", 1
	if _, err := Run(context.Background(), inMemory(benchLog(50, time.Hour)), o); err == nil || !strings.Contains(err.Error(), "sort the log") {
		t.Errorf("no place to sort: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	o.Progress = func(string, int64, int64) { cancel() }
	go func() { _, _ = w.Write(benchLog(2000, 0)) }() // and then says nothing more
	if _, err := Run(ctx, Stream("pipe", r), Options{Limits: benchLimits, Progress: o.Progress}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while waiting for a pipe: %v", err)
	}
	_ = r.Close()
	if _, err := Run(context.Background(), inMemory([]byte("\x1f\x8bnot gzip")), Options{Limits: benchLimits}); err == nil {
		t.Error("a broken gzip header is no error")
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(benchLog(2000, 0))
	_ = z.Close()
	_, err := Run(context.Background(), inMemory(packed.Bytes()[:packed.Len()/2]), Options{Limits: benchLimits})
	if err == nil || !regexp.MustCompile(`^log: line \d+: the data stops here; the file is not complete$`).MatchString(err.Error()) {
		t.Errorf("half a gzip file: %v", err)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }
