package ui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/ui"
)

// draws checks that what is shown is drawn well on a desk and on a phone: axe finds nothing (on
// a phone only if it lays out other parts than the states before), nothing is wider than its place, and no two texts of a chart overlap. With -states it
// writes pictures of it.
func (v *visit) draws(name string, phone bool) {
	v.t.Helper()
	for _, width := range []int{1280, 390} {
		v.run(chromedp.EmulateViewport(int64(width), 800))
		v.wait(drawn)
		if width == 1280 || phone {
			v.accessible()
		}
		if wrong := look(v, chromedp.Evaluate[string](crowded)); wrong != "" {
			v.t.Errorf("%s at %d: %s", name, width, wrong)
		}
		for _, scheme := range []string{"light", "dark"} {
			if *states == "" {
				break
			}
			v.scheme(scheme)
			png := look(v, chromedp.FullScreenshot(100))
			if err := os.WriteFile(filepath.Join(*states, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), png, 0o600); err != nil {
				v.t.Fatal(err)
			}
		}
	}
	v.run(chromedp.EmulateViewport(1100, 800))
}

// scheme prefers light or dark.
func (v *visit) scheme(scheme string) {
	v.t.Helper()
	v.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
}

// crowded lists what is wider than the window or its own box, and texts of charts that lie
// over each other or outside the window.
const crowded = `(() => {
	const out = [], wide = innerWidth + 1;
	for (const e of document.querySelectorAll("main *, header *")) {
		const r = e.getBoundingClientRect();
		if (r.width > 1 && (r.right > wide || r.left < -1) && !e.closest(".scroll, .tabs, .skip, .sr")) out.push("beyond the window: " + e.outerHTML.slice(0, 160));
	}
	for (const panel of document.querySelectorAll(".panel")) {
		const right = panel.getBoundingClientRect().right + 1;
		for (const e of panel.querySelectorAll("*")) if (e.getBoundingClientRect().right > right) out.push("beyond its panel: " + e.outerHTML.slice(0, 160));
	}
	for (const svg of document.querySelectorAll("svg.chart")) {
		const texts = [...svg.querySelectorAll("text")].map((t) => [t, t.getBoundingClientRect()]).filter(([, r]) => r.width > 0);
		texts.forEach(([t, a], i) => texts.slice(i + 1).forEach(([u, b]) => {
			if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3) out.push("over each other: " + t.textContent + " | " + u.textContent);
		}));
	}
	return out.slice(0, 6).join("\n");
})()`

// define adds limits to those of a visit, and loads the page anew.
func (v *visit) define(texts ...string) {
	v.t.Helper()
	for _, text := range texts {
		l, err := dipwell.ParseLimit(text)
		if err == nil {
			_, err = v.limiter.Define(v.t.Context(), l, "api")
		}
		if err != nil {
			v.t.Fatal(text, err)
		}
	}
}

// at loads the page at an address.
func (v *visit) at(hash string) {
	v.t.Helper()
	v.run(chromedp.Navigate("about:blank"), chromedp.Navigate(v.url+"/ui/"+hash))
}

// A customer with 40 limits, most of which pass, in all states.
func TestManyLimits(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "")
	for i := range 40 {
		v.define(fmt.Sprintf("api-%02d=%d/1d,burst=%d,keys=list,usage=true,plans=pro:rate=600;burst=1000|banned:mode=blocked", i, 10+i, 20+10*i))
		v.take(fmt.Sprintf("api-%02d", i), "acme", int64(1+i))
	}
	v.take("api-07", "acme", 81)
	v.post(3, "limit=api-07&cost=3&key=acme")
	v.take("api-09", "acme", 180)
	v.post(2, "limit=api-09&key=acme")
	for limit, o := range map[string]dipwell.Override{
		"api-11": {Plan: "banned", Until: time.Now().Add(2 * time.Hour).UnixMicro(), Note: "same export in a loop, ticket 81"},
		"api-12": {Plan: "banned", Note: "unpaid since May, ticket 12"},
		"api-13": {Rate: 900, Burst: 900, Until: time.Now().Add(26 * time.Hour).UnixMicro(), Note: "import of a whole year, agreed with sales, ticket 84"},
		"api-14": {Plan: "pro", Note: "contract 2026-114"},
	} {
		o.Key = "acme"
		if _, err := v.limiter.SetOverride(t.Context(), limit, o); err != nil {
			t.Fatal(err)
		}
	}
	for i := 20; i < 25; i++ {
		v.request(http.MethodPut, fmt.Sprintf("/v1/limits/api-%d/overrides", i), "key=acme&plan=pro&note=contract+2026-115")
	}
	v.at("#/customer?key=acme")
	v.shows("Gave plan pro in 5 limits")
	v.click(".timeline button")
	v.shows("Undid plan pro in 5 limits")
	v.wait(`document.querySelector(".timeline s")?.textContent === "Gave plan pro in 5 limits"`)
	v.shows("4 of 40 limits refuse acme now")
	v.shows("28 more limits, which let it pass")
	v.draws("many", true)
	v.click(".limit-state + p button")
	v.wait(`document.querySelectorAll(".limit-state").length === 40`)
	v.draws("many-all", false)
}

// A limit in shadow mode shows beside it what was enforced before, and what each refuses.
func TestBothVersions(t *testing.T) {
	v := openBehind(t, stores["memory"](t), server.Config{}, "", func(_ *visit, api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !r.URL.Query().Has("minutes") {
				api.ServeHTTP(w, r)
				return
			}
			allowed, refused, shadow := make([]int, 60), make([]int, 60), make([]int, 60)
			for i := range 60 { // it was changed now, in the middle
				allowed[i], refused[i], shadow[i] = 30, 10*(1-i/30), 15*(i/30)
			}
			now := time.Now().UTC().Truncate(time.Minute)
			first, last := now.Add(-30*time.Minute), now.Add(29*time.Minute)
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(fmt.Appendf(nil, `{"from":%[1]q,"minutes":60,"processes":[{"process":"a:1","first":%[1]q,"last":%[2]q}],"shared":false,"took":[0],"limits":[{"limit":"tokens","allowed":%[3]s,"refused":%[4]s,"shadow":%[5]s}],
				"refused":{"counted":0,"unlisted_at_most":0,"keys":[]},"shed":0,"gauges":{}}`, first.Format(time.RFC3339), last.Format(time.RFC3339), asJSON(allowed), asJSON(refused), asJSON(shadow)))
		})
	})
	v.request(http.MethodPut, "/v1/limits/tokens", "rate=1000&per=1m&burst=6000&plans=pro:rate=10000;burst=60000|banned:mode=blocked&note=first")
	v.request(http.MethodPut, "/v1/limits/tokens", "rate=900&per=1m&burst=6000&mode=shadow&plans=pro:rate=10000;burst=40000|banned:mode=blocked&note=second")
	v.at("#/limit?name=tokens")
	for row, cells := range []string{
		"Rule|1,000 a minute, burst 6,000|900 a minute, burst 6,000", "plan pro|rate 10000, burst 60000|rate 10000, burst 40000",
		"Refused|25.0 % of 1,", "Refused|, last hour|33.3 % of 1,", "Refused| calls would be",
	} {
		for cell := range strings.SplitSeq(cells, "|") {
			v.wait(fmt.Sprintf(`document.querySelectorAll("#would tbody tr")[%d]?.innerText.includes(%s)`, min(row, 2), quote(cell)))
		}
	}
	v.wait(`document.querySelector("#would thead").innerText.includes("Version 2, in shadow") && document.querySelectorAll("#would tbody tr").length === 3`)
	v.draws("both", true)
	v.request(http.MethodPut, "/v1/limits/draft", "rate=1000&per=1m&mode=shadow&note=draft")
	v.at("#/limit?name=draft")
	v.shows("Version 1 runs in shadow")
	v.wait(`document.querySelector("#would table") === null`)
}

func asJSON(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// An end at a part of a second is the same in the sentence and in the timeline.
func TestPartOfASecond(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "")
	end := time.Now().UTC().Add(time.Hour).Truncate(time.Second)
	v.request(http.MethodPut, "/v1/limits/signup/overrides", "key=acme&plan=banned&until="+end.Add(250*time.Millisecond).Format(time.RFC3339Nano)+"&note=ticket+81")
	v.request(http.MethodPut, "/v1/limits/login/overrides", "key=acme&rate=50&until="+end.Add(250*time.Microsecond).Format(time.RFC3339Nano)+"&note=ticket+82")
	v.at("#/customer?key=acme")
	v.why("signup", "ticket 81")
	until := func(at time.Time) string {
		if end.Day() != time.Now().UTC().Day() {
			return "until " + at.Format("Mon 2 Jan 15:04:05")
		}
		return "until " + strings.TrimSuffix(at.Format("15:04:05"), ":00")
	}
	for limit, at := range map[string]time.Time{"signup": end.Add(time.Second), "login": end} {
		v.why(limit, until(at))
		v.wait(`[...document.querySelectorAll(".timeline li")].some((e) => e.innerText.includes("in ` + limit + `") && e.innerText.includes(` + quote(until(at)) + `))`)
	}
}

// The pages that say "make build" have the search of the others.
func TestSearchWithoutEngine(t *testing.T) {
	v := openBehind(t, stores["memory"](t), server.Config{}, "playground", func(_ *visit, api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/ui/") {
				ui.HandlerWithout().ServeHTTP(w, r)
				return
			}
			api.ServeHTTP(w, r)
		})
	})
	v.shows("make build")
	v.accessible()
	v.fits()
	v.press("/")
	v.wait(`document.activeElement.id === "search"`)
	v.run(chromedp.KeyEvent("acme\r"), chromedp.WaitVisible(chromedp.CSS("h1.key")))
	v.wait(`location.hash === "#/customer?key=acme"`)
}

// A list of 150 limits, with trees among them.
func TestManyDefinitions(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "")
	for i := range 140 {
		switch {
		case i%20 == 0:
			v.define(fmt.Sprintf("tenant-%03d=100000/1d", i))
		case i%20 < 5:
			v.define(fmt.Sprintf("tenant-%03d-%d=%d/1h,burst=40,parent=tenant-%03[1]d,mode=%[4]s", i/20*20, i%20, i, []string{"shadow", "enforce"}[i%2]))
		default:
			v.define(fmt.Sprintf("search-of-the-%03d-th-endpoint-with-a-long-name=%d/10s,algorithm=%s,plans=free:rate=2|pro:rate=60|enterprise:rate=600", i, i, []string{"fixed_window", "sliding_window", "token_bucket"}[i%3]))
		}
	}
	v.post(60, "limit=search-of-the-006-th-endpoint-with-a-long-name&key=k")
	late := "tenant-120-4" // of 147 limits, by name
	if _, err := v.limiter.SetOverride(t.Context(), late, dipwell.Override{Key: "tenant/acme", Rate: 100, Until: time.Now().Add(time.Hour).UnixMicro(), Note: "for a week"}); err != nil {
		t.Fatal(err)
	}
	v.at("")
	v.wait(`document.getElementById("ends")?.innerText.includes("lowered in ` + late + `")`)
	v.at("#/limits")
	v.shows("87 more limits")
	v.click("#limits ~ p button, .scroll + p button")
	v.wait(`[...document.querySelectorAll("#limits tr")].find((r) => r.cells[0].innerText.trim().startsWith("` + late + `"))?.cells[3].innerText === "1"`)
	v.at("#/limits")
	v.shows("87 more limits")
	v.draws("limits", true)
	v.set("find-limit", "020-2")
	v.wait(`document.querySelectorAll("#limits tbody tr").length === 1`)
	const asked = `performance.getEntriesByType("resource").filter((r) => r.name.includes("overrides")).length`
	if n := look(v, chromedp.Evaluate[int](asked)); n > 2 { // a question for all limits, each half a minute
		t.Errorf("it has asked %d times about overrides", n)
	}
}

// Limits whose overrides the service cannot tell are not shown as if they had none.
func TestUnknownOverrides(t *testing.T) {
	v := openBehind(t, stores["memory"](t), server.Config{}, "#/limits", func(_ *visit, api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/overrides" {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			api.ServeHTTP(w, r)
		})
	})
	v.wait(`[...document.querySelectorAll("#limits tbody tr")].map((r) => r.cells[3].innerText + r.cells[4].innerText).join("") === "…".repeat(14)`)
}

// A key of 300 bytes, wherever keys are shown.
func TestLongKey(t *testing.T) {
	long := strings.Repeat("key-of-300-bytes/", 17) + "0123456789!"
	one := strings.Repeat("x", 300)
	v := open(t, stores["memory"](t), server.Config{}, "")
	for _, key := range []string{long, one} {
		v.post(22, "limit=signup&key="+url.QueryEscape(key))
		if _, err := v.limiter.SetOverride(t.Context(), "search", dipwell.Override{Key: key, Rate: 100, Until: time.Now().Add(time.Hour).UnixMicro(), Note: "for a week"}); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct{ hash, ready string }{
		{"#/customer?key=" + url.QueryEscape(long), `document.querySelectorAll(".limit-state").length === 2`},
		{"#/customer?key=" + one, `document.querySelectorAll(".limit-state").length === 2`},
		{"#/limit?name=search", `document.getElementById("overrides")?.innerText.includes("for a week")`},
		{"#/limit?name=signup", `document.body.innerText.includes("xxxx")`},
		{"#/overview", `document.getElementById("ends")?.innerText.includes("for a week")`},
	} {
		v.to(c.hash)
		v.wait(c.ready)
		v.draws(fmt.Sprint("long-", i), i == 0)
	}
	v.to("#/customer?key=" + one)
	v.start("signup", "raise")
	v.draws("long-raise", false)
	v.run(chromedp.KeyEvent(kb.Escape))
	v.set("search", "x")
	v.wait(`document.querySelector("#results .key")?.textContent.length === 65`)
	v.draws("long-search", true)
}

// A limit in debt says how deep it is, and until when it refuses everything.
func TestDebt(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "")
	v.define("batch=100/1d,burst=500,keys=list,max_debt=9000")
	v.take("batch", "acme", 2000)
	v.post(2, "limit=batch&key=acme")
	v.at("#/customer?key=acme")
	v.why("batch", "Refuses every call until ")
	v.why("batch", ": 1,500 more than the burst of 500 are used.")
	v.wait(`document.querySelector("#limit-batch figure svg").getAttribute("aria-label").startsWith("1,500 of debt; 0 of 500 tokens free")`)
	v.draws("debt", false)
	v.start("batch", "forgive")
	v.send("do-forgive", "amount", "1600", "note", "double charge, ticket 77")
	v.shows("100 of 500 free")
}

// A concurrency limit has a bar for each hold, which ends with it.
func TestBarOfHolds(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "")
	v.define("streams=30,algorithm=concurrency,ttl=1d", "tokens=1000000/1d,burst=6000000,keys=list,plans=pro:rate=10000000;burst=60000000|banned:mode=blocked")
	if _, err := v.limiter.SetOverride(t.Context(), "tokens", dipwell.Override{Key: "gpu", Plan: "pro", Note: "contract 2026-114"}); err != nil {
		t.Fatal(err)
	}
	for i := range 15 {
		if _, err := v.limiter.Hold(t.Context(), time.Duration(i*i*40+300)*time.Second, fmt.Sprintf("render-%d-of-the-night-shift", i), dipwell.Take{Limit: "streams", Key: "gpu", Cost: int64(1 + i%2)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, ttl := range []time.Duration{time.Hour, 24 * time.Hour} { // the second ends on another day, whatever the time is
		if _, err := v.limiter.Hold(t.Context(), ttl, fmt.Sprintf("chat-%d", i), dipwell.Take{Limit: "tokens", Key: "gpu", Cost: 4500}); err != nil {
			t.Fatal(err)
		}
	}
	v.at("#/customer?key=gpu")
	v.why("streams", "22 of the 30 of the base are held; the next hold ends by ")
	for _, limit := range []string{"streams", "tokens"} {
		look(v, chromedp.Evaluate[bool](`(document.querySelector("[aria-label='Details of `+limit+`']").click(), true)`)) // wherever it is now
	}
	v.wait(`document.querySelectorAll("#limit-streams .chart .bar").length === 12`)
	v.wait(`document.querySelectorAll("#limit-tokens figure").length === 2`)
	v.draws("holds", true)
	for _, form := range []string{"streams holds", "streams raise", "tokens raise", "tokens plan", "tokens forgive", "tokens block"} {
		limit, action, _ := strings.Cut(form, " ")
		v.start(limit, action)
		v.draws("holds-"+limit+"-"+action, false)
		v.click("#do .link")
	}
}

// What a support engineer ran into who read nothing else.
func TestWalkedThrough(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "")
	v.define("drip=60/1h,algorithm=leaky_bucket,max_debt=10,keys=list", "tries=3/1m,block=10m,keys=list", "tokens=1000/1d,burst=6000,keys=list,plans=big:burst=60000|small:burst=3000")
	v.request(http.MethodPut, "/v1/limits/made", "rate=50&per=1h&burst=60&note=first")
	long := strings.Repeat("key-of-300-bytes/", 17) + "0123456789!"
	v.request(http.MethodPut, "/v1/limits/signup/overrides", "plan=pro&note=long&key="+url.QueryEscape(long))
	v.request(http.MethodPut, "/v1/limits/tokens/overrides", "plan=big&note=contract&key=acme")
	v.request(http.MethodPut, "/v1/limits/tokens/overrides", "rate=2000&for=30h&note=import&key=acme")
	v.take("tokens", "acme", 5000)
	v.take("drip", "acme", 8)
	v.post(6, "limit=tries&key=acme")

	// A short time is not called an hour, and what lies under a raise comes back.
	v.at("")
	v.wait(`document.getElementById("ends")?.innerText.includes("then plan big")`)
	v.wait(`/until \d\d:\d\d, 2,000 a day/.test(document.getElementById("ends").innerText)`)
	v.shows("Defined made")

	// The names of limits are not broken, however long a key is, and a phone has no column for them.
	v.at("#/changes")
	v.wait(`[...document.querySelectorAll("tbody td:nth-child(2) .key")].map((e) => e.getClientRects().length === 1 && e.offsetHeight < 30).join() === "true,true,true,true"`)
	v.run(chromedp.EmulateViewport(390, 800))
	v.wait(`![...document.querySelectorAll("td:nth-child(2)")].some((e) => e.checkVisibility())`)
	v.run(chromedp.EmulateViewport(1100, 800))

	// A leaky bucket says when a call that it lets pass goes; a block by itself names no other refusal.
	v.at("#/customer?key=acme")
	v.why("drip", "By the base; a call waits until ")
	v.why("tries", " by the limit itself, for 10 min after a refusal.")
	look(v, chromedp.Evaluate[bool](`(document.querySelector("[aria-label='Details of drip']").click(), true)`))
	v.wait(`/token passes at .*, behind those before it/.test(document.querySelector("#limit-drip .ask")?.innerText)`)

	// A plan that has less than is used says so.
	v.start("tokens", "end")
	v.send("do-end", "note", "over")
	v.why("tokens", "By plan big")
	v.start("tokens", "plan")
	v.set("plan", "small")
	v.shows("2,000 more than its burst are used: calls are refused until they have come back.")

	// A change that changes nothing is not sent as if it did.
	v.at("#/limit?name=made")
	v.click(".buttons button:nth-child(2)")
	v.shows("Type other numbers to see it.")
	v.send("change", "change-note", "no reason")
	v.shows("These numbers are in force already.")
	v.set("change-rate", "40")
	v.shows("50 an hour, burst 60 becomes 40 an hour, burst 60, as version 2.")
	v.draws("change", false)
	v.at("#/limit?name=login")
	v.shows("Keys are not listed: set keys: list on this limit.")
}
