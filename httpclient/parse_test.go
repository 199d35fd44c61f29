package httpclient

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// header parses lines of the form "Name: value".
func header(lines string) http.Header {
	h := http.Header{}
	for line := range strings.Lines(lines) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			h.Add(name, strings.Trim(value, " \t")) // as net/http does
		}
	}
	return h
}

func (a *advice) text() string {
	var b strings.Builder
	if a.RetryAfter >= 0 {
		fmt.Fprintf(&b, "retry=%v ", a.RetryAfter)
	}
	if a.Bucket != "" {
		fmt.Fprintf(&b, "bucket=%s ", a.Bucket)
	}
	for _, q := range a.quotas {
		fmt.Fprintf(&b, "[%s", q.Name)
		if q.Limit >= 0 {
			fmt.Fprintf(&b, " of %d", q.Limit)
		}
		if q.Remaining >= 0 {
			fmt.Fprintf(&b, " left %d", q.Remaining)
		}
		if q.Reset >= 0 {
			fmt.Fprintf(&b, " reset %v", q.Reset)
		}
		if q.Window >= 0 {
			fmt.Fprintf(&b, " window %v", q.Window)
		}
		b.WriteString("] ")
	}
	if wait, known := a.wait(); known {
		fmt.Fprintf(&b, "wait %v", wait)
	}
	return strings.TrimSpace(b.String())
}

var samples = []struct{ name, header, want string }{
	{"nothing", "Content-Type: text/plain", ""},
	{"retry-after seconds (RFC 9110)", "Retry-After: 120", "retry=2m0s wait 2m0s"},
	{"retry-after date (RFC 9110), the service's clock 10 minutes behind", "Date: Fri, 31 Dec 1999 23:49:59 GMT\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT", "retry=10m0s wait 10m0s"},
	{"retry-after date without a date", "Retry-After: Tue, 14 Nov 2023 22:15:00 GMT", "retry=1m40s wait 1m40s"},
	{"retry-after date that has passed", "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", "retry=0s wait 0s"},
	{"retry-after date from a cache", "Date: Fri, 31 Dec 1999 23:59:00 GMT\nAge: 30\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT", "retry=29s wait 29s"},
	{"retry-after with a fraction", "Retry-After: 1.337", "retry=1.337s wait 1.337s"},
	{"IETF draft 11", "RateLimit-Policy: \"burst\";q=100;w=60,\"daily\";q=1000;w=86400\nRateLimit: \"default\";r=50;t=30",
		"[default left 50 reset 30s]"},
	{"IETF draft 11, several", "RateLimit-Policy: \"hour\";q=1000;w=3600, \"day\";q=5000;w=86400\nRateLimit: \"hour\";r=0;t=1800, \"day\";r=4000;t=36000",
		"[hour of 1000 left 0 reset 30m0s window 1h0m0s] [day of 5000 left 4000 reset 10h0m0s window 24h0m0s] wait 30m0s"},
	{"IETF draft 11, partition key and two lines", "RateLimit: \"peruser\";r=0;t=5;pk=:c2FtcGxl:\nRateLimit: \"all\";r=9", "[peruser left 0 reset 5s] [all left 9] wait 5s"},
	{"IETF, a token as name", "RateLimit: default;r=50;t=30", "[default left 50 reset 30s]"},
	{"IETF, escapes", `RateLimit: "a\"b";r=1;t=2`, `[a"b left 1 reset 2s]`},
	{"IETF, retry-after goes before", "RateLimit: \"default\";r=0;t=30\nRetry-After: 5", "retry=5s [default left 0 reset 30s] wait 5s"},
	{"IETF draft 07", "RateLimit: limit=100, remaining=0, reset=5", "[ of 100 left 0 reset 5s] wait 5s"},
	{"IETF drafts to 06", "RateLimit-Limit: 100, 100;w=60\nRateLimit-Remaining: 50\nRateLimit-Reset: 50", "[ of 100 left 50 reset 50s window 1m0s]"},
	{"dipwell", "RateLimit-Policy: \"login\";q=20;w=240\nRateLimit: \"login\";r=7;t=84", "[login of 20 left 7 reset 1m24s window 4m0s]"},
	{"Cloudflare", "Ratelimit: \"default\";r=50;t=30\nRatelimit-Policy: \"default\";q=1200;w=300", "[default of 1200 left 50 reset 30s window 5m0s]"},
	{"Cloudflare, its earlier date", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nX-Ratelimit-Limit: 1200\nX-Ratelimit-Remaining: 0\nX-Ratelimit-Reset: Tue, 14 Nov 2023 22:05:00 GMT", "[ of 1200 left 0 reset 5m0s] wait 5m0s"},
	{"GitHub", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nX-GitHub-Request-Id: C0FF:EE\nx-ratelimit-limit: 5000\nx-ratelimit-remaining: 4999\nx-ratelimit-reset: 1700002800\nx-ratelimit-resource: core\nx-ratelimit-used: 1",
		"bucket=core [ of 5000 left 4999 reset 1h0m0s]"},
	{"GitHub, used up, our clock an hour ahead", "Date: Tue, 14 Nov 2023 21:13:20 GMT\nx-ratelimit-limit: 60\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1699996500\nx-ratelimit-resource: search",
		"bucket=search [ of 60 left 0 reset 1m40s] wait 1m40s"},
	{"GitHub, secondary", "retry-after: 60\nx-ratelimit-limit: 5000\nx-ratelimit-remaining: 4990\nx-ratelimit-resource: core", "retry=1m0s bucket=core [ of 5000 left 4990] wait 1m0s"},
	{"OpenAI", "x-ratelimit-limit-requests: 60\nx-ratelimit-limit-tokens: 150000\nx-ratelimit-remaining-requests: 59\nx-ratelimit-remaining-tokens: 149984\nx-ratelimit-reset-requests: 1s\nx-ratelimit-reset-tokens: 6m0s",
		"[requests of 60 left 59 reset 1s] [tokens of 150000 left 149984 reset 6m0s]"},
	{"OpenAI, used up: one request is back after its share", "x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 1m0s", "[requests of 60 left 0 reset 1m0s] wait 1s"},
	{"OpenAI, milliseconds", "retry-after: 2\nretry-after-ms: 1337\nx-ratelimit-limit-tokens: 60000\nx-ratelimit-remaining-tokens: 59988\nx-ratelimit-reset-tokens: 12ms", "retry=1.337s [tokens of 60000 left 59988 reset 12ms] wait 1.337s"},
	{"Anthropic", "date: Tue, 14 Nov 2023 22:00:00 GMT\nanthropic-ratelimit-requests-limit: 50\nanthropic-ratelimit-requests-remaining: 49\nanthropic-ratelimit-requests-reset: 2023-11-14T22:00:02Z\n" +
		"anthropic-ratelimit-input-tokens-limit: 40000\nanthropic-ratelimit-input-tokens-remaining: 0\nanthropic-ratelimit-input-tokens-reset: 2023-11-14T22:01:00Z\nretry-after: 30",
		"retry=30s [requests of 50 left 49 reset 2s] [input-tokens of 40000 left 0 reset 1m0s] wait 30s"},
	{"Discord", "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1470173023.123\nX-RateLimit-Reset-After: 64.57", "[ of 5 left 0 reset 1m4.57s] wait 1m4.57s"},
	{"Discord, an instant with a fraction", "Date: Tue, 02 Aug 2016 21:23:43 GMT\nX-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1470173024.5", "[ of 1 left 0 reset 1.5s] wait 1.5s"},
	{"GitLab", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nRateLimit-Limit: 60\nRateLimit-Observed: 67\nRateLimit-Remaining: 0\nRateLimit-Reset: 1699999230\nRetry-After: 30", "retry=30s [ of 60 left 0 reset 30s] wait 30s"},
	{"Twitter", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nx-rate-limit-limit: 900\nx-rate-limit-remaining: 899\nx-rate-limit-reset: 1699999260", "[ of 900 left 899 reset 1m0s]"},
	{"milliseconds since the epoch", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1699999201500", "[ left 0 reset 1.5s] wait 1.5s"},

	{"retry-after as seconds since the epoch", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nRetry-After: 1699999260", "retry=1m0s wait 1m0s"},
	{"retry-after as milliseconds since the epoch", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nRetry-After: 1699999201500", "retry=1.5s wait 1.5s"},
	{"retry-after twice, joined by a proxy", "Retry-After: 60, 60", "retry=1m0s wait 1m0s"},
	{"retry-after twice, with different waits", "Retry-After: 30, 2.5", "retry=30s wait 30s"},
	{"retry-after in two lines", "Retry-After: 30\nRetry-After: 60", "retry=1m0s wait 1m0s"},
	{"retry-after beside a word", "Retry-After: 60, soon", "retry=1m0s wait 1m0s"},
	{"retry-after in RFC 3339", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nRetry-After: 2023-11-14T22:00:30.5Z", "retry=30.5s wait 30.5s"},
	{"Azure, milliseconds", "x-ms-retry-after-ms: 1500\nRetry-After: 2", "retry=1.5s wait 1.5s"},
	{"Azure, a limit without numbers", "x-ratelimit-limit-tokens: -1\nx-ratelimit-remaining-tokens: -1\nx-ratelimit-reset-tokens: 0", "[tokens reset 0s]"},
	{"OpenAI, without a reset", "x-ratelimit-remaining-requests: 0", "[requests left 0]"},
	{"OpenAI's fields with an instant", "Date: Tue, 14 Nov 2023 22:00:00 GMT\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 1699999260", "[requests left 0 reset 1m0s] wait 1m0s"},

	{"huge seconds", "Retry-After: 99999999999999999999999999", "retry=24h0m0s wait 24h0m0s"},
	{"out of a float's range", "Retry-After: " + strings.Repeat("9", 399), "retry=24h0m0s wait 24h0m0s"},
	{"longer than any number", "Retry-After: " + strings.Repeat("9", 401), ""},
	{"negative", "Retry-After: -5", ""},
	{"NaN", "Retry-After: NaN\nX-RateLimit-Reset-After: NaN\nX-RateLimit-Remaining: nan", "[]"},
	{"infinite", "Retry-After: Inf\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: +Inf", "[requests left 0]"},
	{"exponents and hexadecimals", "Retry-After: 1e9", ""},
	{"thousands of years", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", "retry=24h0m0s wait 24h0m0s"},
	{"an epoch beyond time", "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 99999999999999999999", "[ left 0 reset 24h0m0s] wait 24h0m0s"},
	{"an absurd Date", "Date: Mon, 01 Jan 0001 00:00:00 GMT\nRetry-After: Tue, 14 Nov 2023 22:15:00 GMT", "retry=24h0m0s wait 24h0m0s"},
	{"a duration out of form", "x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 6m-1s", "[tokens left 0]"},
	{"a broken structured field", "RateLimit: \"default\";r=50;t=30, ,", ""},
	{"r below 0", "RateLimit: \"default\";r=-1;t=30", ""},
	{"r missing", "RateLimit: \"default\";t=30", ""},
	{"a field of 5000 bytes", "RateLimit: \"" + strings.Repeat("x", 5000) + "\";r=0;t=30", ""},
	{"twelve items", "RateLimit: " + strings.Repeat(`"x";r=1, `, 11) + `"x";r=1`, strings.TrimSpace(strings.Repeat("[x left 1] ", 8))},
}

func TestParse(t *testing.T) {
	now := time.Unix(1_700_000_000, 0) // Tue, 14 Nov 2023 22:13:20 GMT
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			if got := parse(header(s.header), now, 24*time.Hour).text(); got != s.want {
				t.Errorf("got  %s\nwant %s", got, s.want)
			}
		})
	}
}

// Whatever a service sends, no time is negative or above the bound, and nothing
// panics.
func FuzzParse(f *testing.F) {
	for _, s := range samples {
		f.Add(s.header)
	}
	const most = 24 * time.Hour
	f.Fuzz(func(t *testing.T, lines string) {
		a := parse(header(lines), time.Unix(1_700_000_000, 0), most)
		bounded := func(d time.Duration) {
			if d != unknown && (d < 0 || d > most) {
				t.Errorf("%v is out of bounds: %s", d, a.text())
			}
		}
		bounded(a.RetryAfter)
		for _, q := range a.quotas {
			bounded(q.Reset)
			bounded(q.Window)
			if q.Limit < unknown || q.Remaining < unknown {
				t.Errorf("negative: %s", a.text())
			}
		}
		if wait, known := a.wait(); known {
			bounded(max(wait, 0))
		}
	})
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"6m0s", "1s", "12ms", "1d2h3m4.5s", "90", "1.5h", "17h8m13.2s", "-1s", "1", "s", "1µs", "..", "9e9s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := duration(s)
		if ok && !(got >= 0) {
			t.Errorf("%q: %v", s, got)
		}
		want, err := time.ParseDuration(s)
		if err != nil || strings.ContainsAny(s, "+-μ") || s == "" {
			return
		}
		if diff := got - want.Seconds(); !ok || diff > 1e-6+want.Seconds()*1e-12 || diff < -1e-6-want.Seconds()*1e-12 {
			t.Errorf("%q: %v, %v; time.ParseDuration says %v", s, got, ok, want)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, s := range samples {
		if s.name != "nothing" && s.name != "dipwell" && s.name != "OpenAI" && s.name != "GitHub" {
			continue
		}
		b.Run(s.name, func(b *testing.B) {
			h, now := header(s.header), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				parse(h, now, time.Hour)
			}
		})
	}
}
