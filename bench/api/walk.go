package main

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/dipwell/dipwell/bench/internal/report"
)

const (
	searched   = 10000 // keys
	mostSearch = 200   // ms
	mostReady  = 500   // target in ms for each view
	mostBytes  = 80000 // target for the compressed page
)

// A step is an action of a user on the page, and what is shown once it has worked.
type step struct {
	name      string
	clicks    int // clicks so far, since the search box or the raise
	do, until string
	most      float64 // ms
}

const why = `document.querySelector("#limit-signup .why")?.innerText.includes`

// steps lead from the search box to the sentence that says why a customer is refused, to a
// raise for an hour, and to its undo. After these steps each view is opened.
var steps = []step{
	{"“acm” is typed: the customer is found", 0, `search.focus(); search.value = "acm"; search.dispatchEvent(new Event("input", {bubbles: true}))`, `document.querySelector("#results .key")?.textContent === "acme"`, mostReady},
	{"it is clicked: the sentence says why", 1, `document.querySelector("#results li").dispatchEvent(new PointerEvent("pointerdown", {bubbles: true}))`, why + `("Refuses calls above 2 tokens")`, mostReady},
	{"Raise for a time is clicked: the form says what will happen", 2, `document.querySelector("#limit-signup .level button").click()`, `document.getElementById("rate")?.value === "10" && document.querySelector(".outcome")?.innerText.includes("Ends by itself")`, mostReady},
	{"a note is typed, Raise until … is clicked: the raise decides", 3, `note.value = "import"; note.dispatchEvent(new Event("input", {bubbles: true})); requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector("#do-raise button").click()))`, why + `("The raise decides until ")`, mostReady},
	{"Undo is clicked: the base decides", 1, `document.querySelector(".timeline .new button").click()`, why + `("18 of the 20 of the base are used")`, mostReady},
	{"view Limits", 0, `location.hash = "#/limits"`, `document.querySelector("#limits tbody tr") !== null`, mostReady},
	{"view of a limit", 0, `location.hash = "#/limit?name=signup"`, `document.querySelector("#overrides .empty, #overrides table") !== null`, mostReady},
	{"view Changes", 0, `location.hash = "#/changes"`, `document.querySelector("main tbody tr") !== null`, mostReady},
	{"view of a customer", 0, `location.hash = "#/customer?key=acme"`, why + `("of the base are used")`, mostReady},
	{"view Overview", 0, `location.hash = "#/overview"`, `document.getElementById("sentence") !== null`, mostReady},
}

// walk measures how long a user of the page waits, over 10,000 keys on PostgreSQL, with one
// service, and with two behind one address.
func (b *bench) walk() {
	dsn := b.postgres()
	command("", b.bin, "migrate", "up", "--store", dsn)
	var both []*contender
	for range 2 {
		addr := freeAddr()
		both = append(both, b.serve("", addr, b.bin, "serve", "--listen", addr, "--store", dsn, "--limit", "signup=5/1d,burst=20,keys=list,plans=pro:rate=600;burst=1000|banned:mode=blocked", "--limit", "api=100/1s,burst=1000,keys=list"))
	}
	b.fill(both[0].addr)
	inTurn := httptest.NewServer(turns(both))
	b.closers = append(b.closers, inTurn.Close)

	var search []float64
	for i := range 50 {
		began := time.Now()
		get("http://" + both[0].addr + fmt.Sprintf("/v1/keys?prefix=user:%d&n=8", i%10))
		search = append(search, time.Since(began).Seconds()*1000)
	}
	fmt.Fprintf(b.w, "## What somebody waits for who uses the page, with %d keys on PostgreSQL\n\n", searched)
	fmt.Fprintf(b.w, "- GET /v1/keys?prefix= takes %.0f ms, at worst %.0f ms of 50, at most %d ms: %s\n", report.Median(search), slices.Max(search), mostSearch, report.Verdict(report.Median(search) <= mostSearch))
	size := must(packed("../internal/ui/page"))
	fmt.Fprintf(b.w, "- All files of the page without WebAssembly are %.1f kB in one gzip, at most %d kB: %s\n\n", float64(size)/1000, mostBytes/1000, report.Verdict(size <= mostBytes))
	one, two := b.walks("http://"+both[0].addr), b.walks(inTurn.URL)
	var rows [][]string
	for i, s := range steps {
		clicks := ""
		if s.clicks > 0 {
			clicks = fmt.Sprint(s.clicks)
		}
		rows = append(rows, []string{s.name, clicks, fmt.Sprintf("%.0f", report.Median(one[i])), fmt.Sprintf("%.0f", report.Median(two[i])), fmt.Sprintf("%.0f", max(slices.Max(one[i]), slices.Max(two[i]))), report.Verdict(max(report.Median(one[i]), report.Median(two[i])) <= s.most)})
	}
	report.Table(b.w, []string{"", "clicks", "ms, one service", "ms, two in turn", "most", fmt.Sprintf("median at most %d ms", mostReady)}, rows)
}

// fill makes the rows of the keys, and has one key refused.
func (b *bench) fill(addr string) {
	var all sync.WaitGroup
	for w := range 32 {
		all.Go(func() {
			for i := w; i < searched; i += 32 {
				take(addr, fmt.Sprintf("user:%05d", i), 1)
			}
		})
	}
	all.Wait()
	take(addr, "acme", 18)
	take(addr, "acme", 3)
}

func take(addr, key string, cost int) {
	get(fmt.Sprintf("http://%s/v1/take?limit=signup&key=%s&cost=%d", addr, key, cost))
}

var posts = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 32, MaxIdleConnsPerHost: 32}}

// get sends a request and decodes the answer. A request for a take is a POST.
func get(address string) {
	method := http.MethodGet
	if strings.Contains(address, "/v1/take?") {
		method = http.MethodPost
	}
	res, err := posts.Do(must(http.NewRequestWithContext(context.Background(), method, address, nil)))
	if err != nil {
		panic(err)
	}
	defer res.Body.Close()
	must(io.Copy(io.Discard, res.Body))
}

// turns is a proxy whose requests go to each service in turn.
func turns(all []*contender) http.Handler {
	var n atomic.Uint64
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(must(url.Parse("http://" + all[n.Add(1)%uint64(len(all))].addr)))
		r.Out.Host = r.In.Host
	}}
}

// walks returns how long each step took in each round, in ms.
func (b *bench) walks(address string) [][]float64 {
	ctx, end := chromium()
	defer end()
	out := make([][]float64, len(steps))
	must(0, chromedp.Do(ctx, chromedp.Navigate(address+"/ui/")))
	must(chromedp.Run(ctx, chromedp.Poll[bool](`document.getElementById("sentence") !== null`)))
	for range b.rounds {
		for i, s := range steps {
			ms := must(chromedp.Run(ctx, chromedp.Evaluate[float64](`new Promise((done) => {
				const begun = performance.now(), search = document.getElementById("search"), note = document.getElementById("note");
				const look = () => (`+s.until+` ? done(performance.now() - begun) : requestAnimationFrame(look));
				`+s.do+`;
				look();
			})`, chromedp.EvalAwaitPromise)))
			out[i] = append(out[i], ms)
			time.Sleep(200 * time.Millisecond) // somebody reads
		}
	}
	return out
}

// packed returns how many bytes the files of a directory have, compressed together.
func packed(dir string) (int, error) {
	var all strings.Builder
	z := gzip.NewWriter(&all)
	for _, f := range must(os.ReadDir(dir)) {
		must(z.Write(must(os.ReadFile(filepath.Join(dir, f.Name())))))
	}
	err := z.Close()
	return all.Len(), err
}
