package ui_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

var update = flag.Bool("update", false, "write the pictures of docs/img")

func TestMain(m *testing.M) {
	if err := setEngine(); err != nil { // before the first request, which reads it
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(pgtest.Main(run(func() int { return redistest.Main(m) })))
}

type run func() int

func (r run) Run() int { return r() }

// patience is how long a condition of the page may take on a slow machine.
const patience = 5 * time.Minute

// A visit is a tab of a browser at a service.
type visit struct {
	t       *testing.T
	ctx     context.Context
	limiter *dipwell.Limiter
	url     string
	also    string // another service that the browser may call

	mu       sync.Mutex
	problems []string // errors that the browser has logged, and requests to other places
}

// stores are those that the page is tested with.
var stores = map[string]func(t *testing.T) store.Store{
	"memory": func(t *testing.T) store.Store {
		t.Helper()
		st, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		return st
	},
	"postgres": func(t *testing.T) store.Store {
		t.Helper()
		dsn := pgtest.Database(t, "migrated", func(dsn string) error {
			conn, err := pgx.Connect(context.Background(), dsn)
			if err != nil {
				return err
			}
			defer conn.Close(context.Background())
			_, err = pgstore.Migrate(context.Background(), conn, pgstore.MigrateOptions{})
			return err
		})
		st, err := pgstore.Open(t.Context(), dsn, pgstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		return st
	},
	"redis": func(t *testing.T) store.Store {
		t.Helper()
		server := redistest.Shared(t)
		if _, err := server.Do("flushall"); err != nil { // the tests run one after the other
			t.Fatal(err)
		}
		st, err := redisstore.Open(t.Context(), server.URL(), redisstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		return st
	},
}

var limits = []string{
	"login=5/1m,burst=20",
	// So slow that a slow machine sees the same number of tokens.
	"signup=5/1d,burst=20,keys=list,plans=pro:rate=600;burst=1000|banned:mode=blocked",
	"search=30/1s,burst=60", "mail=1000/1d,algorithm=fixed_window,start=0s,shared=true", "slots=2,algorithm=concurrency,ttl=1d",
	"org=100/1s,burst=100,parts=1", "user=10/1s,burst=20,parent=org",
}

// browser is one Chromium for all tests of the package.
var browser = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1100, 800), chromedp.WSURLReadTimeout(patience))
	ctx, _ := chromedp.NewExecAllocator(context.Background(), options...) // ends with this process
	ctx, _ = chromedp.NewContext(ctx)
	return ctx, chromedp.Do(ctx)
})

// open visits a new service, at the address's part after the hash.
func open(t *testing.T, st store.Store, c server.Config, hash string) *visit {
	t.Helper()
	parent, err := browser()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("no Chromium: ", err)
	}
	v := &visit{t: t}
	var defs []dipwell.Limit
	for _, text := range limits {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, l)
	}
	if v.limiter, err = dipwell.New(st, defs...); err != nil {
		t.Fatal(err)
	}
	s := server.New(v.limiter, c)
	wait := s.CountKeys(t.Context(), "here:1", 0)
	srv := httptest.NewServer(s.API(server.Site{Loopback: true}))
	t.Cleanup(func() { s.Stop(); srv.Close(); wait() })
	v.url = srv.URL
	ctx, leave := chromedp.NewContext(parent)
	t.Cleanup(leave)
	ctx, cancel := context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	v.ctx = ctx
	v.run()
	if err := chromedp.Listen(ctx, v.hear); err != nil {
		t.Fatal(err)
	}
	v.run(command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}), chromedp.Navigate(srv.URL+"/ui/"+hash))
	t.Cleanup(func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if len(v.problems) > 0 {
			t.Errorf("the browser says:\n%s", strings.Join(v.problems, "\n"))
		}
	})
	return v
}

// hear collects what must not happen: exceptions, logged errors such as a violation of
// the policy, and requests to another place.
func (v *visit) hear(event any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		v.problems = append(v.problems, fmt.Sprint(e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork { // a status of 401 or 404 is the business of a test
			v.problems = append(v.problems, e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, v.url) && (v.also == "" || !strings.HasPrefix(e.Request.URL, v.also)) && !strings.HasPrefix(e.Request.URL, "data:") {
			v.problems = append(v.problems, "a request to "+e.Request.URL)
		}
	}
}

func (v *visit) run(actions ...chromedp.Action[chromedp.Void]) {
	v.t.Helper()
	if err := chromedp.Do(v.ctx, actions...); err != nil {
		text, _ := chromedp.Run(v.ctx, chromedp.Evaluate[string]("document.body.innerText"))
		v.t.Fatalf("%v; the page says:\n%s", err, text)
	}
}

// command is a command of the protocol as an action.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, c, params)
		return err
	})
}

// look returns the value of an action.
func look[T any](v *visit, a chromedp.Action[T]) (value T) {
	v.t.Helper()
	v.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) (err error) {
		value, err = a(ctx, t)
		return err
	}))
	return value
}

// wait waits until an expression of the page is true.
func (v *visit) wait(expression string) {
	v.t.Helper()
	_ = look(v, chromedp.Poll[bool](expression, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(patience)))
}

// shows waits until the page shows a text.
func (v *visit) shows(text string) {
	v.t.Helper()
	v.wait("document.body.innerText.includes(" + quote(text) + ")")
}

func quote(text string) string { return `decodeURIComponent("` + url.PathEscape(text) + `")` }

// send sets the values of fields by their ids, and presses the button of their form.
func (v *visit) send(form string, values ...string) {
	v.t.Helper()
	v.run(chromedp.WaitVisible(chromedp.CSS("#" + form)))
	for i := 0; i < len(values); i += 2 {
		v.wait("(document.getElementById(" + quote(values[i]) + ").value = " + quote(values[i+1]) + ") !== null")
	}
	v.run(chromedp.Click(chromedp.CSS("#" + form + " button")))
}

// free checks how many tokens of a key of signup are free.
func (v *visit) free(key string, want int64) {
	v.t.Helper()
	d, err := v.limiter.Check(v.t.Context(), "signup", key, 0)
	if err != nil || d.Remaining != want {
		v.t.Errorf("%s has %d tokens, want %d: %v", key, d.Remaining, want, err)
	}
}

func (v *visit) take(limit, key string, n int64) {
	v.t.Helper()
	if _, err := v.limiter.Charge(v.t.Context(), limit, key, n); err != nil {
		v.t.Fatal(err)
	}
}

// post sends calls as programs do, so that they are counted.
func (v *visit) post(n int, form string) {
	v.t.Helper()
	for range n {
		r, err := http.NewRequestWithContext(v.t.Context(), http.MethodPost, v.url+"/v1/take?"+form, nil)
		if err != nil {
			v.t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			v.t.Fatal(err)
		}
		_ = res.Body.Close()
	}
}

// picture writes a picture of the page for the docs.
func (v *visit) picture(name, scheme string) {
	v.t.Helper()
	v.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
	png := look(v, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join("..", "..", "docs", "img", name), png, 0o600); err != nil {
		v.t.Fatal(err)
	}
}

// accessible checks what is shown with axe-core, in light and in dark.
func (v *visit) accessible() {
	v.t.Helper()
	if !look(v, chromedp.Evaluate[bool](`"axe" in window`)) {
		source, err := os.ReadFile(filepath.Join("testdata", "axe", "axe.min.js"))
		if err != nil {
			v.t.Fatal(err)
		}
		look(v, chromedp.Evaluate[bool](string(source)+`;"axe" in window`))
	}
	const run = `.then(({violations}) => violations.flatMap((x) => x.nodes.map((n) => x.id + ": " + n.failureSummary + "\n" + n.html)).join("\n"))`
	for scheme, call := range map[string]string{"light": "axe.run()", "dark": `axe.run({runOnly: ["color-contrast"]})`} {
		v.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
		if found := look(v, chromedp.Evaluate[string](call+run, chromedp.EvalAwaitPromise)); found != "" {
			v.t.Errorf("%s: %s", scheme, found)
		}
	}
}

// fits checks that a phone shows the page without scrolling sideways.
func (v *visit) fits() {
	v.t.Helper()
	v.run(chromedp.EmulateViewport(360, 740))
	wide := look(v, chromedp.Evaluate[int]("document.documentElement.scrollWidth"))
	v.run(chromedp.EmulateViewport(1100, 800))
	if wide > 360 {
		v.t.Errorf("the page is %d pixels wide on a phone of 360", wide)
	}
}

// script is a key that is markup.
const script = `<img src=x onerror="document.title='pwned'"> & "quotes"`

// keepHours adds top keys to a store, as another service does. The busiest are "limit key
// count error", the first of them the most refused too.
func keepHours(t *testing.T, st store.Store, busiest ...string) {
	t.Helper()
	var keys []string
	for _, text := range busiest {
		f := strings.Fields(text)
		keys = append(keys, fmt.Sprintf(`{"limit":%q,"key":%q,"count":%s,"error":%s}`, f[0], f[1], f[2], f[3]))
	}
	list := func(keys []string) string {
		return `{"counted":9000,"unlisted_at_most":2,"keys":[` + strings.Join(keys, ",") + "]}"
	}
	for _, at := range []time.Time{time.Now().Add(-time.Hour), time.Now()} { // the hour may change while the page is opened
		if err := store.AbilitiesOf(st).TopKeys.Record(t.Context(), store.AuditEntry{Who: "there:2", What: `{"hour":"` + at.UTC().Truncate(time.Hour).Format(time.RFC3339) +
			`","busiest":` + list(keys) + `,"refused":` + list(keys[:1]) + "}"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNow(t *testing.T) {
	st := stores["memory"](t)
	keepHours(t, st, "mail the-hour 5 1")
	v := open(t, st, server.Config{}, "")
	v.shows("Counted by there:2.")
	v.shows("the-hour")
	v.shows("5 (−1)")
	v.wait(`(document.getElementById("hour").focus(), document.activeElement.id === "hour")`)
	v.run(chromedp.KeyEvent(kb.ArrowDown))
	v.shows("Nothing is kept of this hour.")
	v.shows("by this service alone (here:1)")
	v.wait(`document.querySelectorAll(".card").length > 5`)
	for _, text := range []string{script, "user:7", "shared bucket"} { // as text
		for !look(v, chromedp.Evaluate[bool]("document.body.innerText.includes("+quote(text)+")")) {
			v.post(3, "limit=signup&key="+url.QueryEscape(script)) // the keys of the last minute are shown
			v.post(2, "limit=search&key=user%3A7")
			v.post(1, "limit=mail")
		}
	}
	v.wait(`document.querySelectorAll("svg.chart polyline").length === 2`)
	v.fits()
	v.run(chromedp.Click(chromedp.CSS(`a[href="#/key?limit=search&key=user%3A7"]`)))
	v.wait(`location.hash === "#/key?limit=search&key=user%3A7" && document.querySelector("h1 a")?.textContent === "search"`)
	if title := look(v, chromedp.Title()); title != "dipwell: key" {
		t.Errorf("title %q", title)
	}
}

// Each action of the view Key, on every store.
// A service that hangs, or a connection that is cut without a word, does not leave old
// numbers on the page as if they were new.
func TestNowWithoutEvents(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "#/limits")
	v.shows("Draft a limit")
	look(v, chromedp.Evaluate[bool](`(() => {
		const {fetch, setTimeout} = window;
		window.calls = 0;
		window.setTimeout = (f, ms) => setTimeout(f, window.calls === 1 && ms === 10000 ? 100 : ms); // not those of the test itself
		window.fetch = (path, o) => path !== "/v1/live" || ++window.calls > 1 ? fetch(path, o) : Promise.resolve(new Response(new ReadableStream()));
		return true;
	})()`))
	v.run(chromedp.Click(chromedp.CSS(`nav a[href="#/now"]`)))
	v.wait(`window.calls > 1 && document.querySelectorAll(".card").length > 5`)
}

// A shared limit shows its bucket at once; any other asks for a key.
func TestKeyOfASharedLimit(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "#/limits?name=mail")
	v.post(1, "limit=mail")
	v.run(chromedp.Click(chromedp.CSS(`a[href="#/key?limit=mail"]`)))
	v.shows("shared bucket of mail")
	v.shows("999\ntokens free")
	v.wait(`document.getElementById("key").disabled && document.getElementById("list") === null`)
	v.send("refund", "refund-cost", "1")
	v.shows("1,000\ntokens free")
	v.send("raise", "raise-rate", "3000", "raise-burst", "3000", "raise-for", "1h", "raise-note", "ticket 83")
	v.shows("3,000\ncapacity")
	v.send("end")
	v.shows("1,000\ncapacity")
	v.wait(`(location.hash = "#/key?limit=login") !== null`)
	v.shows("Each key of this limit has a bucket of its own: say which.")
	v.wait(`!document.getElementById("key").disabled && !document.body.innerText.includes("shared bucket")`)
	v.send("find", "limit", "login", "key", "k")
	v.shows("20\ntokens free")
}

func TestKey(t *testing.T) {
	for name, openStore := range stores {
		t.Run(name, func(t *testing.T) {
			v := open(t, openStore(t), server.Config{}, "#/key")
			v.take("signup", script, 18)
			v.post(3, "limit=signup&cost=3&key="+url.QueryEscape(script))
			v.send("find", "limit", "signup", "key", script)
			v.wait(`[...document.querySelectorAll("h2")].find((x) => x.textContent === "Last refusals")?.nextElementSibling.querySelectorAll("tbody tr").length > 0`)
			v.shows("A sample, by this service alone (here:1)")
			v.shows("2\ntokens free")
			v.shows("if nobody comes: one more in ")
			v.send("next", "next-cost", "1")
			v.shows("It passes now.")
			v.send("next", "next-cost", "21")
			v.shows("Never: no wait helps.")
			v.send("next", "next-cost", "7")
			v.wait(`/^In (1 d|24 h|23\.9 h)/.test(document.getElementById("next-answer").textContent)`)

			v.send("raise", "raise-rate", "50", "raise-burst", "70", "raise-for", "1h", "raise-note", "ticket 81")
			v.shows("ticket 81")
			v.shows("70\ncapacity")
			v.free(script, 52)
			v.send("end")
			v.shows("20\ncapacity")
			v.wait(`document.getElementById("plan").value === "" && !document.getElementById("give").checkValidity()`) // nobody's plan is chosen by accident
			v.send("give", "plan", "pro", "give-for", "", "give-note", "until the invoice")
			v.shows("1,000\ncapacity")
			v.shows("no end")
			v.send("block", "block-note", "abuse")
			v.wait(`document.querySelector("dl")?.innerText.includes("banned")`)
			if d, err := v.limiter.Take(t.Context(), "signup", script, 1); err != nil || d.Allowed {
				t.Errorf("a blocked key may call: %+v %v", d, err)
			}
			v.send("end")
			v.shows("1,000\ncapacity") // the plan lies below the block, which has an end
			v.send("end")
			v.shows("20\ncapacity")
			v.send("refund", "refund-cost", "5", "refund-note", "ticket 82")
			v.shows("Refunded.")
			v.shows("ticket 82")
			v.run(chromedp.Click(chromedp.CSS("#reset-sure")))
			v.send("reset")
			v.shows("The bucket is full.")
			v.shows("20\ntokens free")
			v.free(script, 20)
			v.take("signup", script, 3)
			v.audited(script)
			v.send("list", "prefix", "<img")
			v.wait(`document.querySelector("section td.key")?.textContent === ` + quote(script))
			v.fits()

			if _, err := v.limiter.Hold(t.Context(), 24*time.Hour, "held-by-us", dipwell.Take{Limit: "slots", Key: "gpu", Cost: 1}); err != nil {
				t.Fatal(err)
			}
			v.send("find", "limit", "slots", "key", "gpu")
			v.wait(`document.querySelector("h1 a")?.textContent === "slots"`)
			v.shows("held-by-us")
			v.send("raise", "raise-burst", "5", "raise-for", "1h", "raise-note", "ticket 84")
			v.shows("5\ncapacity")
			v.send("find", "limit", "org", "key", "")
			v.shows("Keys are paths")
			v.send("find", "limit", "user", "key", "acme/7")
			v.shows("With its parents")
		})
	}
}

// audited looks at the changes that TestKey has made so far in the view Audit, and comes
// back.
func (v *visit) audited(key string) {
	v.t.Helper()
	v.wait(`document.querySelectorAll("#view table td.key").length >= 8`) // in the view Key
	back := look(v, chromedp.Evaluate[string]("location.hash"))
	v.run(chromedp.Click(chromedp.CSS(`nav a[href="#/audit"]`)))
	v.wait(`document.title === "dipwell: audit" && document.querySelectorAll("tbody tr").length === 8`)
	v.wait(`document.querySelector("tbody tr:last-child").innerText.includes("ticket 81") && document.querySelector("tbody tr:last-child td.key").textContent === ` + quote(key))
	v.send("filter", "audit-limit", "login")
	v.shows("Nothing was changed.")
	v.send("filter", "audit-limit", "signup")
	v.shows("127.0.0.1")
	v.fits()
	v.wait("(location.hash = " + quote(back) + ") !== null")
	v.shows("17\ntokens free")
}

func TestLimits(t *testing.T) {
	for name, openStore := range stores {
		t.Run(name, func(t *testing.T) {
			v := open(t, openStore(t), server.Config{}, "#/limits")
			v.wait(`document.querySelectorAll("tbody tr").length === 7`)
			v.fits()
			if _, err := v.limiter.SetOverride(t.Context(), "signup", dipwell.Override{Key: script, Rate: 100, Note: "for a week"}); err != nil {
				t.Fatal(err)
			}
			v.run(chromedp.Click(chromedp.CSS(`a[href="#/limits?name=signup"]`)))
			v.shows("for a week")
			v.shows("mode blocked")
			v.shows(script)
			v.fits()
			v.run(chromedp.Click(chromedp.CSS(`section button`)))
			v.shows("No key has one.")
			if list, err := v.limiter.Overrides(t.Context(), "signup", "", "", 10); err != nil || len(list) > 0 {
				t.Error(list, err)
			}
			v.shows("Its owner is code")
			v.drafts()
		})
	}
}

// drafts writes a limit, tries it in shadow mode, and enforces it.
func (v *visit) drafts() {
	v.t.Helper()
	v.run(chromedp.Click(chromedp.CSS(`nav a[href="#/limits"]`)), chromedp.Click(chromedp.CSS(`a[href="#/limits?draft"]`)))
	v.run(chromedp.WaitVisible(chromedp.CSS("#draft")), chromedp.SendKeys(chromedp.CSS("#draft-name"), "export"), chromedp.SendKeys(chromedp.CSS("#draft-rate"), "2"),
		chromedp.SendKeys(chromedp.CSS("#draft-per"), "1d"))
	v.wait(`location.hash === "#/limits?draft&algorithm=token_bucket&name=export&rate=2&per=1d"`)
	v.fits()
	v.send("draft", "draft-note", "new customers")
	v.shows("Shadow mode: it allows every call.")
	v.wait(`document.getElementById("would").innerText.includes("0 of 0 calls")`)
	v.post(5, "limit=export&key=k") // in shadow mode nothing is charged that would be refused
	v.shows("It would have refused 3 of 5 calls (60.0 %)")
	v.fits()
	v.run(chromedp.Click(chromedp.CSS("#mode-sure")))
	v.send("mode", "mode-note", "two weeks are enough")
	v.wait(`document.querySelector("#mode button")?.textContent === "Put in shadow mode"`)
	if d, err := v.limiter.Take(v.t.Context(), "export", "k", 1); err != nil || d.Allowed {
		v.t.Errorf("it is not enforced: %+v %v", d, err)
	}
	v.run(chromedp.Click(chromedp.CSS(`nav a[href="#/audit"]`)))
	v.shows("two weeks are enough")
	v.shows("new customers")
}

// The token is asked for once, and again when it is wrong. It is nowhere but in memory.
func TestToken(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{AdminToken: "s3cret"}, "#/now")
	v.run(chromedp.WaitVisible(chromedp.CSS("#token")), chromedp.SendKeys(chromedp.CSS("#token"), "wrong\r"))
	v.shows("That is not a token of this service.")
	v.run(chromedp.SendKeys(chromedp.CSS("#token"), "s3cret\r"))
	v.wait(`document.querySelectorAll(".card").length > 5`)
	v.run(chromedp.Click(chromedp.CSS(`nav a[href="#/key"]`)))
	v.send("find", "limit", "login", "key", "k")
	v.shows("20\ntokens free")
	v.wait(`!document.getElementById("login").open && document.cookie === "" && localStorage.length + sessionStorage.length === 0 && !document.documentElement.outerHTML.includes("s3cret")`)
}

// A token may have any letters, and so may a mistake in it.
func TestTokenOfOtherLetters(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{AdminToken: "gehëim€"}, "#/now")
	enter := func(token string) {
		v.run(chromedp.WaitVisible(chromedp.CSS("#token")))
		v.wait("(document.getElementById('token').value = " + quote(token) + ") !== null")
		v.run(chromedp.Click(chromedp.CSS("#login button")))
	}
	enter("falsch€")
	v.shows("That is not a token of this service.")
	enter("gehëim€")
	v.wait(`document.querySelectorAll(".card").length > 5`)
}

// The views can be reached with the keyboard alone.
func TestKeyboard(t *testing.T) {
	v := open(t, stores["memory"](t), server.Config{}, "#/now")
	v.wait(`document.querySelectorAll(".card").length > 5`)
	press := func(times int) {
		for range times {
			v.run(chromedp.KeyEvent("\t"))
		}
		v.run(chromedp.KeyEvent("\r"))
	}
	press(4) // the link past the menu, Now, Key, Limits; Audit is next
	v.wait(`location.hash === "#/limits" && document.activeElement.id === "view"`)
	v.wait(`document.querySelectorAll("tbody tr").length === 7`)
	press(2) // the link to a draft, and the first limit
	v.wait(`location.hash === "#/limits?name=login"`)
}

// Each view has no violation that axe-core finds.
func TestAccessible(t *testing.T) {
	st := stores["memory"](t)
	keepHours(t, st, "mail the-hour 5 1")
	v := open(t, st, server.Config{AdminToken: "s3cret"}, "#/now")
	v.run(chromedp.WaitVisible(chromedp.CSS("#token")))
	v.accessible()
	v.run(chromedp.SendKeys(chromedp.CSS("#token"), "s3cret\r"))
	v.post(21, "limit=signup&key=k")
	v.wait(`document.querySelectorAll(".card").length > 5`)
	v.shows("the-hour")
	v.accessible()
	if _, err := v.limiter.SetOverride(t.Context(), "signup", dipwell.Override{Key: "k", Rate: 100, Note: "for a week"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ hash, ready string }{
		{"#/key?limit=signup&key=k", `document.getElementById("end-note") !== null`},
		{"#/limits", `document.querySelectorAll("tbody tr").length === 7`},
		{"#/limits?name=signup", `document.querySelector("section button") !== null`},
		{"#/limits?draft", `document.getElementById("draft") !== null`},
		{"#/audit", `document.body.innerText.includes("Nothing was changed.")`},
	} {
		v.wait("(location.hash = " + quote(c.hash) + ") !== null")
		v.wait(c.ready)
		v.accessible()
	}
}

// With -update, the pictures of the docs are taken.
func TestPictures(t *testing.T) {
	if !*update {
		return
	}
	st := stores["memory"](t)
	keepHours(t, st, "login 203.0.113.9 2210 0", "search user:41 1904 0", "search user:45 1877 3", "search user:47 902 12")
	v := open(t, st, server.Config{}, "#/now")
	v.wait(`document.querySelectorAll(".card").length > 5`)
	for second := range 20 {
		for i := range 9 {
			v.post(1+(second+3*i)%7, fmt.Sprintf("limit=search&key=user:%d", 40+i))
		}
		v.post(4+second%3, "limit=login&key=203.0.113.9")
		v.post(1, "limit=login&key=user:7")
		v.wait(fmt.Sprintf(`document.querySelector("polyline").points.length > %d`, second+2))
	}
	v.picture("ui-now.png", "light")
	v.run(chromedp.Click(chromedp.CSS(`nav a[href="#/key"]`)))
	v.send("find", "limit", "login", "key", "user:7")
	v.shows("if nobody comes")
	v.picture("ui-key.png", "dark")
	v.run(chromedp.Navigate(v.url + "/ui/playground"))
	v.shows("60\ncalls")
	v.wait(`((at) => { at.value = 700; at.dispatchEvent(new Event("input")); return true; })(document.getElementById("at"))`)
	v.picture("ui-playground.png", "light")
}
