package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds of what is read of an answer.
const (
	maxProbe   = 64 << 10
	maxMetrics = 16 << 20
)

// server checks a running service through its public paths.
func (x *examination) server(ctx context.Context, client *http.Client, base string) {
	base = strings.TrimSuffix(cmp.Or(base, "http://127.0.0.1:8080"), "/")
	get := func(ctx context.Context, path string, most int64) (status int, body []byte, header http.Header, err error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
		if err != nil {
			return 0, nil, nil, err
		}
		res, err := client.Do(r)
		if err != nil {
			return 0, nil, nil, err
		}
		defer res.Body.Close()
		body, err = readAnswer(res, most)
		return res.StatusCode, body, res.Header, err
	}
	start := time.Now()
	status, _, header, err := get(ctx, "/healthz", maxProbe)
	if took := time.Since(start); err == nil && status == http.StatusOK {
		x.ok("service", "%s answers", base)
		if date, err := http.ParseTime(header.Get("Date")); err == nil { // Date is rounded down to the second
			x.clock("the service's clock", date.Add(time.Second/2).Sub(start.Add(took/2)).Round(time.Millisecond), (time.Second+took)/2)
		}
	} else {
		if err == nil {
			err = fmt.Errorf("/healthz is %d", status)
		}
		x.problem("service", "", "%s does not answer: %v", base, unreached(timeoutError(err)))
		return
	}
	status, body, _, err := get(ctx, "/readyz", maxProbe)
	switch {
	case err != nil:
		x.problem("store", "", "/readyz: %v", timeoutError(err))
	case status != http.StatusOK:
		x.problem("store", "see the service's log, and run dipwell doctor --store there", "/readyz is %d: %s", status, problem(http.StatusText(status), body))
	default:
		x.ok("store", "/readyz is %d: it can decide", status)
	}
	x.latency(ctx, "looks at /healthz", func(ctx context.Context) error {
		_, _, _, err := get(ctx, "/healthz", maxProbe)
		return timeoutError(err)
	})
	status, body, _, err = get(ctx, "/metrics", maxMetrics)
	if err != nil || status != http.StatusOK {
		x.warn("metrics", "", "/metrics cannot be read: status %d, %v", status, timeoutError(err))
		return
	}
	x.metrics(samples(body))
}

// metrics judges the counters of a service since it started.
func (x *examination) metrics(m map[string]float64) {
	if m["dipwell_config_last_reload_failed"] == 1 {
		x.problem("configuration", "see the service's log, or: dipwell config check FILE", "the file, or a file of descriptors, is invalid, and an older one is in force")
	}
	x.judge(m["dipwell_config_drift"] > 0, verdictWarning, "drift", "see the service's log, or run dipwell doctor --config FILE --store URL there",
		"the store differs in %s that the service names", howMany(int64(m["dipwell_config_drift"]), "limit"))
	for _, c := range []struct{ name, check, thing, rest, advice string }{
		{"dipwell_store_errors_total", "store", "call", "that the store could not answer", "see the service's log for when and why"},
		{"dipwell_store_full_total", "store", "call", "for a new key, hold or override while the store was full", "raise max_keys, max_key_bytes, max_holds or max_overrides, whichever the answers name, or look at dipwell top for who makes keys"},
		{"dipwell_fallbacks_total", "store", "decision", "without the store", "see the service's log for when and why"},
		{"dipwell_shed_total", "service", "call", "turned away because too many were in flight", "the store is slow, or max_in_flight too small"},
		{"dipwell_unknown_limit_total", "limits", "call", "for limits that are not defined", "a caller's mistake, or a limit that the configuration lost"},
	} {
		x.judge(m[c.name] > 0, verdictWarning, c.check, c.advice, "%s %s since the service began", howMany(int64(m[c.name]), c.thing), c.rest)
	}
}

// samples parses Prometheus's text format, and sums the values of each name over its
// labels.
func samples(text []byte) map[string]float64 {
	out := map[string]float64{}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		line := s.Text()
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "{")
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil && !strings.HasPrefix(line, "#") {
			out[name] += v
		}
	}
	return out
}
