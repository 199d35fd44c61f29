package ui_test

import (
	"context"
	"crypto/sha256"
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
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
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

var (
	update = flag.Bool("update", false, "write the pictures of docs/img")
	states = flag.String("states", "", "a directory into which pictures of states are written, of which docs/img has none")
)

// drawn is true once all charts have the width of their place.
const drawn = `[...document.querySelectorAll("figure > svg.chart")].every((s) => Math.abs(s.clientWidth - s.parentElement.clientWidth) < 2)`

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
	"org=100/1d,burst=100,parts=1,keys=list", "user=10/1d,burst=20,parent=org,keys=list",
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
	return openBehind(t, st, c, hash, nil)
}

// openBehind visits a service through the handler that more makes of its API.
func openBehind(t *testing.T, st store.Store, c server.Config, hash string, more func(*visit, http.Handler) http.Handler) *visit {
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
	api := s.API(server.Site{Loopback: true})
	if more != nil {
		api = more(v, api)
	}
	srv := httptest.NewServer(api)
	t.Cleanup(func() { s.Stop(); srv.Close(); wait() })
	v.url = srv.URL
	ctx, leave := chromedp.NewContext(parent)
	t.Cleanup(leave)
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
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

// send sets the values of fields by their ids, and presses the first button of their form.
func (v *visit) send(form string, values ...string) {
	v.t.Helper()
	v.run(chromedp.WaitVisible(chromedp.CSS("#" + form)))
	v.set(values...)
	v.click("#" + form + " button")
}

// set sets the values of fields by their ids, as if they were typed.
func (v *visit) set(values ...string) {
	v.t.Helper()
	for i := 0; i < len(values); i += 2 {
		v.wait("((f) => { if (!f) return false; f.value = " + quote(values[i+1]) + `; for (const e of ["input", "change"]) f.dispatchEvent(new Event(e, {bubbles: true})); return true; })(document.getElementById(` + quote(values[i]) + "))")
	}
}

// click clicks once, on what is there to be clicked.
func (v *visit) click(selector string) {
	v.t.Helper()
	v.run(chromedp.Click(chromedp.CSS(selector)))
}

// press presses the key of a character, wherever the focus is.
func (v *visit) press(key string) {
	v.t.Helper()
	v.run(command(input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: key, Text: key}))
}

// start opens the form of an action for a limit.
func (v *visit) start(limit, action string) {
	v.t.Helper()
	v.wait(`document.querySelector("#do .actions") !== null`)
	if look(v, chromedp.Evaluate[bool](`document.getElementById("in") !== null`)) {
		v.set("in", limit)
	}
	v.click(`#do [data-action="` + action + `"]`)
}

// why waits until the sentence about a limit has a text.
func (v *visit) why(limit, text string) {
	v.t.Helper()
	v.wait(`document.querySelector("#limit-` + limit + ` .why")?.innerText.includes(` + quote(text) + `)`)
}

// sum is the digest of a token.
func sum(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

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
		v.request(http.MethodPost, "/v1/take", form)
	}
}

// request sends a form to the service.
func (v *visit) request(method, path, form string) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.url+path, strings.NewReader(form))
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	_ = res.Body.Close()
}

// picture writes a picture of the page for the docs.
func (v *visit) picture(name, scheme string) {
	v.t.Helper()
	v.scheme(scheme)
	v.run(chromedp.EmulateViewport(1280, 800))
	v.wait(drawn)
	png := look(v, chromedp.FullScreenshot(100))
	v.run(chromedp.EmulateViewport(1100, 800))
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
		v.scheme(scheme)
		if found := look(v, chromedp.Evaluate[string](call+run, chromedp.EvalAwaitPromise)); found != "" {
			v.t.Errorf("%s: %s", scheme, found)
		}
	}
}

// fits checks that a phone shows the page without scrolling sideways, once charts have the
// width of their place.
func (v *visit) fits() {
	v.t.Helper()
	v.run(chromedp.EmulateViewport(360, 740))
	const wide = `[...document.querySelectorAll("main *, header *")].filter((e) => e.getBoundingClientRect().right > 361 && getComputedStyle(e).position !== "absolute" && !e.closest(".scroll, .tabs")).map((e) => e.outerHTML.slice(0, 200)).slice(0, 5).join("\n")`
	look(v, chromedp.Evaluate[bool](`(async () => { for (let i = 0; i < 100 && document.documentElement.scrollWidth > 360; i++) await new Promise((f) => setTimeout(f, 50)); return true; })()`, chromedp.EvalAwaitPromise))
	if w := look(v, chromedp.Evaluate[int]("document.documentElement.scrollWidth")); w > 360 {
		v.t.Errorf("the page is %d pixels wide on a phone of 360:\n%s", w, look(v, chromedp.Evaluate[string](wide)))
	}
	v.run(chromedp.EmulateViewport(1100, 800))
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
		keepHour(t, st, at, `{"busiest":`+list(keys)+`,"refused":`+list(keys[:1])+"}")
	}
}

// keepHour adds to a store what another service has counted in an hour.
func keepHour(t *testing.T, st store.Store, at time.Time, counted string) {
	t.Helper()
	hour := `{"hour":"` + at.UTC().Truncate(time.Hour).Format(time.RFC3339) + `",`
	if err := store.AbilitiesOf(st).TopKeys.Record(t.Context(), store.AuditEntry{Who: "there:2", What: hour + counted[1:]}); err != nil {
		t.Fatal(err)
	}
}
