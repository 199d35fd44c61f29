package ui_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/replay"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/ui"
)

// setEngine compiles the engine as it stands, and makes the service have it.
func setEngine() error {
	dir, err := os.MkdirTemp("", "dipwell-engine-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("./build.sh", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	written, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	files := fstest.MapFS{}
	for _, f := range written {
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		if compiled(f.Name()) {
			files["built/"+f.Name()] = &fstest.MapFile{Data: content}
		} else {
			static[f.Name()] = &fstest.MapFile{Data: content}
		}
	}
	ui.SetEngine(files)
	return nil
}

// static are the files of docs/playground but for the compiled ones.
var static = fstest.MapFS{}

func compiled(name string) bool { return name == "dipwell.wasm.gz" || name == "wasm_exec.js" }

// tool visits a page that computes.
func tool(t *testing.T, path string) *visit {
	t.Helper()
	return open(t, stores["memory"](t), server.Config{AdminToken: "s3cret"}, path) // it needs no token
}

// settings draws settings of a run.
func settings(r *rand.Rand) replay.PlaySettings {
	one := func(list ...string) string { return list[r.IntN(len(list))] }
	s := replay.PlaySettings{
		Limit: fmt.Sprintf("play=%d/%s", 1+r.IntN(2000), one("7ms", "1s", "1m", "1d", "1s,burst=9,max_debt=3", "1m,algorithm=fixed_window", "1d,algorithm=fixed_window,start=06:00 Europe/Rome",
			"1s,algorithm=interval,burst=5000,start=0s", "7ms,algorithm=leaky_bucket", "1m,algorithm=leaky_bucket,max_debt=9")),
		Verb: one("take", "take_up_to", "reserve"), Cost: r.Int64N(9), Span: one("3s", "5m", "2h"), Every: one("10ms", "1s", "7s"), Count: 1 + r.Int64N(40),
		Pattern: one("steady", "bursts", "poll", "drawn"),
	}
	for range 1 + r.IntN(60) {
		s.Drawn = append(s.Drawn, r.Int64N(20))
	}
	return s
}

// The browser computes what Go does here, to the byte: thousands of decisions and levels,
// and errors.
func TestSameAsGo(t *testing.T) {
	v := tool(t, "playground")
	r := rand.New(rand.NewPCG(7, 11))
	var asked []string
	calls := 0
	for range 60 {
		s := settings(r)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		asked = append(asked, string(text))
		if run, err := replay.Play(s); err == nil {
			calls += len(run.Calls)
		}
	}
	list, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	got := look(v, chromedp.Evaluate[[]string](`(async () => {
		const {Engine} = await import("/ui/tools.js"), engine = new Engine(), answers = [];
		for (const s of `+string(list)+`) answers.push(JSON.stringify(await engine.call("play", [s]).catch((e) => e.message)));
		engine.end();
		return answers;
	})()`, chromedp.EvalAwaitPromise))
	if len(got) != len(asked) || calls < 5000 {
		t.Fatal(len(got), "runs,", calls, "calls")
	}
	for i, text := range asked {
		var s replay.PlaySettings
		var want any
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		want, err := replay.Play(s)
		if err != nil {
			t.Fatal(text, err)
		}
		a, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var run replay.PlayRun // in the order of Go's fields
		if err := json.Unmarshal([]byte(got[i]), &run); err != nil {
			t.Fatal(text, err, got[i])
		}
		b, err := json.Marshal(run)
		if err != nil || string(a) != string(b) {
			t.Errorf("%s:\n%.600s\nin the browser:\n%.600s", text, a, b)
		}
	}
}

// The playground with its fields, the mouse and the keyboard.
func TestPlayground(t *testing.T) {
	v := tool(t, "playground#rate=1&per=1s&burst=5&count=8&every=10s&span=30s")
	v.shows("24\ncalls")
	v.shows("15\nallowed") // 5 of each burst of 8
	v.wait(`document.getElementById("burst").value === "5" && document.querySelectorAll("nav a").length === 5`)
	v.accessible()
	v.fits()

	set := func(name, value string) {
		v.wait(fmt.Sprintf(`((f) => { f.value = %s; f.dispatchEvent(new Event("input", {bubbles: true})); return true; })(document.getElementById(%q))`, quote(value), name))
	}
	set("burst", "7")
	v.shows("21\nallowed")
	v.wait(`location.hash.includes("burst=7")`)
	set("burst", "-1")
	v.wait(`document.getElementById("note").className === "fault" && document.getElementById("note").textContent.startsWith("burst: ")`)
	set("burst", "7")
	v.wait(`document.getElementById("note").textContent === ""`)
	set("block", "25s") // a refusal of the first burst blocks the next ones
	v.shows("7\nallowed")
	set("block", "")
	set("algorithm", "sliding_window")
	v.wait(`document.getElementById("burst").closest("label").hidden && document.getElementById("note").textContent === ""`)
	set("algorithm", "fixed_window")
	set("algorithm", "leaky_bucket")
	v.wait(`document.getElementById("burst").closest("label").hidden`)
	set("algorithm", "token_bucket")
	set("pattern", "poll")
	set("verb", "reserve")
	set("verb", "take")
	v.wait(`document.querySelectorAll("#pad rect").length > 0`)

	// The slider moves through time, also with the keyboard, and so does Play.
	v.run(chromedp.Focus(chromedp.CSS("#at")), chromedp.KeyEvent(kb.Home))
	v.wait(`document.getElementById("at").value === "0" && document.getElementById("clock").textContent === "at 0"`)
	v.run(chromedp.Click(chromedp.CSS("#play")))
	v.wait(`Number(document.getElementById("at").value) > 0 && document.querySelector(".cursor").getAttribute("x1") !== "0.0"`)

	set("at", "1000") // which ends Play
	v.wait(`document.getElementById("play").textContent === "Play"`)

	// Drawn from the left, low, to the right, high.
	v.wait(`((pad) => {
		pad.scrollIntoView();
		const r = pad.getBoundingClientRect(), send = (type, x, y) => pad.dispatchEvent(new PointerEvent(type, {pointerId: 1, clientX: r.left + r.width * x, clientY: r.top + r.height * y, bubbles: true}));
		pad.setPointerCapture = () => {};
		pad.hasPointerCapture = () => true;
		send("pointerdown", 0.01, 0.9);
		send("pointermove", 0.99, 0.5);
		pad.hasPointerCapture = () => false; // the mouse of the browser may be over it
		return true;
	})(document.getElementById("pad"))`)
	v.wait(`document.getElementById("pattern").value === "drawn" && /^2,2,2,.*,10$/.test(document.getElementById("drawn").value) && location.hash.includes("pattern=drawn")`)
	drawn := look(v, chromedp.Evaluate[string](`String(document.getElementById("drawn").value.split(",").reduce((sum, n) => sum + Number(n), 0))`)) + "\ncalls"
	v.shows(drawn)
	v.accessible()
	v.fits()
	again := look(v, chromedp.Evaluate[string]("location.href"))
	v.run(chromedp.Navigate("about:blank"), chromedp.Navigate(again))
	v.shows(drawn)
}

// The same files work on a server of static files; without the compiled ones they say
// where to get them.
func TestStatic(t *testing.T) {
	v := tool(t, "what-if")
	files := fstest.MapFS{}
	add := func(dir string, fsys fs.FS) {
		must(t, fs.WalkDir(fsys, ".", func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			content, err := fs.ReadFile(fsys, name)
			files[dir+path.Base(name)] = &fstest.MapFile{Data: content}
			return err
		}))
	}
	add("with/", static)
	add("with/", ui.Engine())
	add("without/", static)
	srv := httptest.NewServer(http.FileServerFS(files))
	defer srv.Close()
	v.mu.Lock()
	v.also = srv.URL
	v.mu.Unlock()
	v.run(chromedp.Navigate(srv.URL + "/without/"))
	v.shows("This program was built without it")
	v.run(chromedp.Navigate(srv.URL + "/with/"))
	v.shows("60\ncalls")
	v.wait(`document.querySelectorAll("nav a").length === 2`)
	v.run(chromedp.Navigate(srv.URL + "/with/what-if.html"))
	v.shows("nothing is uploaded")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A log is decided by two limits as dipwell replay decides it.
func TestWhatIf(t *testing.T) {
	v := tool(t, "what-if")
	log, err := filepath.Abs(filepath.Join("..", "..", "testdata", "access.log"))
	if err != nil {
		t.Fatal(err)
	}
	limits := []string{"page=12/1m,burst=15", "day=40/1d,algorithm=fixed_window"}
	v.run(chromedp.WaitVisible(chromedp.CSS("#log")))
	v.run(chromedp.SetUploadFiles(chromedp.CSS("#log"), []string{log}))
	v.send("compare", "a", limits[0], "b", limits[1])
	v.wait(`document.querySelectorAll("#result table").length >= 3 && document.querySelectorAll("#result svg polyline").length === 2`)
	for i, text := range limits {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		in, err := replay.File(log, nil)
		if err != nil {
			t.Fatal(err)
		}
		rep, err := replay.Run(t.Context(), in, replay.Options{Limits: []dipwell.Limit{l}})
		if err != nil {
			t.Fatal(err)
		}
		want := rep.Limits[0]
		cells := look(v, chromedp.Evaluate[[]string](fmt.Sprintf(`[...document.querySelectorAll("#result table")[0].tBodies[0].rows[%d].cells].map((c) => c.textContent.replaceAll(",", ""))`, i)))
		if got := strings.Join(cells[2:4], " "); got != fmt.Sprint(want.Granted, want.Refused) || cells[5] != fmt.Sprint(want.KeysRefused) || want.Refused == 0 {
			t.Errorf("%s: %v; %+v", text, cells, want)
		}
		keys := look(v, chromedp.Evaluate[[]string](fmt.Sprintf(`[...document.querySelectorAll("#result section")[%d].querySelectorAll("tbody tr")].map((r) => [...r.cells].slice(0, 3).map((c) => c.textContent).join(" "))`, i)))
		for k, w := range want.Worst {
			if k >= len(keys) || keys[k] != fmt.Sprint(w.Key, " ", w.Refused, " ", w.Granted) {
				t.Errorf("%s: worst keys %q, want %+v", text, keys, want.Worst)
				break
			}
		}
	}
	v.accessible()
	v.fits()

	// A log may be dropped anywhere on the page.
	v.wait(`((data) => {
		document.getElementById("by").value = "user";
		document.getElementById("pattern").value = "%{NOTSPACE:time} %{GREEDYDATA:user}";
		data.items.add(new File(["2026-03-14T09:00:00Z <b>k</b>\n".repeat(20)], "dropped.log"));
		dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
		return true;
	})(new DataTransfer())`)
	v.shows("dropped.log: 20 requests of 1 key")
	v.shows("<b>k</b>") // as text
	v.send("compare", "a", "page=0/1m")
	v.wait(`document.getElementById("note").className === "fault" && document.getElementById("note").textContent.startsWith("rate: ")`)
}
