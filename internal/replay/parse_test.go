package replay

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// parserOf returns the parser of a format for one field.
func parserOf(t testing.TB, format, by string) parser {
	t.Helper()
	p, _, err := newParser(nil, &Options{Pattern: format}, []field{{"by", by, false}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCombinedFields(t *testing.T) {
	const line = `2001:db8::7 - ann [17/May/2015:10:05:03 +0200] "GET /a/b?c=\"d\" HTTP/1.1" 404 512 "https://example.org/x" "agent \\" extra "1.2"`
	for by, want := range map[string]string{
		"ip": "2001:db8::7", "host": "2001:db8::7", "user": "ann", "method": "GET", "path": "/a/b", "url": `/a/b?c=\"d\"`,
		"protocol": "HTTP/1.1", "request": `GET /a/b?c=\"d\" HTTP/1.1`, "status": "404", "bytes": "512",
		"referer": "https://example.org/x", "agent": `agent \\`,
	} {
		want := struct {
			text string
			at   time.Time
		}{want, time.Date(2015, 5, 17, 8, 5, 3, 0, time.UTC)}
		oneLine(t, "combined", by, line, want.text, want.at)
	}
}

func oneLine(t *testing.T, format, by, line, want string, at time.Time) {
	t.Helper()
	var us int64
	values := make([]value, 1)
	if err := parserOf(t, format, by).parse([]byte(line), &us, values); err != nil || values[0].err != nil || string(values[0].text) != want || us != at.UnixMicro() {
		t.Errorf("%s, %s: %q, %v, %v; want %q at %d", format, by, values[0].text, err, values[0].err, want, at.UnixMicro())
	}
}

// The fields of each format that is known by name.
func TestFieldsOfFormats(t *testing.T) {
	at := time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		format string
		want   map[string]string
	}{
		"alb.log":         {"alb", map[string]string{"method": "GET", "url": "https://shop.example:443/a", "path": "/a", "status": "200", "target": "10.0.0.5:80", "agent": "Mozilla/5.0 (X11; Linux x86_64)"}},
		"elb.log":         {"elb", map[string]string{"path": "/", "backend": "10.0.0.1:80", "bytes": "29", "agent": "curl/7.38.0"}},
		"haproxy_raw.log": {"haproxy", map[string]string{"path": "/index.html", "status": "200", "backend": "static/srv1"}},
		"envoy.log":       {"envoy", map[string]string{"path": "/api/v1", "status": "204", "host": "locations", "agent": "nsq2http"}},
		"vhost_dash.log":  {"vhost_combined", map[string]string{"host": "shop.example:80", "method": "POST", "status": "200", "agent": "Mozilla/5.0 (X11; Linux x86_64)"}},
		"nginx_iso.log":   {"nginx", map[string]string{"host": "192.0.2.7", "path": "/a"}},
	} {
		line, _, _ := bytes.Cut(read(t, "testdata/cases/"+name), []byte{'\n'})
		for by, want := range c.want {
			oneLine(t, c.format, by, string(line), want, at)
		}
	}
	// A captured header, and a server's syslog before the line.
	oneLine(t, "haproxy", "path", `Mar 14 09:00:00 lb haproxy[7]: 192.0.2.7:33 [14/Mar/2026:09:00:00.000] in be/s 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {a b|c} {} "GET /x?y HTTP/1.1"`, "/x", at)
}

// A line needs a valid time and key; other fields may be malformed.
func TestMalformedLines(t *testing.T) {
	const at = `[17/May/2015:10:05:03 +0000]`
	ip := "192.0.2.1 - - "
	for _, c := range []struct{ by, line, want string }{
		{"ip", ip + at, ""},
		{"ip", ip + at + ` "GET /never closed`, ""},
		{"ip", ip + at + strings.Repeat("\x00\xff", 50), ""},
		{"ip", "192.0.2.1 " + at, ""},
		{"ip", "192.0.2.1 - a[b [c] " + at, ""},
		{"host", "host.example - - " + at, ""},
		{"ip", "host.example - - " + at, `its ip "host.example" is not an address`},
		{"ip", `"192.0.2.1, 192.0.2.2" ` + at, `its ip "\"192.0.2.1," is not an address; it may be a list of addresses`},
		{"ip", "192.0.2.1:443 - - " + at, ""},
		{"ip", ip + "[2015-05-17T10:05:03+02:00]", ""},
		{"ip", ip + "[17/May/2015:10:05:03.123456 +0000] ", ""},
		{"ip", ip + "[29/Feb/2024:10:05:00 +0530]", ""},
		{"ip", "", "the line is empty"},
		{"ip", "hello", "there is no time in it"},
		{"ip", ip + "[", "its time cannot be read"},
		{"ip", ip + at[:len(at)-1], "its time cannot be read"},
		{"ip", ip + "[29/Feb/2023:10:05:00 +0000]", "its time cannot be read"},
		{"ip", ip + "[17/Foo/2015:10:05:03 +0000]", "its time cannot be read"},
		{"ip", ip + "[17/May/2015:24:05:03 +0000]", "its time cannot be read"},
		{"ip", ip + "[17/May/2015:10:60:03 +0000]", "its time cannot be read"},
		{"ip", ip + "[17/May/2015:10:05:03 0000 ]", "its time cannot be read"},
		{"ip", ip + "[31/Dec/1969:23:59:59 +0000]", "its time lies before 2000 or after tomorrow"},
		{"ip", ip + "[31/Dec/2999:23:59:59 +0000]", "its time lies before 2000 or after tomorrow"},
		{"ip", at, "there is no ip in it"},
		{"ip", " - - " + at, `its ip "-" is not an address`},
		{"host", strings.Repeat("x", 512) + " " + at, ""},
		{"host", strings.Repeat("x", 513) + " " + at, "the key has 513 bytes; at most 512"},
		{"host", "a\x00b - - " + at, "the key has a NUL in it"},
		{"host", "abcdefgh\xff - - " + at, "the key is not UTF-8"},
		{"host", "é - - " + at, ""},
		{"user", "192.0.2.1 " + at, "there is no user in it"},
		{"user", "192.0.2.1 - a b [c] " + at, ""},
		{"path", ip + at + ` "GET /a`, "there is no path in it"},
		{"path", ip + at + ` "-" 400 0`, "there is no path in it"},
		{"path", ip + at + ` "GET  HTTP/1.1"`, "the key is empty"},
		{"method", ip + at + ` "\x16\x03" 400`, "there is no method in it"},
		{"protocol", ip + at + ` "GET /a" 200`, "there is no protocol in it"},
		{"agent", ip + at + ` "GET /a" 200 1 "-" "open`, "there is no agent in it"},
		{"agent", ip + at + ` "GET /a" 200 1 "open`, "there is no agent in it"},
		{"referer", ip + at + ` "GET /a" 200 1`, "there is no referer in it"},
		{"agent", ip + at + ` "GET /a" 200 1 "-" ""`, "the key is empty"},
	} {
		malformedCase(t, Options{By: c.by, Pattern: "combined"}, c.line, c.want)
	}
	cost := Options{By: "ip", Pattern: "combined", Cost: "bytes"}
	malformedCase(t, cost, ip+at+` "GET /a" 200 -`, "")
	malformedCase(t, cost, ip+at+` "GET /a" 200 9007199254740991`, "")
	malformedCase(t, cost, ip+at+` "GET /a" 200 9007199254740992`, "the cost is not a whole number from 0 to 2^53-1")
	malformedCase(t, cost, ip+at+` "GET /a`, "there is no bytes in it")
}

func malformedCase(t *testing.T, o Options, line, want string) {
	t.Helper()
	o.Limits = benchLimits
	log := line + "\n"
	if o.Pattern == "csv" {
		log = "time,id,n\n" + log
	}
	rep, err := Run(context.Background(), inMemory([]byte(log)), o)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	if rep.Malformed == 1 {
		got = rep.BadLines[0].Reason
	}
	if got != want || rep.Lines != 1 || rep.Requests+rep.Malformed+rep.Filtered != 1 {
		t.Errorf("by %s: %.80q: %q, want %q", o.By, line, got, want)
	}
}

func TestMalformedJSON(t *testing.T) {
	for _, c := range []struct{ by, line, want string }{
		{"id", `{"time":"2026-03-14T09:00:00Z","id":"192.0.2.1"`, ""},
		{"id", `{"time":"2026-03-14T09:00:00Z","id":"192.0.2.1",,,`, ""},
		{"id", ` {"id":"\u0031","time":1773478800}`, ""},
		{"id", `{"id":"a","id":"","time":1773478800}`, ""},
		{"id", `{"time":1773478800.25,"id":7,}`, ""},
		{"id", `{"time":1773478800,"id":true}`, ""},
		{"status", `{"time":1773478800,"status":404}`, ""},
		{"a.b.c", `{"time":1773478800,"a":{"x":[{"b":1}],"b":{"c":"deep"}}}`, ""},
		{"id", `[1]`, "it is not a JSON object"},
		{"id", `{`, "its JSON is broken"},
		{"id", `{}`, "there is no time in it"},
		{"id", `{"time":1773478800}`, "there is no id in it"},
		{"id", `{"time":1773478800,"id":"192.0.2`, "its JSON is broken"},
		{"id", `{"time":1773478800,"id":12`, "its JSON is broken"},
		{"id", `{"time":1773478800,"id":null}`, "a field is null and not text or a number"},
		{"id", `{"time":1773478800,"id":[1]}`, "a field is an array and not text or a number"},
		{"id", `{"time":1773478800,"id":""}`, "the key is empty"},
		{"id", `{"time":1773478800,"id":nonsense}`, "its JSON is broken"},
		{"id", `{"time":1773478800,"id":"\q"}`, "its JSON is broken"},
		{"id", `{"time":1773478800,"id":"a` + "\xff" + `\n"}`, "the key is not UTF-8"},
		{"id", `{"time":1773478800,"id":"a\u0000"}`, "the key has a NUL in it"},
		{"id", `{"time":"yesterday","id":"a"}`, "its time cannot be read"},
		{"id", `{"time":"","id":"a"}`, "there is no time in it"},
		{"id", `{"time":"0001-01-01T00:00:00Z","id":"a"}`, "its time lies before 2000 or after tomorrow"},
		{"id", `{"time":-5,"id":"a"}`, "its time cannot be read"},
		{"id", strings.Repeat(`{"a":`, 5000), "its JSON is broken"},
	} {
		malformedCase(t, Options{By: c.by, Pattern: "json"}, c.line, c.want)
	}
	malformedCase(t, Options{Pattern: "json", By: "ip", Cost: "n"}, `{"time":1773478800,"ip":"192.0.2.1","n":1.5}`, "the cost is not a whole number from 0 to 2^53-1")
	malformedCase(t, Options{Pattern: "json", Cost: "n"}, `{"time":1773478800,"ip":"192.0.2.1"}`, "there is no n in it")
}

func TestMalformedCSV(t *testing.T) {
	o := Options{Pattern: "csv", By: "id"}
	for line, want := range map[string]string{
		"1773478800,a":                    "",
		`1773478800,"a",b"c`:              "",
		`1773478800,"a""b"`:               "",
		"1773478800":                      "there is no id in it",
		`"open,1773478800,a`:              "its time cannot be read",
		"x,a":                             "its time cannot be read",
		"1773478800,":                     "the key is empty",
		strings.Repeat("9", 70) + ",a":    "its time cannot be read",
		strings.Repeat("9", 30) + ",a":    "its time cannot be read",
		"1773478800," + "\xff":            "the key is not UTF-8",
		strings.Repeat(",", 300_000) + "": "there is no time in it",
	} {
		malformedCase(t, o, line, want)
	}
}

func TestTimesAreReadToTheMicrosecond(t *testing.T) {
	want := time.Date(2015, 5, 17, 10, 5, 3, 123456000, time.UTC).UnixMicro()
	for text, want := range map[string]int64{
		"2015-05-17T10:05:03.123456Z":          want,
		"2015-05-17T12:05:03.1234567+02:00":    want,
		"2015-05-17 10:05:03.123456":           want,
		"2015-05-17 10:05:03.123456 +0000":     want,
		"2015/05/17 10:05:03.123456":           want,
		"17/May/2015:10:05:03.123456 +0000":    want,
		"[17/May/2015:12:05:03.1234569 +0200]": want,
		"1431857103.123456":                    want,
		"2015-05-17 10:05:03.123456+00":        want,
		"2015-05-17 10:05:03.123456 UTC":       want,
		"2015-05-17 12:05:03.123456 +02:00":    want,
		"2015-05-17 10:05:03,123456 Z":         want,
		"2015-05-17T12:05:03.123456+0200":      want,
		"2015-05-17 10:05:03.123456 +0000 UTC": want,
		"1431857103123.456":                    want,
		"1431857103123456":                     want,
		"1431857103123456789":                  want,
		"1.431857103123456e9":                  want,
		"Sun, 17 May 2015 10:05:03 GMT":        want - 123456,
		"17/May/2015:10:05:03 +0000":           want - 123456,
	} {
		x := newTimes(false)
		if got, err := x.parse([]byte(text)); got != want || err != nil {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestFormatsAreDetected(t *testing.T) {
	for log, want := range map[string]string{
		"":                "combined",
		"\n\n{\"a\":1}\n": "json",
		"garbage\n192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n": "combined",
		"ip;\"Time\"\n":       "csv",
		"ip\ttimestamp\n":     "csv",
		"nothing, known\n":    "",
		"[\n  {\"a\":1}\n]\n": "json",
		"host.example - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n": "combined",
	} {
		if got := detect([]byte(log), &Options{}); got != want {
			t.Errorf("%q: %s, want %s", log, got, want)
		}
	}
}

// The columns of a W3C log are those of the last line #Fields, in a log of IIS and tabs or not.
func TestW3C(t *testing.T) {
	log := "#Software: Microsoft Internet Information Services 10.0\n#Fields: date time c-ip cs-method cs-uri-stem sc-status\n2026-03-14 09:00:00 192.0.2.7 GET /a 200\n" +
		"#Date: 2026-03-14 09:00:01\n#Fields: time date cs-uri-stem c-ip\n09:00:01\t2026-03-14\t/b c\t192.0.2.7\n09:00:02 2026-03-14 /d 192.0.2.7\n09:00:03 2026-03-14\n"
	got, rep := decisions(t, inMemory([]byte(log)), Options{Limits: benchLimits, By: "ip+path"})
	if strings.Count(got, `"key":"192.0.2.7/%2F`) != 3 || rep.Lines != 4 || rep.Malformed != 1 || *rep.Last-*rep.First != 2e6 {
		t.Errorf("%+v\n%s", rep, got)
	}
	rep, err := Run(context.Background(), inMemory([]byte("2026-03-14 09:00:00 192.0.2.7\n")), Options{Limits: benchLimits, Pattern: "w3c"})
	if err != nil || rep.Unread() == nil || !strings.Contains(rep.Unread().Error(), "there is no line #Fields before it") {
		t.Error(rep, err)
	}
}

// The elements of an array are read one by one, on any lines; one that is no object is left
// out, and an array that does not end is an error.
func TestJSONArray(t *testing.T) {
	log := " [\n{\n\"time\":1773478800,\n\"ip\":\"192.0.2.7\"}, {\"time\":1773478801,\"ip\":\"192.0.2.7\"},7\n,{\"ip\":[\"x\"],\"time\":1773478801}\n]\n"
	got, rep := decisions(t, inMemory([]byte(log)), Options{Limits: benchLimits})
	if strings.Count(got, "\n") != 2 || rep.Lines != 4 || rep.Malformed != 2 || rep.BadLines[1].Line != 4 {
		t.Errorf("%+v\n%s", rep, got)
	}
	comma, _, _ := strings.Cut(log, "7\n,")
	for _, cut := range []string{log[:60], comma, strings.Replace(log, "]\n", "", 1)} {
		_, err := Run(context.Background(), inMemory([]byte(cut)), Options{Limits: benchLimits})
		if err == nil || !strings.Contains(err.Error(), "the data stops here") {
			t.Errorf("%q: %v", cut, err)
		}
	}
	if _, err := Run(context.Background(), inMemory([]byte("[{} {}]")), Options{Limits: benchLimits}); err == nil {
		t.Error("an array without commas is read")
	}
}

// Logs that cannot be read say what to do.
func TestUnreadable(t *testing.T) {
	for log, want := range map[string]string{
		"\xfd7zXZ\x00...": "log: log is compressed with xz: unpack it first (unxz)", "\x28\xb5\x2f\xfd..": "Zstandard", "PK\x03\x04": "zip",
		"\xff\xfe1\x009\x00": "log: log is UTF-16: convert it to UTF-8 first", "\x001\x009\x002": "UTF-16", "1\x009\x002\x00": "UTF-16", "a\rb\rc": "lines that end in CR alone",
	} {
		if _, err := Run(context.Background(), inMemory([]byte(log)), Options{Limits: benchLimits}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", log, err, want)
		}
	}
}

// What stands before the address of a combined log is not taken for one.
func TestPrefixesAreNoAddresses(t *testing.T) {
	const rest = ` - - [14/Mar/2026:09:00:00 +0000] "GET /a HTTP/1.1" 200 512 "203.0.113.1" "203.0.113.2" "203.0.113.3"` + "\n"
	for prefix, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "shop.example 192.0.2.7": "192.0.2.7", "203.0.113.9, 10.0.0.1 192.0.2.7": "203.0.113.9", "[pod/web/nginx] 192.0.2.7": "192.0.2.7", "web-1  | 192.0.2.7": "",
		"Mar 14 09:00:00 web nginx: 192.0.2.7": "", "- 192.0.2.7": "", "2026-03-14T09:00:00Z stdout F 192.0.2.7": "", "79a5 bucket": "",
	} {
		got, rep := decisions(t, inMemory([]byte(prefix+rest)), Options{Limits: benchLimits})
		if want != "" && !strings.Contains(got, `"key":"`+want+`"`) || want == "" && (got != "" || rep.Unread() == nil) {
			t.Errorf("%s: %s %v", prefix, got, rep.Unread())
		}
	}
}

// A very long line is cut and counted, and the lines after it are read.
func TestVeryLongLines(t *testing.T) {
	const at = `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /`
	for _, n := range []int{lineBuffer - 100, lineBuffer, 3 * lineBuffer, maxLine + 1000} {
		log := at + strings.Repeat("x", n) + "\n" + at + "\n" + strings.Repeat("y", n) + "\n" + at
		rep, err := Run(context.Background(), inMemory([]byte(log)), Options{Limits: benchLimits})
		if err != nil || rep.Lines != 4 || rep.Requests != 3 || rep.Malformed != 1 || len(rep.BadLines[0].Text) > 100 {
			t.Errorf("%d: %+v, %v", n, rep, err)
		}
	}
}

// fuzzParser checks that a parser does not panic and returns a key from the line.
func fuzzParser(f *testing.F, format string, names []string, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	var readers []*reader
	for _, by := range names {
		for _, o := range []Options{{Cost: "1"}, {Cost: "bytes"}, {Cost: "1", Where: []string{"ip~1"}, Plan: []string{"bytes"}}} {
			o.By, o.Pattern = by, format
			fields, err := newFields(&o, &lineup{keys: true, paths: by == "ip"})
			if err != nil {
				f.Fatal(err)
			}
			p, _, err := newParser(nil, &o, fields.list)
			if err != nil {
				f.Fatal(err)
			}
			if c, ok := p.(*csvLines); ok {
				if err := c.header([]byte("time,ip,bytes")); err != nil {
					f.Fatal(err)
				}
			}
			readers = append(readers, &reader{parser: p, fields: fields, values: make([]value, len(fields.list))})
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		before := bytes.Clone(line)
		for _, r := range readers {
			var rec record
			err := r.parse(line, &rec.T, r.values)
			if err == nil {
				err = r.fields.fill(&rec, r.values)
			}
			if err != nil && !errors.As(err, new(malformed)) {
				t.Errorf("%q: a line ends the replay: %v", line, err)
			}
			if err == nil && len(rec.Key) > 3*len(line)+len("%2F64") {
				t.Errorf("%q: key %q is longer than its line, escaped", line, rec.Key)
			}
			if rec.Cost < 0 {
				t.Errorf("%q: cost %d", line, rec.Cost)
			}
		}
		if !bytes.Equal(line, before) {
			t.Errorf("%q was changed", before)
		}
		detect(line, &Options{})
	})
}

func FuzzCombined(f *testing.F) {
	fuzzParser(f, "combined", []string{"ip", "user", "path", "agent"},
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 5 "-" "x\"y"`, `a [17/May/2015:10:05:03.5 +0000]`, `[[[[`)
}

func FuzzJSONLine(f *testing.F) {
	fuzzParser(f, "json", []string{"ip", "request.method"},
		`{"time":1773478800.5,"ip":"a\u00e9","bytes":7,"request":{"method":"GET"}}`, `{"time":"2026-03-14T09:00:00Z","ip":[{"}":1}]`, `{"`)
}

func FuzzCSVLine(f *testing.F) {
	fuzzParser(f, "csv", []string{"ip"}, `1773478800,"a""b",7`, `"2026-03-14 09:00:00",a,"`, `,,`)
}

func FuzzGrok(f *testing.F) {
	fuzzParser(f, `^%{NOTSPACE:time} %{DATA:ip} %{INT:bytes}`, []string{"ip"}, `1773478800 192.0.2.1, 192.0.2.2 7`)
}
