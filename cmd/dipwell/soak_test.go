package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	soakKeys      = 10000
	soakClients   = 16
	soakMaxRSS    = 60e6
	soakMaxGrowth = 1.15 // of the last quarter's median over the second's; the first is warming up
)

// TestSoak keeps a service at half of what it can do, for DIPWELL_SOAK (10m, by
// `make soak`), and looks for what grows: memory, goroutines. It tells the
// most memory that the service took at 10,000 keys. Without the variable it
// runs for three seconds, in which only a leak of every call would be seen: how
// much memory a process takes at its start depends on how often it comes to run.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(cmp.Or(os.Getenv("DIPWELL_SOAK"), "3s"))
	if err != nil || length < time.Second {
		t.Fatalf("DIPWELL_SOAK: %q is not a length of time such as 10m", os.Getenv("DIPWELL_SOAK"))
	}
	args := []string{"--listen", "127.0.0.1:0", "--limit", "api=1/1m,burst=1000000"}
	if store := os.Getenv("DIPWELL_SOAK_STORE"); store != "" {
		args = append(args, "--store", store)
	}
	program, maxGrowth := shipped, soakMaxGrowth
	if length < time.Minute/2 {
		program, maxGrowth = built, 3
	}
	p := startWith(t, program, args...)
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: soakClients, MaxConnsPerHost: soakClients}, Timeout: patience}
	most := offer(t, c, p.url, 0, time.Second)
	half := max(most/2, 1)
	var rss, routines []float64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(max(length/40, 50*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				m := scrape(t, c, p.url)
				rss, routines = append(rss, m("process_resident_memory_bytes")), append(routines, m("go_goroutines"))
			}
		}
	})
	done := offer(t, c, p.url, half, length)
	close(stop)
	wg.Wait()
	for len(rss) < 4 { // the machine did not come to it
		m := scrape(t, c, p.url)
		rss, routines = append(rss, m("process_resident_memory_bytes")), append(routines, m("go_goroutines"))
	}
	m := scrape(t, c, p.url)
	quarter := func(v []float64, i int) float64 { return middle(v[len(v)*i/4 : len(v)*(i+1)/4]) }
	t.Logf("%v at %.0f calls/s of %.0f (asked for %.0f): %.0f keys; RSS median %.1f MB in the second quarter, %.1f MB in the last, at most %.1f MB; goroutines %.0f and %.0f",
		length, done, most, half, m("dipwell_keys"), quarter(rss, 1)/1e6, quarter(rss, 3)/1e6, slices.Max(rss)/1e6, quarter(routines, 1), quarter(routines, 3))
	if got := quarter(rss, 3); got > quarter(rss, 1)*maxGrowth {
		t.Errorf("memory grew from %.1f to %.1f MB", quarter(rss, 1)/1e6, got/1e6)
	}
	if got := quarter(routines, 3); got > quarter(routines, 1)+soakClients {
		t.Errorf("goroutines grew from %.0f to %.0f", quarter(routines, 1), got)
	}
	if got := slices.Max(rss); got > soakMaxRSS && length >= time.Minute/2 && os.Getenv("DIPWELL_SOAK_STORE") == "" { // it follows the load, which seconds do not tell
		t.Errorf("the service took %.1f MB at %d keys; at most %.0f", got/1e6, soakKeys, soakMaxRSS/1e6)
	}
}

// offer sends calls for a time, on a schedule unless perSecond is 0, and
// returns how many a second were answered.
func offer(t *testing.T, c *http.Client, url string, perSecond float64, length time.Duration) float64 {
	t.Helper()
	var sent, failed atomic.Int64
	began := time.Now()
	var wg sync.WaitGroup
	for range soakClients {
		wg.Go(func() {
			for time.Since(began) < length {
				n := sent.Add(1)
				if perSecond > 0 {
					time.Sleep(time.Until(began.Add(time.Duration(float64(n) / perSecond * 1e9))))
				}
				body := []byte(`{"limit":"api","key":"user:` + strconv.FormatInt(n*7919%soakKeys, 10) + `"}`)
				res, err := c.Post(url+"/v1/take", "application/json", bytes.NewReader(body))
				if err != nil {
					failed.Add(1)
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusTooManyRequests {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d calls failed", n, sent.Load())
	}
	return float64(sent.Load()) / time.Since(began).Seconds()
}

// scrape returns the metrics of a service by their names.
func scrape(t *testing.T, c *http.Client, url string) func(name string) float64 {
	t.Helper()
	res, err := c.Get(url + "/metrics")
	if err != nil {
		t.Error(err)
		return func(string) float64 { return 0 }
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return func(name string) float64 {
		m := regexp.MustCompile(fmt.Sprintf(`(?m)^%s (\S+)$`, name)).FindSubmatch(b)
		if m == nil {
			t.Errorf("%s is not in /metrics", name)
			return 0
		}
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Error(err)
		}
		return v
	}
}

func middle(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
