package main

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// serve starts the program and returns its address and a function that stops
// it.
func serve(bin string, args ...string) (base string, stop func()) {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	addr := l.Addr().String()
	check(l.Close())
	cmd := exec.Command(bin, append([]string{"serve", "--listen", addr, "--log-refusals", "0"}, args...)...)
	cmd.Stderr = io.Discard
	check(cmd.Start())
	base = "http://" + addr
	for range 500 {
		if r, err := http.Get(base + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				break
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return base, func() { cmd.Process.Kill(); cmd.Wait() }
}

// seen counts the answers that some callers got.
type seen struct {
	calls, failed int
	ms            []float64 // how long each call took
	perSecond     float64
}

func (s *seen) percentile(p int) float64 {
	if len(s.ms) == 0 {
		return 0
	}
	slices.Sort(s.ms)
	return s.ms[min(len(s.ms)-1, len(s.ms)*p/100)]
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024}}

// callers makes calls one after the other for a while, each on a key that
// key chooses, and counts the answers that the store decided.
func callers(base, limit string, n int, length time.Duration, key func(caller, call int) string) *seen {
	var mu sync.Mutex
	var all seen
	var wg sync.WaitGroup
	start := time.Now()
	for c := range n {
		wg.Go(func() {
			var one seen
			for i := 0; time.Since(start) < length; i++ {
				one.call(base, limit, key(c, i))
			}
			mu.Lock()
			defer mu.Unlock()
			all.calls += one.calls
			all.failed += one.failed
			all.ms = append(all.ms, one.ms...)
		})
	}
	wg.Wait()
	all.perSecond = float64(all.calls) / time.Since(start).Seconds()
	return &all
}

func (s *seen) call(base, limit, key string) {
	start := time.Now()
	r, err := client.Post(base+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader(url.Values{"limit": {limit}, "key": {key}}.Encode()))
	check(err)
	io.Copy(io.Discard, r.Body)
	r.Body.Close()
	s.calls++
	s.ms = append(s.ms, float64(time.Since(start).Microseconds())/1e3)
	if r.StatusCode != http.StatusOK {
		s.failed++
	}
}
