package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/httplimit"
)

// A fileCase is what must become of a file of testdata/cases.
type fileCase struct {
	Flags string
	Give  any // how many requests each key has, or "error"
}

// options reads flags.
func (c fileCase) options(t *testing.T) Options {
	o := Options{Limits: limits(t, "p=5/10s")}
	words := strings.Fields(c.Flags)
	for i := 0; i < len(words); i += 2 {
		switch words[i] {
		case "--by":
			o.By = words[i+1]
		case "--time-field":
			o.TimeField = words[i+1]
		default:
			t.Fatal(words[i])
		}
	}
	return o
}

// replayFile replays a log and counts the requests of each key.
func replayFile(t *testing.T, name string, o Options) (counts map[string]any, err error) {
	in, err := File(filepath.Join("testdata/cases", name), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o.Decisions = &out
	rep, err := Run(context.Background(), in, o)
	if err != nil {
		return nil, err
	}
	counts = map[string]any{}
	for _, d := range parseDecisions(t, out.String()) {
		n, _ := counts[*d.Key].(float64)
		counts[*d.Key] = n + 1
	}
	const nine = 1773478800e6 // 2026-03-14 09:00
	if rep.Requests > 0 && (*rep.First != nine || *rep.Last > nine+10e6 || rep.Requests != 12) {
		t.Errorf("%s: %d requests from %d to %d", name, rep.Requests, *rep.First, *rep.Last)
	}
	return counts, rep.Unread()
}

// fileErrors are what errors say.
var fileErrors = map[string]string{
	"j_host_remote.json":    `line 1: there is no ip in it; the member "remote" has an address: --by ip=remote; ip may be named ip, remote_addr, `,
	"log.bz2":               "log.bz2 is compressed with bzip2: unpack it first (bunzip2)",
	"cr.log":                `has lines that end in CR alone: end them in LF first (tr '\r' '\n')`,
	"cri.log":               `its ip "2026-03-14T09:00:00.000000Z" is not an address; if the log is in another format, a grok pattern can read it: --pattern `,
	"dockerjson.log":        "there is no ip in it; the line is inside the member log: unpack it (jq -r .log), or use --pattern",
	"excel_eu.csv":          "line 2: its time cannot be read; times are 2026-03-14T09:00:00Z, ",
	"xff.log":               `its ip "\"192.0.2.7," is not an address; it may be a list of addresses; if the log is in another format, a grok pattern can read it: --pattern `,
	"timefirst.log":         "line 1: there is no ip in it; if the log is in another format, a grok pattern can read it: --pattern ",
	"apache_strftime.log":   unknownFormat,
	"caddy_console.log":     unknownFormat,
	"fastly.log":            unknownFormat,
	"gunicorn_logfmt.log":   unknownFormat,
	"python_httpserver.log": unknownFormat,
	"squid.log":             unknownFormat,
}

const unknownFormat = "pattern: no line at the beginning of the log is in a format that replay knows by name"

// patterns read files that are in no format known by name.
var patterns = map[string]string{
	"cri.log":               `^%{NOTSPACE:time} stdout F %{NOTSPACE:ip} `,
	"dockerjson.log":        `"log": "%{NOTSPACE:ip} .*"time": "%{TIMESTAMP_ISO8601:time}"`,
	"xff.log":               `^"%{DATA:ip}" \[%{HTTPDATE:time}\]`,
	"timefirst.log":         `^\[%{HTTPDATE:time}\] %{IP:ip}`,
	"apache_strftime.log":   `^%{IPORHOST:ip} \S+ \S+ \[%{TIMESTAMP_ISO8601:time}\]`,
	"caddy_console.log":     `^%{DATA:time}\t.*"remote_ip": "%{IP:ip}"`,
	"fastly.log":            `^<\d+>%{TIMESTAMP_ISO8601:time} \S+ \S+ %{IP:ip}`,
	"gunicorn_logfmt.log":   `^time=%{NOTSPACE:time} .*ip=%{NOTSPACE:ip}`,
	"python_httpserver.log": `^%{NOTSPACE:ip} - - \[%{DATA:time}\]`,
	"squid.log":             "SQUID3",
	"alb.log":               "alb",
	"vhost.log":             "vhost_combined",
	"nginx_iso.log":         "common",
	"cloudfront.log":        "iis",
}

func TestCases(t *testing.T) {
	var expect struct{ Files map[string]fileCase }
	if err := json.Unmarshal(read(t, "testdata/cases/expect.json"), &expect); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir("testdata/cases")
	if err != nil || len(files) != len(expect.Files)+2 { // expect.json and times.json
		t.Fatal(len(files), len(expect.Files), err)
	}
	addresses := map[string]any{"192.0.2.7": 8., "198.51.100.23": 2., "203.0.113.9": 2.}
	for name, c := range expect.Files {
		got, err := replayFile(t, name, c.options(t))
		if c.Give == "error" {
			if err == nil || fileErrors[name] == "" || !strings.Contains(err.Error(), fileErrors[name]) {
				t.Errorf("%s: %v; want %s", name, err, fileErrors[name])
			}
		} else if err != nil || !reflect.DeepEqual(got, c.Give) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.Give)
		}
		if p, ok := patterns[name]; ok {
			o := Options{Limits: benchLimits, Pattern: p}
			if got, err := replayFile(t, name, o); err != nil || !reflect.DeepEqual(got, addresses) {
				t.Errorf("%s with %s: %v, %v", name, p, got, err)
			}
		}
	}
	if got, err := replayFile(t, "j_host_remote.json", Options{Limits: benchLimits, By: "ip=remote"}); err != nil || !reflect.DeepEqual(got, addresses) {
		t.Error(got, err)
	}
}

// Each form of a time is read, or refused with its line.
func TestCasesOfTimes(t *testing.T) {
	in, err := File("testdata/cases/times.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, rep := decisions(t, in, Options{Limits: limits(t, "page=10/10s,burst=20,shared=true")})
	const nine, india = 1773478800e6, 19800e6
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var d struct {
			T int64 `json:"t_us"`
		}
		if err := json.Unmarshal([]byte(line), &d); err != nil || (d.T-nine)%(60e6) >= 1e6 || d.T < nine-india || d.T > nine+1e6 {
			t.Error(line, err)
		}
	}
	var refused []string
	for _, b := range rep.BadLines {
		refused = append(refused, fmt.Sprintf("%d %s", b.Line, b.Reason))
	}
	want := `5 its time cannot be read
6 its time cannot be read
9 its time cannot be read
10 its time cannot be read
13 its time cannot be read
20 its time cannot be read
21 a field is an object and not text or a number`
	if got := strings.Join(refused, "\n"); got != want {
		t.Errorf("refused:\n%s", got)
	}
}

// An address has the same key as in the middleware, however it is written; and so has a
// list of addresses, if the proxies are known.
func TestAddressesCountAsInTheMiddleware(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}
	some := []string{"192.0.2.7", "192.0.2.7:443", "::ffff:192.0.2.7", "[::ffff:192.0.2.7]:80", "2001:db8:1:2::5", "[2001:db8:1:2:9::5]:443", "[2001:db8:1:2::5]", "fe80::1%eth0",
		"64:ff9b::192.0.2.7", "10.1.2.3", "10.9.9.9:80", "2001:db8:ffff::1", "", "-", "unknown", "192.0.2", "shop.example"}
	request, _ := http.NewRequest(http.MethodGet, "/", nil)
	read := 0
	for range 2000 {
		list := some[r.IntN(len(some))]
		for range r.IntN(3) {
			list += ", " + some[r.IntN(len(some))]
		}
		for _, trusted := range [][]netip.Prefix{nil, proxies} {
			request.RemoteAddr = list
			if trusted != nil {
				request.RemoteAddr, request.Header = "10.0.0.1:1", http.Header{"X-Forwarded-For": {list}}
			} else if strings.Contains(list, ",") {
				continue
			}
			want, wrong := httplimit.ClientIP(trusted...)(request)
			f := fields{proxies: trusted, list: []field{{"by", "ip", true}}, by: []int{0}, cost: -1}
			var rec record
			err := f.fill(&rec, []value{{text: []byte(list)}})
			if trusted != nil && strings.TrimSpace(list) == "" { // no header: the middleware takes the peer
				continue
			}
			if (err == nil) != (wrong == nil) || err == nil && string(rec.Key) != want {
				t.Fatalf("%q, trusted %v: %q, %v; the middleware has %q, %v", list, trusted, rec.Key, err, want, wrong)
			}
			if err == nil {
				read++
			}
		}
	}
	if read < 500 {
		t.Error(read)
	}
}
