package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/report"
)

const (
	restLength = 60 * time.Second // time in which each viewer has made every request once

	viewers    = 100
	manyLimits = 200
	mostCost   = 0.02 // largest share of the decisions that all viewers together may cost
	firstPaint = 150  // ms
)

// page measures what the viewers of the page cost, and how long it takes to appear.
func (b *bench) page(ours *contender) {
	var calls, times [2][]float64 // index 0: without viewers, 1: with them
	load{ours.addr, b.conns, b.length, 0, 0}.run()
	for range b.rounds {
		for i, n := range []int{0, viewers} {
			leave := watch(ours.addr, n)
			begun, server := time.Now(), must(cpu.Process(ours.pid))
			done, _ := load{ours.addr, b.conns, b.length, 0, 0}.run()
			times[i] = append(times[i], float64((must(cpu.Process(ours.pid))-server).Microseconds())/float64(done))
			calls[i] = append(calls[i], float64(done)/time.Since(begun).Seconds())
			leave()
		}
	}
	var rows [][]string
	for i, name := range []string{"nobody", fmt.Sprintf("%d viewers", viewers)} {
		rows = append(rows, []string{name, fmt.Sprintf("%.0f", report.Median(calls[i])), report.Figure(report.Median(calls[i]) / report.Median(calls[0])), fmt.Sprintf("%.1f", report.Median(times[i]))})
	}
	fmt.Fprintf(b.w, "## Who watches /ui/ while calls are made as fast as they are answered\n\n")
	report.Table(b.w, []string{"", "calls/s", "× without", "server µs a call"}, rows)
	full := report.Median(calls[0]) * report.Median(times[0])
	rows = nil
	for _, n := range []int{2, manyLimits} {
		atRest := b.atRest(n)
		rows = append(rows, []string{fmt.Sprint(n), fmt.Sprintf("%.1f", atRest/1000), fmt.Sprintf("%.1f %%", 100*atRest/full), report.Verdict(atRest/full <= mostCost)})
	}
	fmt.Fprintf(b.w, "%d viewers of a service that nobody calls:\n\n", viewers)
	report.Table(b.w, []string{"limits", "ms of its processor time a second", "of what the calls without viewers take", fmt.Sprintf("at most %.0f %%", 100*mostCost)}, rows)
	paint := paints(ours.addr, b.rounds)
	fmt.Fprintf(b.w, "## First paint of /ui/ in Chromium, an empty cache, on loopback\n\n")
	report.Table(b.w, []string{"", "least ms", "median ms", "most ms", fmt.Sprintf("median at most %d ms", firstPaint)}, [][]string{{"/ui/", fmt.Sprintf("%.0f", slices.Min(paint)), fmt.Sprintf("%.0f", report.Median(paint)),
		fmt.Sprintf("%.0f", slices.Max(paint)), report.Verdict(report.Median(paint) <= firstPaint)}})
}

// atRest returns the processor time, in µs a second, that viewers take of a service of n limits,
// each of which has had a call.
func (b *bench) atRest(n int) float64 {
	var limits []string
	for i := range n - 2 { // it has two
		limits = append(limits, "--limit", fmt.Sprintf("limit-%03d=100/1s,burst=1000,plans=pro:rate=600|banned:mode=blocked", i))
	}
	ours := b.serveLimits("memory:", limits...)
	for i := range n - 2 {
		get(fmt.Sprintf("http://%s/v1/take?limit=limit-%03d&key=acme", ours.addr, i))
	}
	leave := watch(ours.addr, viewers)
	defer leave()
	time.Sleep(time.Second) // they connect
	server := must(cpu.Process(ours.pid))
	time.Sleep(restLength)
	return float64((must(cpu.Process(ours.pid)) - server).Microseconds()) / restLength.Seconds()
}

// asked lists what the view Overview requests, and how often: see internal/ui/page,
// overview.js and state.js.
var asked = []struct {
	path  string
	every time.Duration
}{
	{"/readyz", 5 * time.Second},
	{"/v1/top?minutes=60", 20 * time.Second},
	{"/v1/audit?n=30", 30 * time.Second},
	{"/v1/top?n=1&hour=2026-01-01T00:00:00Z", restLength}, // 7 hours in 10 minutes
	{"/v1/limits?n=1000&after=", restLength},
	{"/v1/overrides", 30 * time.Second},
}

// watch makes the requests of n viewers of Overview, who opened it at different times. The
// function that watch returns ends the viewers.
func watch(addr string, n int) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: n, MaxIdleConnsPerHost: n}}
	var all sync.WaitGroup
	for range n {
		for _, a := range asked {
			all.Go(func() {
				for wait := rand.N(a.every); ; wait = a.every {
					select {
					case <-ctx.Done():
						return
					case <-time.After(wait):
					}
					res, err := client.Do(must(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+a.path, nil)))
					if err == nil {
						_, _ = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
					}
				}
			})
		}
	}
	return func() { cancel(); all.Wait(); client.CloseIdleConnections() }
}

// paints returns the times to the page's first paint, in ms, in a browser that has
// started and caches nothing.
func paints(addr string, rounds int) (ms []float64) {
	ctx, end := chromium()
	defer end()
	for range rounds + 1 {
		must(0, chromedp.Do(ctx, chromedp.Navigate("about:blank"), clearCache, chromedp.Navigate("http://"+addr+"/ui/")))
		ms = append(ms, must(chromedp.Run(ctx, chromedp.Poll[float64](`performance.getEntriesByName("first-contentful-paint")[0]?.startTime`))))
	}
	return ms[1:] // the first paint includes the start of the browser
}

// chromium starts a browser.
func chromium() (ctx context.Context, end func()) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(must(exec.LookPath("chromium"))), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true))
	ctx, endAll := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endOne := chromedp.NewContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	return ctx, func() { cancel(); endOne(); endAll() }
}

var clearCache = chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
	_, err := chromedp.Call(ctx, network.ClearBrowserCache, cdp.Empty{})
	return err
})
