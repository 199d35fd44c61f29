package ui_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
)

// From the search box to the sentence that says why a customer is refused, to a raise, and
// to its undo, on each store and with two services behind one address.
func TestWalk(t *testing.T) {
	for name, openStore := range stores {
		for _, services := range []int{1, 2} {
			t.Run(fmt.Sprint(name, services), func(t *testing.T) {
				v := openBehind(t, openStore(t), server.Config{}, "", func(v *visit, api http.Handler) http.Handler { return inTurn(t, v, api, services) })
				v.take("signup", "acme", 18)
				v.post(2, "limit=signup&cost=3&key=acme")
				v.shows("All 7 limits are healthy")
				v.press("/")
				v.wait(`document.activeElement.id === "search"`)
				v.run(chromedp.KeyEvent("acm"))
				v.wait(`document.querySelector("#results .at")?.innerText.startsWith("acme")`)
				if services == 1 {
					v.shows("Refuses") // beside the key
				}
				v.click("#results li") // the first click
				v.wait(`location.hash === "#/customer?key=acme"`)
				v.why("signup", "Refuses calls above 2 tokens: 18 of the 20 of the base are used. A call of 3, as refused last, passes at ")
				v.shows("1 of 1 limit refuses acme now: signup is nearly used up")
				if name == "memory" && services > 1 {
					v.stays("signup", "as refused last")
				}
				v.click(`#limit-signup .level button`) // the second: Raise for a time
				v.wait(`document.activeElement.id === "rate" && document.getElementById("rate").value === "10" && document.getElementById("burst").value === "40"`)
				v.shows("22 tokens are free. A call of 3 passes.")
				v.shows("Ends by itself: the base again.")
				v.run(chromedp.Focus(chromedp.CSS("#note")), chromedp.KeyEvent("nightly import, ticket 93"))
				v.click("#do-raise button") // the third
				v.why("signup", "The raise decides until ")
				v.wait(`document.querySelector(".timeline .new")?.innerText.includes("nightly import, ticket 93")`)
				v.free("acme", 22)
				v.click(".timeline .new button") // one to undo it
				v.why("signup", "18 of the 20 of the base are used")
				v.shows("Undid the raise in signup")
				v.free("acme", 2)
				v.wait(`document.querySelector(".timeline s")?.textContent.startsWith("Raised in signup to 10 a day, burst 40 until ")`)
			})
		}
	}
}

// stays checks that the sentence about a limit keeps a text while services that know less
// answer too.
func (v *visit) stays(limit, text string) {
	v.t.Helper()
	look(v, chromedp.Evaluate[bool](`(flips = 0, asked = () => performance.getEntriesByType("resource").filter((r) => r.name.includes("/v1/keys?key=")).length, before = asked(), new MutationObserver(() => {
		const why = document.querySelector("#limit-`+limit+` .why");
		if (why && !why.innerText.includes(`+quote(text)+`)) flips++;
	}).observe(document.body, {subtree: true, childList: true, characterData: true}), true)`))
	v.wait("asked() >= before + 4")
	if n := look(v, chromedp.Evaluate[int]("flips")); n > 0 {
		v.t.Errorf("the sentence has changed %d times", n)
	}
}

// inTurn returns the handler of n services over the store of a visit, which answer in turn.
func inTurn(t *testing.T, v *visit, first http.Handler, n int) http.Handler {
	t.Helper()
	all := []http.Handler{first}
	for i := 1; i < n; i++ {
		other, err := dipwell.New(v.limiter.Store())
		if err != nil {
			t.Fatal(err)
		}
		s := server.New(other, server.Config{})
		wait := s.CountKeys(t.Context(), fmt.Sprint("there:", i+1), 0)
		t.Cleanup(func() { s.Stop(); wait() })
		all = append(all, s.API(server.Site{Loopback: true}))
	}
	var turn atomic.Uint64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/take" { // one refuses, and remembers it
			first.ServeHTTP(w, r)
			return
		}
		all[turn.Add(1)%uint64(n)].ServeHTTP(w, r)
	})
}

// Each action of a customer, on every store.
func TestActions(t *testing.T) {
	for name, openStore := range stores {
		t.Run(name, func(t *testing.T) {
			v := open(t, openStore(t), server.Config{}, "")
			v.take("signup", script, 18)
			v.post(3, "limit=signup&cost=3&key="+url.QueryEscape(script))
			v.to("#/customer?key=" + url.QueryEscape(script))
			v.why("signup", "Refuses calls above 2 tokens")
			v.wait(`document.querySelector("h1").textContent === ` + quote(script)) // as text
			v.shows("by here:1")
			for cost, want := range map[string]string{"1": "passes now", "21": "passes never", "7": ", in "} {
				v.set("cost-signup", cost)
				v.wait(`document.querySelector(".ask").innerText.includes(` + quote(want) + `)`)
			}

			// A raise: what is wrong stands beside its field, and nothing is saved.
			v.start("signup", "raise")
			v.send("do-raise", "rate", "0", "note", "")
			v.shows("0 would refuse every call. To refuse all, block instead.")
			v.shows("Write a note: the timeline shows it.")
			v.shows("2 fields need a change. Nothing was saved.")
			v.accessible()
			v.send("do-raise", "rate", "50", "burst", "999999999999999", "note", "ticket 81")
			v.wait(`document.getElementById("burst-error") !== null`)
			v.free(script, 2)
			v.send("do-raise", "burst", "70")
			v.shows("ticket 81")
			v.why("signup", "The raise decides until ")
			v.free(script, 52)

			// Nobody's plan is chosen by accident.
			v.start("signup", "plan")
			v.send("do-plan", "note", "until the invoice")
			v.shows("Choose a plan.")
			v.wait(`![...document.getElementById("plan").options].some((o) => o.value === "banned")`)
			v.set("plan", "pro")
			v.shows("Nothing: the raise decides until ")
			v.send("do-plan")
			v.shows("Gave plan pro in signup")
			v.start("signup", "end")
			v.send("do-end", "note", "no longer needed")
			v.why("signup", "By plan pro; full again at ")

			// A block asks twice, and says what it replaces and what comes after it.
			v.start("signup", "block")
			v.click("label:has(#for-1d)")
			v.send("do-block", "note", "abuse")
			v.shows("Every call is refused until ")
			v.shows("Plan pro again, 600 a day, burst 1,000.")
			v.accessible()
			v.click("#do-block button")
			v.why("signup", "by 127.0.0.1: “abuse”. Then plan pro again, 982 of 1,000 free.")
			if d, err := v.limiter.Take(t.Context(), "signup", script, 1); err != nil || d.Allowed {
				t.Errorf("a blocked key may call: %+v %v", d, err)
			}
			v.shows("is blocked until")
			v.click(`#limit-signup .level button`)
			v.send("do-end", "note", "it was ours")
			v.why("signup", "By plan pro")
			v.start("signup", "end")
			v.send("do-end", "note", "the contract ended")
			v.click("#do-end button") // asked twice
			v.why("signup", "of the base are used")

			v.start("signup", "forgive")
			v.send("do-forgive", "amount", "", "note", "ticket 82")
			v.shows("How many tokens? At least 1.")
			v.shows("Cannot be undone")
			v.send("do-forgive", "amount", "5")
			v.shows("Gave 5 tokens back in signup")
			v.free(script, 7)
			v.start("signup", "forgive")
			v.click("label:has(#how-fill)")
			v.send("do-forgive", "note", "loop of ours")
			v.shows("13 used tokens are forgotten: 20 are free.")
			v.click("#do-forgive button")
			v.shows("Filled the bucket in signup")
			v.free(script, 20)
			v.fits()
			v.changes()
		})
	}
}

// changes looks at what TestActions has changed, in the view Changes.
func (v *visit) changes() {
	v.t.Helper()
	v.click(`.tabs a[href="#/changes"]`)
	v.wait(`document.querySelectorAll("tbody tr").length === 8`)
	v.wait(`document.querySelector("tbody tr:last-child").innerText.includes("ticket 81") && document.querySelector("tbody tr:last-child td:nth-child(3)").textContent === ` + quote(script))
	v.send("filter", "audit-limit", "login")
	v.shows("Nothing was changed.")
	v.send("filter", "audit-limit", "signup")
	v.shows("127.0.0.1")
	v.fits()
}

// to goes to an address of the page.
func (v *visit) to(hash string) {
	v.t.Helper()
	v.wait("(location.hash = " + quote(hash) + ") !== null")
}

// A concurrency limit has a bar for each hold, and its holds can be ended.
func TestHolds(t *testing.T) {
	for name, openStore := range stores {
		t.Run(name, func(t *testing.T) {
			v := open(t, openStore(t), server.Config{}, "")
			for _, id := range []string{"held-by-us", "held-by-them"} {
				if _, err := v.limiter.Hold(t.Context(), 24*time.Hour, id, dipwell.Take{Limit: "slots", Key: "gpu", Cost: 1}); err != nil {
					t.Fatal(err)
				}
			}
			v.to("#/customer?key=gpu")
			v.why("slots", "All 2 of the base are held; the next hold ends by ")
			v.shows("held-by-us")
			v.start("slots", "raise")
			v.wait(`document.getElementById("burst")?.value === "4" && document.getElementById("rate") === null`)
			v.send("do-raise", "burst", "5", "note", "ticket 84")
			v.why("slots", "2 of the 5 of the raise are held")
			v.start("slots", "holds")
			v.send("do-holds")
			v.shows("Nothing was saved.")
			v.click("#hold-0")
			v.send("do-holds", "note", "the client is gone")
			v.click("#do-holds button") // asked twice
			v.shows(": “the client is gone”; no undo")
			v.shows("Ended hold held-by-")
			v.why("slots", "1 of the 5 of the raise are held")
			v.start("slots", "holds")
			v.click("#hold-0")
			v.send("do-holds", "note", "the machine is gone")
			v.click("#do-holds button")
			v.why("slots", "none is held")
			v.shows("Ended all holds in slots")
		})
	}
}

// A shared limit shows its bucket, which has no key; a parent refuses for its child; a limit
// of another customer is known once it was asked.
func TestShared(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "#/limit?name=mail")
	v.post(1, "limit=mail")
	v.shows("All customers together may use 1,000 a day.")
	v.click(`a[href="#/customer?limit=mail"]`)
	v.shows("Shared bucket of mail")
	v.shows("999 of 1,000 free")
	v.start("mail", "raise")
	v.send("do-raise", "rate", "3000", "burst", "3000", "note", "ticket 83")
	v.shows("2,999 of 3,000 free")
	v.shows("Raised in mail to 3,000 a day until ")

	v.take("org", "acme", 200)
	v.take("user", "acme/ann", 1)
	v.to("#/customer?key=acme%2Fann")
	v.why("user", "Refused by its parent org of acme.")
	v.to("#/customer?key=acme")
	v.why("org", "more than the burst of 100 are used")
	v.shows("Keys below acme")
	v.shows("acme/ann")

	v.to("#/customer?key=nobody&limit=login")
	v.shows("nobody passes in its only limit, login.")
	v.start("login", "raise")
	v.send("do-raise", "rate", "10", "burst", "40", "note", "before the first call")
	v.shows("40 of 40 free")
}

// What is found by the search: keys that begin with what is typed, limits by their names,
// and what cannot be searched.
func TestSearch(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "")
	v.post(1, "limit=signup&key=acme")
	v.post(1, "limit=signup&key="+url.QueryEscape(script))
	v.post(21, "limit=login&key=known-only-whole")
	v.shows("All 7 limits are healthy")
	find := func(text string) {
		v.wait(`((f) => { f.focus(); f.value = ` + quote(text) + `; f.dispatchEvent(new Event("input", {bubbles: true})); return true; })(document.getElementById("search"))`)
	}
	find("<img")
	v.wait(`document.querySelector("#results .key")?.textContent === ` + quote(script))
	find("amce")
	v.shows("No key begins with “amce”.")
	v.shows("cannot be searched: login, ")
	v.accessible()
	v.fits()
	find("known-only-whole")
	v.wait(`document.querySelector("#results .key")?.textContent === "known-only-whole" && document.querySelector("#results .badge").textContent === "Refuses"`)
	find("sign")
	v.wait(`document.querySelector("#results")?.innerText.includes("a limit")`)
	v.accessible()
	find("signu") // axe moved the focus
	v.wait(`document.querySelector(".found")?.dataset.of === "signu"`)
	v.run(chromedp.KeyEvent("\r"))
	v.wait(`location.hash === "#/limit?name=signup" && document.activeElement.id === "view"`) // which takes the focus once it is drawn
	find("acm")
	v.wait(`document.querySelector("#results .key")?.textContent === "acme"`)
	v.run(chromedp.KeyEvent(kb.Escape))
	v.wait(`document.querySelector("#results") === null && document.activeElement.id === "search"`)
}

func TestLimits(t *testing.T) {
	for name, openStore := range stores {
		t.Run(name, func(t *testing.T) {
			v := open(t, openStore(t), server.Config{}, "#/limits")
			v.wait(`document.querySelectorAll("#limits tbody tr").length === 7 && document.querySelector(".tree")?.textContent === "user"`)
			v.fits()
			const rules = `[...document.querySelectorAll("#limits *")].filter((e) => e.checkVisibility() && e.childElementCount === 0 && e.innerText === "10 a day, burst 20").length`
			v.wait(rules + " === 1") // a phone has it below the name, in place of its column
			v.run(chromedp.EmulateViewport(390, 800))
			v.wait(rules + " === 1")
			v.run(chromedp.EmulateViewport(1100, 800))
			v.set("find-limit", "sign")
			v.wait(`document.querySelectorAll("#limits tbody tr").length === 1`)
			if _, err := v.limiter.SetOverride(t.Context(), "signup", dipwell.Override{Key: script, Rate: 100, Note: "for a week"}); err != nil {
				t.Fatal(err)
			}
			if _, err := v.limiter.SetOverride(t.Context(), "signup", dipwell.Override{Key: "acme", Plan: "banned"}); err != nil {
				t.Fatal(err)
			}
			v.click(`a[href="#/limit?name=signup"]`)
			v.shows("for a week")
			v.wait(`[...document.querySelectorAll("#plans td:last-child")].map((c) => c.innerText).join() === "all others,1,as callers name it"`)
			v.shows("refuses every call") // plan banned
			v.shows(script)
			v.shows("are in a program, and are changed there")
			v.fits()
			v.drafts()
		})
	}
}

// drafts writes a limit, tries it in shadow mode, enforces it, changes it, and drops it.
func (v *visit) drafts() {
	v.t.Helper()
	v.click(`.tabs a[href="#/limits"]`)
	v.click(`a[href="#/draft"]`)
	v.run(chromedp.WaitVisible(chromedp.CSS("#draft")))
	v.set("draft-name", "export", "draft-rate", "2", "draft-per", "1d")
	v.wait(`location.hash === "#/draft?algorithm=token_bucket&name=export&rate=2&per=1d"`)
	v.fits()
	v.send("draft")
	v.shows("Write a note: the versions show it.")
	v.send("draft", "draft-note", "new customers")
	v.shows("In shadow: it refuses nobody.")
	v.wait(`document.getElementById("would").innerText.includes("0 of 0 calls")`)
	v.post(5, "limit=export&key=k") // in shadow mode nothing is charged that would be refused
	v.shows("It would have refused 3 of 5 calls (60.0 %)")
	v.fits()
	v.click(".buttons button") // Enforce
	v.send("change", "change-note", "two weeks are enough")
	v.shows("Calls above the limit are refused.")
	v.click("#change footer button") // asked twice
	v.shows("Enforced, version 1")   // the numbers are the same
	if d, err := v.limiter.Take(v.t.Context(), "export", "k", 1); err != nil || d.Allowed {
		v.t.Errorf("it is not enforced: %+v %v", d, err)
	}
	v.click(".buttons button:nth-child(2)") // Change
	v.set("change-rate", "9", "change-note", "they grew")
	v.shows("2 a day becomes 9 a day, as version 2.")
	v.click("#change footer button")
	v.shows("Enforced, version 2")
	if l := v.limiter.Limit("export"); l == nil || l.Rate != 9 || l.Mode == dipwell.Shadow {
		v.t.Errorf("changed: %+v", l)
	}
	v.click(".buttons button:nth-child(3)") // Drop
	v.send("change", "change-note", "nobody uses it")
	v.click("#change footer button")
	v.wait(`location.hash === "#/limits" && document.querySelectorAll("#limits tbody tr").length === 7`)
	v.click(`.tabs a[href="#/changes"]`)
	v.shows("two weeks are enough")
	v.shows("nobody uses it")
}

// Buttons that a role lacks are not there, and one line says who may.
func TestRoles(t *testing.T) {
	callers := []server.Caller{{Name: "auditor-1", Role: server.Read}, {Name: "support-1", Role: server.Support}}
	for i := range callers {
		callers[i].Token = sum(callers[i].Name)
	}
	v := open(t, stores["memory"](t), server.Config{Callers: callers}, "#/customer?key=k&limit=signup")
	v.take("signup", "k", 20)
	v.run(chromedp.WaitVisible(chromedp.CSS("#token")), chromedp.SendKeys(chromedp.CSS("#token"), "auditor-1\r"))
	v.shows("You are auditor-1, role read: you see everything and change nothing.")
	v.why("signup", "all 20 of the base are used")
	v.wait(`document.querySelector("[data-action]") === null && document.querySelector(".level button") === null`)
	v.set("cost-signup", "5")
	v.wait(`document.querySelector(".ask").innerText.includes("tokens passes at")`)
	v.to("#/limits")
	v.wait(`document.querySelectorAll("#limits tbody tr").length === 7 && document.querySelector("a[href='#/draft']") === null`)
	v.run(chromedp.Navigate("about:blank"), chromedp.Navigate(v.url+"/ui/#/customer?key=k&limit=signup"))
	v.run(chromedp.WaitVisible(chromedp.CSS("#token")), chromedp.SendKeys(chromedp.CSS("#token"), "support-1\r"))
	v.start("signup", "forgive")
	v.send("do-forgive", "amount", "5", "note", "ticket 7")
	v.shows("support-1: “ticket 7”; no undo")
}

// A service that hangs, or a connection that is cut without a word, does not leave old
// numbers on the page as if they were new.
func TestLost(t *testing.T) {
	var gone, away atomic.Bool
	v := openBehind(t, stores["memory"](t), server.Config{}, "", func(_ *visit, api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case gone.Load():
				panic(http.ErrAbortHandler)
			case away.Load() && r.URL.Path == "/readyz":
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, `{"status":503,"detail":"store unavailable: connection refused"}`)
			default:
				api.ServeHTTP(w, r)
			}
		})
	})
	v.shows("All 7 limits are healthy")
	away.Store(true)
	v.shows("The store is away since ")
	v.shows("connection refused")
	v.shows("7 limits refuse every call")
	v.shows("on_store_error: closed")
	v.accessible()
	v.fits()
	gone.Store(true)
	v.shows("No answer from the service since ")
	v.wait(`document.querySelector(".stale") !== null`)
	v.accessible()
	gone.Store(false)
	away.Store(false)
	v.click(".banner button")
	v.wait(`document.querySelector(".banner") === null && document.querySelector(".stale") === null`)
	v.shows("All 7 limits are healthy")
}

// A page in a tab behind others asks nothing. Shown, it asks at once.
func TestHidden(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "#/limits")
	v.shows("signup")
	hide := func(hidden bool) {
		look(v, chromedp.Evaluate[bool](fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %t, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`, hidden)))
	}
	hide(true)
	look(v, chromedp.Evaluate[string](`location.hash = "#/limit?name=signup"`))
	v.shows("Versions")
	asked := `performance.getEntriesByType("resource").some((e) => e.name.includes("/v1/audit?limit=signup"))`
	if look(v, chromedp.Evaluate[bool](asked)) {
		t.Error("a hidden page asked")
	}
	hide(false)
	v.wait(asked)
}

// Somebody else may change what a form is about before it is sent.
func TestFaster(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "#/customer?key=k&limit=signup")
	v.start("signup", "raise")
	v.shows("What will happen")
	if _, err := v.limiter.SetOverride(t.Context(), "signup", dipwell.Override{Key: "k", Rate: 15, Until: time.Now().Add(time.Hour).UnixMicro(), Note: "ticket 92"}); err != nil {
		t.Fatal(err)
	}
	v.send("do-raise", "rate", "50", "burst", "70", "note", "ticket 93")
	v.shows("Somebody was faster:")
	v.shows("ticket 92")
	v.accessible()
	v.click(".banner.notice button")
	v.shows("The raise until ")
	v.click("#do-raise button")
	v.shows("70 of 70 free")
	v.click(".timeline .new button") // its undo brings the other one back
	v.shows("Raised in signup to 15 a day")
	if o, err := v.limiter.Overrides(t.Context(), "signup", "k", "", 1); err != nil || len(o) != 1 || o[0].Rate != 15 {
		t.Errorf("%+v %v", o, err)
	}
}

// An undo does not end what somebody else has set since the page was drawn.
func TestUndoFaster(t *testing.T) {
	var armed atomic.Bool
	v := openBehind(t, stores["memory"](t), server.Config{}, "#/customer?key=k&limit=signup", func(v *visit, api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/limits/signup/keys" && armed.Swap(false) {
				if _, err := v.limiter.SetOverride(r.Context(), "signup", dipwell.Override{Key: "k", Rate: 15, Until: time.Now().Add(time.Hour).UnixMicro(), Note: "ticket 92"}); err != nil {
					v.t.Error(err)
				}
			}
			api.ServeHTTP(w, r)
		})
	})
	v.take("signup", "k", 1)
	v.to("#/customer?key=k") // where the limit is not asked by itself
	v.start("signup", "raise")
	v.send("do-raise", "rate", "50", "burst", "70", "note", "ticket 93")
	v.wait(`document.querySelector(".timeline .new button") !== null`)
	armed.Store(true)
	v.click(".timeline .new button")
	v.shows("Somebody was faster: nothing was undone.")
	if o, err := v.limiter.Overrides(t.Context(), "signup", "k", "", 1); err != nil || len(o) != 1 || o[0].Note != "ticket 92" {
		t.Errorf("%+v %v", o, err)
	}
}

// Numbers of the last hour: what is refused is on top, and what is 0 is not there.
func TestOverview(t *testing.T) {
	st := stores["memory"](t)
	for day := range 7 {
		keepHour(t, st, time.Now().Add(-time.Duration(day+1)*24*time.Hour), `{"counts":{"login":[900,`+strconv.Itoa(9+day)+`],"search":[100,0]}}`)
	}
	for _, day := range []time.Duration{3, 5} {
		keepHour(t, st, time.Now().Add(-day*24*time.Hour), `{"counts":{"signup":[10,3]}}`)
	}
	v := openBehind(t, st, server.Config{}, "", func(_ *visit, api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch q := r.URL.Query(); {
			case q.Has("minutes"):
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, hourOfCalls(time.Now()))
			case q.Has("hour") && q.Has("limit"):
				t.Errorf("%s, whose answer other views cannot share", r.URL)
			default:
				api.ServeHTTP(w, r)
			}
		})
	})
	v.shows("All 7 limits are healthy")
	v.shows("5.5 % of the calls in the hour until ")
	v.shows("were refused; at this hour of the last 7 days it was 0.9 to 1.6 %.")
	v.shows("signup refuses 50.0 % since ")
	v.shows("; at this hour on 2 of the last 7 days it was 30.0 %; mostly acme.")
	v.wait(`[...document.querySelectorAll("#with-calls td:last-child")].map((c) => c.innerText.trim()).join() === "1+,12+,"`)
	v.wait(`[...document.querySelectorAll("#with-calls tbody tr")].map((r) => r.cells[0].innerText.trim()).join() === "signup,login,search"`)
	v.wait(`document.querySelectorAll("#with-calls .spark").length === 2 && !document.getElementById("with-calls").innerText.includes("0.0 %")`)
	v.shows("4 limits without calls in the last hour")
	v.wait(`document.querySelectorAll(".chart .bar-refused").length === 1`)
	v.run(chromedp.Focus(chromedp.CSS(".read")), chromedp.KeyEvent(kb.ArrowLeft))
	v.wait(`document.querySelector(".readout").innerText.includes("allowed, ")`)
	v.accessible()
	v.fits()
	v.click(`a[href="#/customer?key=acme"]`)
	v.wait(`document.title === "dipwell: acme"`)
	v.shows("Refused in signup, by another service")
	v.shows("290 calls in the hour until ")
	v.at("#/limit?name=signup")
	v.shows("were refused; at this hour on 2 of the last 7 days it was 30.0 %.")
}

// The texts of the axis of an hour keep apart, whenever the hour begins.
func TestAxisOfAnHour(t *testing.T) {
	var late atomic.Int64 // minutes
	v := openBehind(t, stores["memory"](t), server.Config{}, "", func(_ *visit, api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("minutes") {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, hourOfCalls(time.Now().Add(time.Duration(-late.Load())*time.Minute)))
				return
			}
			api.ServeHTTP(w, r)
		})
	})
	v.run(chromedp.EmulateViewport(390, 800))
	for late.Load() < 15 {
		v.run(chromedp.Navigate(v.url + "/ui/"))
		v.wait(`document.querySelectorAll(".chart .bar-refused").length === 1`)
		v.wait(drawn)
		if wrong := look(v, chromedp.Evaluate[string](crowded)); wrong != "" {
			t.Errorf("%d minutes ago: %s", late.Load(), wrong)
		}
		late.Add(1)
	}
}

// The busiest keys of an hour of the last week, as the store keeps them.
func TestHour(t *testing.T) {
	st := stores["memory"](t)
	keepHours(t, st, "mail the-hour 5 1")
	v := open(t, st, server.Config{}, "")
	v.shows("Nobody was refused in the last hour.")
	v.wait(`((f) => { f.selectedIndex = 1; f.dispatchEvent(new Event("change", {bubbles: true})); return true; })(document.getElementById("hour"))`)
	v.shows("Counted by there:2.")
	v.shows("the-hour")
	v.shows("5 (−1)")
	v.accessible()
	v.fits()
	v.wait(`(document.getElementById("hour").focus(), document.activeElement.id === "hour")`)
	v.run(chromedp.KeyEvent(kb.ArrowDown))
	v.shows("Nothing is kept of this hour.")
}

// With -update, the pictures of the docs are taken.
func TestPictures(t *testing.T) {
	if !*update {
		return
	}
	v := openBehind(t, stores["memory"](t), server.Config{Labels: map[string]string{"env": "production"}}, "", func(_ *visit, api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("minutes") {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, hourOfCalls(time.Now()))
				return
			}
			api.ServeHTTP(w, r)
		})
	})
	v.take("signup", "acme", 18)
	v.post(3, "limit=signup&cost=3&key=acme")
	v.post(2, "limit=search&key=acme")
	if _, err := v.limiter.SetOverride(t.Context(), "search", dipwell.Override{Key: "acme", Rate: 60, Until: time.Now().Add(3 * time.Hour).UnixMicro(), Note: "import, ticket 84"}); err != nil {
		t.Fatal(err)
	}
	v.shows("mostly acme.")
	v.wait(`document.getElementById("ends") !== null`)
	v.picture("ui-overview.png", "light")
	v.to("#/customer?key=acme")
	v.why("signup", "Refuses calls above 2 tokens")
	v.picture("ui-customer.png", "light")
	v.start("signup", "raise")
	v.shows("Ends by itself: the base again.")
	v.set("note", "nightly import moved to the day, ticket 93")
	v.picture("ui-raise.png", "dark")
	v.run(chromedp.Navigate(v.url + "/ui/playground"))
	v.shows("60\ncalls")
	v.wait(`((at) => { at.value = 700; at.dispatchEvent(new Event("input")); return true; })(document.getElementById("at"))`)
	v.picture("ui-playground.png", "light")
}

// hourOfCalls is an answer of GET /v1/top?minutes=60, in which signup begins to refuse after
// half of the hour.
func hourOfCalls(now time.Time) string {
	list := func(f func(i int) int) string {
		var out []string
		for i := range 60 {
			out = append(out, fmt.Sprint(f(i)))
		}
		return "[" + strings.Join(out, ",") + "]"
	}
	from := now.UTC().Truncate(time.Minute).Add(-time.Hour)
	return fmt.Sprintf(`{"from":%q,"minutes":60,"processes":[{"process":"a:1","first":%[1]q,"last":%[2]q},{"process":"b:1","first":%[1]q,"last":%[2]q}],"shared":true,"took":[0,0,0,0,0,0,0,0,0,0,50,40,9,1,0,0,0,0,0,0,0,0,0,0,0,0],
		"limits":[{"limit":"login","allowed":%[3]s,"refused":%[4]s,"customers":12},{"limit":"search","allowed":%[5]s},{"limit":"signup","allowed":%[6]s,"refused":%[7]s,"customers":1}],"more_customers":true,
		"refused":{"counted":420,"unlisted_at_most":0,"keys":[{"limit":"signup","key":"acme","count":290,"error":0},{"limit":"login","key":"203.0.113.9","count":60,"error":3}]},"shed":0,"gauges":{}}`,
		from.Format(time.RFC3339), from.Add(59*time.Minute).Format(time.RFC3339),
		list(func(i int) int { return 40 + i%7 }), list(func(i int) int { return 2 }), list(func(i int) int { return 60 + (i*i)%23 }), list(func(i int) int { return 10 }), list(func(i int) int { return i / 30 * 10 }))
}

// The token is asked for once, and again when it is wrong. It is nowhere but in memory.
func TestToken(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{AdminToken: "s3cret"}, "")
	v.run(chromedp.WaitVisible(chromedp.CSS("#token")), chromedp.SendKeys(chromedp.CSS("#token"), "wrong\r"))
	v.shows("That is not a token of this service.")
	v.run(chromedp.SendKeys(chromedp.CSS("#token"), "s3cret\r"))
	v.shows("All 7 limits are healthy")
	v.to("#/customer?key=k&limit=login")
	v.shows("20 of 20 free")
	v.wait(`!document.getElementById("login").open && document.cookie === "" && localStorage.length + sessionStorage.length === 0 && !document.documentElement.outerHTML.includes("s3cret")`)
}

// A token may have any letters, and so may a mistake in it.
func TestTokenOfOtherLetters(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{AdminToken: "gehëim€"}, "")
	enter := func(token string) {
		v.run(chromedp.WaitVisible(chromedp.CSS("#token")))
		v.wait("(document.getElementById('token').value = " + quote(token) + ") !== null")
		v.click("#login button")
	}
	enter("falsch€")
	v.shows("That is not a token of this service.")
	enter("gehëim€")
	v.shows("All 7 limits are healthy")
}

// The views can be reached with the keyboard alone, and a panel gives the focus back.
func TestKeyboard(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "")
	v.shows("All 7 limits are healthy")
	press := func(times int) {
		for range times {
			v.run(chromedp.KeyEvent("\t"))
		}
		v.run(chromedp.KeyEvent("\r"))
	}
	press(5) // the link past the frame, the name, the search, Overview; Limits is next
	v.wait(`location.hash === "#/limits" && document.activeElement.id === "view"`)
	v.wait(`document.querySelectorAll("#limits tbody tr").length === 7`)
	v.to("#/customer?key=k&limit=signup")
	v.wait(`(document.querySelector("[data-action=raise]")?.focus(), document.activeElement?.dataset.action === "raise")`)
	v.run(chromedp.KeyEvent("\r"))
	v.wait(`document.activeElement.id === "rate"`)
	v.run(chromedp.KeyEvent(kb.Escape))
	v.wait(`document.activeElement?.dataset.action === "raise"`)
}

// Each view has no violation that axe-core finds, and fits on a phone.
func TestAccessible(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{AdminToken: "s3cret"}, "")
	v.run(chromedp.WaitVisible(chromedp.CSS("#token")))
	v.accessible()
	v.run(chromedp.SendKeys(chromedp.CSS("#token"), "s3cret\r"))
	v.shows("All 7 limits are healthy")
	v.post(21, "limit=signup&key=k")
	v.accessible()
	long := strings.Repeat("key-of-300-bytes/", 17) + "0123456789!"
	if _, err := v.limiter.SetOverride(t.Context(), "signup", dipwell.Override{Key: long, Rate: 100, Until: time.Now().Add(time.Hour).UnixMicro(), Note: "for a week"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ hash, ready string }{
		{"#/customer?key=k&limit=signup", `document.querySelector("[data-action=raise]") !== null`},
		{"#/customer?limit=signup&key=" + url.QueryEscape(long), `document.querySelector("[data-action=raise]") !== null`},
		{"#/limits", `document.querySelectorAll("#limits tbody tr").length === 7`},
		{"#/limit?name=signup", `document.getElementById("overrides")?.innerText.includes("for a week")`},
		{"#/draft", `document.getElementById("draft") !== null`},
		{"#/changes", `document.body.innerText.includes("Nothing was changed.")`},
		{"#/overview", `document.getElementById("ends")?.innerText.includes("for a week")`},
	} {
		v.to(c.hash)
		v.wait(c.ready)
		v.accessible()
		v.fits()
	}
}
