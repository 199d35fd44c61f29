package replay

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestCombinedFields(t *testing.T) {
	const line = `2001:db8::7 - ann [17/May/2015:10:05:03 +0200] "GET /a/b?c=\"d\" HTTP/1.1" 404 512 "https://example.org/x" "agent \\" extra "1.2"`
	for by, want := range map[string]string{
		"ip": "2001:db8::7", "host": "2001:db8::7", "user": "ann", "method": "GET", "path": "/a/b", "url": `/a/b?c=\"d\"`,
		"protocol": "HTTP/1.1", "request": `GET /a/b?c=\"d\" HTTP/1.1`, "status": "404", "bytes": "512",
		"referer": "https://example.org/x", "agent": `agent \\`,
	} {
		p, err := newCombined(nil, []field{{"by", by}})
		if err != nil {
			t.Fatal(err)
		}
		var rec record
		values := make([]value, 1)
		if err := p.parse([]byte(line), &rec.t, values); err != nil || values[0].err != nil || string(values[0].text) != want {
			t.Errorf("%s: %q, %v, %v; want %q", by, values[0].text, err, values[0].err, want)
		}
		if want := time.Date(2015, 5, 17, 8, 5, 3, 0, time.UTC).UnixMicro(); rec.t != want {
			t.Errorf("%s: time %d, want %d", by, rec.t, want)
		}
	}
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
		{"ip", "host.example - - " + at, ""},
		{"ip", ip + "[17/May/2015:10:05:03.123456 +0000] ", ""},
		{"ip", ip + "[17/May/2015:10:05:60 +0000]", ""},
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
		{"ip", ip + "[31/Dec/1969:23:59:59 +0000]", "its time lies before 1970 or after 2255"},
		{"ip", ip + "[31/Dec/2999:23:59:59 +0000]", "its time lies before 1970 or after 2255"},
		{"ip", at, "there is no address before its time"},
		{"ip", " - - " + at, "there is no address before its time"},
		{"ip", strings.Repeat("x", 512) + " " + at, ""},
		{"ip", strings.Repeat("x", 513) + " " + at, "the key has 513 bytes; at most 512"},
		{"ip", "a\x00b - - " + at, "the key has a NUL in it"},
		{"ip", "abcdefgh\xff - - " + at, "the key is not UTF-8"},
		{"ip", "é - - " + at, ""},
		{"user", "192.0.2.1 " + at, "there is no user before its time"},
		{"user", "192.0.2.1 - a b [c] " + at, ""},
		{"path", ip + at + ` "GET /a`, "its request has no closing quote"},
		{"path", ip + at + ` "-" 400 0`, "its request has no path"},
		{"path", ip + at + ` "GET  HTTP/1.1"`, "its request has no path"},
		{"method", ip + at + ` "\x16\x03" 400`, "its request has no method"},
		{"protocol", ip + at + ` "GET /a" 200`, "its request has no protocol"},
		{"status", ip + at + ` "GET /a" -`, "its status is not three digits"},
		{"bytes", ip + at + ` "GET /a" 200 x`, "its bytes are not a number"},
		{"agent", ip + at + ` "GET /a" 200 1 "-" "open`, "its agent is missing or has no closing quote"},
		{"agent", ip + at + ` "GET /a" 200 1 "open`, "its referer is missing or has no closing quote"},
		{"referer", ip + at + ` "GET /a" 200 1`, "its referer is missing or has no closing quote"},
		{"agent", ip + at + ` "GET /a" 200 1 "-" ""`, "the key is empty"},
	} {
		malformedCase(t, Options{By: c.by, Format: "combined"}, c.line, c.want)
	}
	cost := Options{By: "ip", Format: "combined", Cost: "bytes"}
	malformedCase(t, cost, ip+at+` "GET /a" 200 -`, "")
	malformedCase(t, cost, ip+at+` "GET /a" 200 9007199254740991`, "")
	malformedCase(t, cost, ip+at+` "GET /a" 200 9007199254740992`, "the cost is not a whole number from 0 to 2^53-1")
	malformedCase(t, cost, ip+at+` "GET /a`, "its request has no closing quote")
}

func malformedCase(t *testing.T, o Options, line, want string) {
	t.Helper()
	o.Limits = benchLimits
	rep, err := Run(context.Background(), inMemory([]byte(line+"\n")), o)
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
		{"ip", `{"time":"2026-03-14T09:00:00Z","ip":"192.0.2.1"`, ""},
		{"ip", `{"time":"2026-03-14T09:00:00Z","ip":"192.0.2.1",,,`, ""},
		{"ip", ` {"ip":"\u0031","time":1773478800}`, ""},
		{"ip", `{"ip":"a","ip":"","time":1773478800}`, ""},
		{"ip", `{"time":1773478800.25,"ip":7,}`, ""},
		{"ip", `{"time":1773478800,"ip":true}`, ""},
		{"status", `{"time":1773478800,"status":404}`, ""},
		{"a.b.c", `{"time":1773478800,"a":{"x":[{"b":1}],"b":{"c":"deep"}}}`, ""},
		{"ip", `[1]`, "it is not a JSON object"},
		{"ip", `{`, "its JSON is broken"},
		{"ip", `{}`, "there is no time in it"},
		{"ip", `{"time":1773478800}`, "there is no ip in it"},
		{"ip", `{"time":1773478800,"ip":"192.0.2`, "its JSON is broken"},
		{"ip", `{"time":1773478800,"ip":12`, "its JSON is broken"},
		{"ip", `{"time":1773478800,"ip":null}`, "a field is null and not text or a number"},
		{"ip", `{"time":1773478800,"ip":[1]}`, "a field is an array and not text or a number"},
		{"ip", `{"time":1773478800,"ip":""}`, "the key is empty"},
		{"ip", `{"time":1773478800,"ip":nonsense}`, "its JSON is broken"},
		{"ip", `{"time":1773478800,"ip":"\q"}`, "its JSON is broken"},
		{"ip", `{"time":1773478800,"ip":"a` + "\xff" + `\n"}`, "the key is not UTF-8"},
		{"ip", `{"time":1773478800,"ip":"a\u0000"}`, "the key has a NUL in it"},
		{"ip", `{"time":"yesterday","ip":"a"}`, "its time cannot be read"},
		{"ip", `{"time":"","ip":"a"}`, "there is no time in it"},
		{"ip", `{"time":"0001-01-01T00:00:00Z","ip":"a"}`, "its time lies before 1970 or after 2255"},
		{"ip", `{"time":-5,"ip":"a"}`, "its time cannot be read"},
		{"ip", strings.Repeat(`{"a":`, 5000), "its JSON is broken"},
	} {
		malformedCase(t, Options{By: c.by, Format: "json"}, c.line, c.want)
	}
	malformedCase(t, Options{Format: "json", Cost: "n"}, `{"time":1773478800,"ip":"a","n":1.5}`, "the cost is not a whole number from 0 to 2^53-1")
	malformedCase(t, Options{Format: "json", Cost: "n"}, `{"time":1773478800,"ip":"a"}`, "there is no n in it")
}

func TestMalformedCSV(t *testing.T) {
	o := Options{Format: "csv", Columns: "time,ip,n"}
	for line, want := range map[string]string{
		"1773478800,a":                    "",
		`1773478800,"a",b"c`:              "",
		`1773478800,"a""b"`:               "",
		"1773478800":                      "it has 1 field; 2 are needed",
		`1773478800,"open`:                "a quoted field is not closed on its line",
		`1773478800,"a"b`:                 "there is text after a closing quote",
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
		"1431857103.1234569":                   want,
		"1431857103123.456":                    want,
		"1431857103123456":                     want,
		"1431857103123456789":                  want,
		"1.431857103123456e9":                  want,
		"Sun, 17 May 2015 10:05:03 GMT":        want - 123456,
		"17/May/2015:10:05:03 +0000":           want - 123456,
		"0":                                    0,
	} {
		var x textTimes
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
		"ip;\"Time\"\n":    "csv",
		"ip\ttimestamp\n":  "csv",
		"nothing, known\n": "combined",
	} {
		if got := detect([]byte(log)); got != want {
			t.Errorf("%q: %s, want %s", log, got, want)
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
func fuzzParser(f *testing.F, open func(*Options, []field) (parser, error), names []string, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	var readers []*reader
	for _, by := range names {
		for _, o := range []Options{{Cost: "1"}, {Cost: "bytes"}, {Cost: "1", Where: []string{"ip~1"}, Plan: []string{"bytes"}}} {
			o.By, o.Columns = by, "time,ip,bytes"
			fields, err := newFields(&o, by == "ip", nil)
			if err != nil {
				f.Fatal(err)
			}
			p, err := open(&o, fields.list)
			if err != nil {
				f.Fatal(err)
			}
			readers = append(readers, &reader{parser: p, fields: fields, values: make([]value, len(fields.list))})
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		before := bytes.Clone(line)
		for _, r := range readers {
			var rec record
			err := r.parse(line, &rec.t, r.values)
			if err == nil {
				err = r.fields.fill(&rec, r.values)
			}
			if err != nil && !errors.As(err, new(malformed)) {
				t.Errorf("%q: a line ends the replay: %v", line, err)
			}
			if err == nil && len(rec.key) > 3*len(line) {
				t.Errorf("%q: key %q is longer than its line, escaped", line, rec.key)
			}
			if rec.cost < 0 {
				t.Errorf("%q: cost %d", line, rec.cost)
			}
		}
		if !bytes.Equal(line, before) {
			t.Errorf("%q was changed", before)
		}
		detect(line)
	})
}

func FuzzCombined(f *testing.F) {
	fuzzParser(f, newCombined, []string{"ip", "user", "path", "agent"},
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 5 "-" "x\"y"`, `a [17/May/2015:10:05:03.5 +0000]`, `[[[[`)
}

func FuzzJSONLine(f *testing.F) {
	fuzzParser(f, newJSONLines, []string{"ip", "request.method"},
		`{"time":1773478800.5,"ip":"a\u00e9","bytes":7,"request":{"method":"GET"}}`, `{"time":"2026-03-14T09:00:00Z","ip":[{"}":1}]`, `{"`)
}

func FuzzCSVLine(f *testing.F) {
	fuzzParser(f, newCSV, []string{"ip"}, `1773478800,"a""b",7`, `"2026-03-14 09:00:00",a,"`, `,,`)
}
