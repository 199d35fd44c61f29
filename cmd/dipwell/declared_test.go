package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// sides are services on one store, each with its own file, in virtual time.
type sides struct {
	t       *testing.T
	limiter *dipwell.Limiter
	by      map[string]*declared
	log     strings.Builder
}

func newSides(t *testing.T, names ...string) *sides {
	t.Helper()
	st, err := memstore.New(memstore.Config{MaxKeys: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	s := &sides{t: t, by: map[string]*declared{}}
	if s.limiter, err = dipwell.New(st); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range names {
		s.start(name, filepath.Join(dir, name))
	}
	return s
}

// start starts or restarts a service with a file.
func (s *sides) start(name, path string) {
	log := func(format string, args ...any) { fmt.Fprintf(&s.log, name+": "+format+"\n", args...) }
	s.by[name] = &declared{ctx: s.t.Context(), limiter: s.limiter, path: path, info: log, warn: log}
}

// write writes a service's file and makes the service read it.
func (s *sides) write(name, text string) error {
	s.t.Helper()
	d := s.by[name]
	if err := os.WriteFile(d.path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return s.read(name)
}

func (s *sides) read(name string) error {
	d := s.by[name]
	f, err := config.Load(d.path)
	if err == nil {
		err = d.declare(&settings{File: *f})
	}
	if err != nil {
		d.postponeDrop()
	}
	return err
}

func (s *sides) want(what string, limits string) {
	s.t.Helper()
	var got []string
	for _, d := range s.limiter.Limits() {
		got = append(got, fmt.Sprintf("%s=%d", d.Name, d.Rate))
	}
	if strings.Join(got, " ") != limits {
		s.t.Errorf("%s: %v, want %s", what, got, limits)
	}
}

// said fails unless the log has a text, and then empties the log.
func (s *sides) said(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		if !strings.Contains(s.log.String(), text) {
			s.t.Errorf("%q is not in the log:\n%s", text, s.log.String())
		}
	}
	s.log.Reset()
}

// limitsOf writes a file: names with rates.
func limitsOf(head string, limits ...string) string {
	text := head + "limits:\n"
	for _, l := range limits {
		name, rate, _ := strings.Cut(l, "=")
		text += fmt.Sprintf("  - {name: %s, rate: %s, per: 1m}\n", name, rate)
	}
	if len(limits) == 0 {
		return head + "limits: []\n"
	}
	return text
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A limit that was removed from the file is dropped once the file has been unchanged
// for two seconds.
func TestLimitsRemovedFromFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSides(t, "one")
		both := limitsOf("", "a=1", "b=1")
		must(t, s.write("one", both))
		for _, cut := range []string{"", "limits:\n", "limits:\n  - {name: a", "listen: x\n"} {
			if err := s.write("one", cut); err == nil {
				t.Errorf("%q is a good file", cut)
			}
			time.Sleep(time.Hour)
			s.want("a file that was cut off: "+cut, "a=1 b=1")
		}
		must(t, s.write("one", limitsOf("", "a=1")))
		time.Sleep(dropAfter - 1)
		s.want("before two seconds", "a=1 b=1")
		must(t, s.write("one", both))
		time.Sleep(time.Hour)
		s.want("the limit came back", "a=1 b=1")
		must(t, s.write("one", limitsOf("", "a=1")))
		time.Sleep(dropAfter - 1)
		if s.write("one", "") == nil {
			t.Error("empty")
		}
		time.Sleep(time.Second)
		must(t, s.write("one", limitsOf("", "a=1")))
		s.want("the file was cut off meanwhile", "a=1 b=1")
		s.said()
		time.Sleep(dropAfter)
		synctest.Wait()
		s.want("after two seconds", "a=1")
		s.said("one: limit b is dropped: it left ")
		must(t, s.write("one", limitsOf("")))
		time.Sleep(dropAfter)
		synctest.Wait()
		s.want("none is meant", "")
	})
}

// Two services with different files over one store: neither drops limits that the
// other's file names, and reading an unchanged file again changes nothing.
func TestTwoFilesOfOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSides(t, "one", "two")
		must(t, s.write("one", limitsOf("", "a=1", "x=1")))
		must(t, s.write("two", limitsOf("", "b=1", "x=2")))
		s.want("the last start wins", "a=1 b=1 x=2")
		s.said("two: ", "replaces limits that another file of owner main had defined: x")
		for range 3 {
			must(t, s.read("one"))
			s.want("read again unchanged", "a=1 b=1 x=2")
		}
		one, two := s.by["one"], s.by["two"]
		if one.drifted() != 1 || two.drifted() != 0 {
			t.Error("drift: ", one.drifted(), two.drifted())
		}
		one.logDrift()
		if s.log.Len() > 0 {
			t.Error("said at the first look: ", s.log.String())
		}
		for range 3 {
			one.logDrift()
		}
		if n := strings.Count(s.log.String(), "\n"); n != 1 {
			t.Error("said ", n, " times")
		}
		s.said("one: warning: drift: the store differs in 1 limit from this service's settings: limit x: rate: 1 here and 2 in force")
		must(t, s.write("one", limitsOf("", "a=1")))
		time.Sleep(dropAfter)
		synctest.Wait()
		s.want("another file has defined it since", "a=1 b=1 x=2")
		s.said("one: limit x was removed from ", "but stays, because another file of owner main has defined it since")
		one.logDrift()
		one.logDrift()
		s.said("one: drift has ended")
		must(t, s.write("two", limitsOf("", "x=2")))
		time.Sleep(dropAfter)
		synctest.Wait()
		s.want("its own file's limit", "a=1 x=2")
	})
}

// An older revision reverts nothing, and names of another owner are refused.
func TestRevisionsAndOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSides(t, "new", "old", "other")
		must(t, s.write("new", limitsOf("revision: 7\n", "a=7", "b=7")))
		must(t, s.write("old", limitsOf("revision: 6\n", "a=6", "c=6")))
		s.want("an older revision starts", "a=7 b=7")
		s.said("old: ", "is revision 6 of owner main, but the store has seen revision 7: its limits are not defined")
		if n := s.by["old"].drifted(); n != 2 {
			t.Error("drift: ", n)
		}
		err := s.write("other", limitsOf("owner: billing\n", "d=1", "a=1"))
		if err == nil || !strings.Contains(err.Error(), "limit a belongs to the configuration file of owner main and") {
			t.Error(err)
		}
		s.want("a name of another owner", "a=7 b=7")
		must(t, s.write("other", limitsOf("owner: billing\nrevision: 1\n", "d=1")))
		s.want("owners with names of their own", "a=7 b=7 d=1")
		must(t, s.write("old", limitsOf("revision: 8\n", "a=8")))
		time.Sleep(dropAfter)
		synctest.Wait()
		s.want("the next revision, of a service that never named b", "a=8 b=7 d=1")
		must(t, s.write("old", limitsOf("revision: 7\n")))
		time.Sleep(dropAfter)
		synctest.Wait()
		s.want("back to an older one", "a=8 b=7 d=1")
	})
}

// sharedStores are those that several services can share, each a real server.
var sharedStores = map[string]func(t *testing.T) string{
	"postgres": migratedDatabase,
	"redis":    func(t *testing.T) string { return redistest.Start(t).URL() },
}

// A file that changes after the service has read it, and before it watches the file, is read
// again.
func TestFileChangesBeforeItIsWatched(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dipwell.yaml")
	must(t, os.WriteFile(file, []byte(limitsOf("", "a=1")), 0o600))
	cmd := &ServeCmd{Config: file}
	set, err := cmd.settings()
	must(t, err)
	st, err := memstore.New(memstore.Config{})
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	l, err := dipwell.New(st)
	must(t, err)
	log := &logger{to: io.Discard}
	s := &service{env: &env{ctx: t.Context()}, cmd: cmd, logger: log, limiter: l, server: server.New(l, set.server()), started: set, last: set,
		declared: &declared{ctx: t.Context(), limiter: l, info: log.info, warn: log.warn, path: file}}
	must(t, s.apply(set))
	must(t, os.WriteFile(file, []byte(limitsOf("", "a=7")), 0o600))
	must(t, s.watch())
	if a := l.Limit("a"); a == nil || a.Rate != 7 {
		t.Errorf("the limit is %v", a)
	}
}

// A file is watched before it is read, so that a change in between is not missed.
func TestFilesAreWatchedBeforeTheyAreRead(t *testing.T) {
	s := &service{env: &env{ctx: t.Context()}, logger: &logger{to: io.Discard}}
	var changed atomic.Bool
	reloaded := make(chan struct{})
	must(t, s.follow(t.Context(), func() string { return strconv.FormatBool(changed.Load()) }, func() error { changed.Store(true); return nil }, func() { close(reloaded) }))
	<-reloaded
}

// An admin token that changes after the settings were read, and before its file is watched,
// is read again.
func TestTokenChangesBeforeItIsWatched(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte("first"), 0o600))
	st, err := memstore.New(memstore.Config{})
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	l, err := dipwell.New(st)
	must(t, err)
	s := &service{env: &env{ctx: t.Context()}, logger: &logger{to: io.Discard}, server: server.New(l, server.Config{AdminToken: "first"}), limiter: l, cmd: serveCommand(t, "--admin-token-file", file)}
	s.declared = &declared{ctx: t.Context(), limiter: l, info: s.info, warn: s.warn}
	s.started, err = s.cmd.settings()
	must(t, err)
	s.last = s.started
	must(t, os.WriteFile(file, []byte("second"), 0o600))
	must(t, s.watch())
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/top", nil)
	r.Header.Set("Authorization", "Bearer second")
	w := httptest.NewRecorder()
	if s.server.API(server.Site{}).ServeHTTP(w, r); w.Code == http.StatusUnauthorized {
		t.Error(w.Body)
	}
}

// An editor truncates the file for a moment. The buckets of its limits are
// kept.
func TestServeFileEmptyForAMoment(t *testing.T) {
	for name, url := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "dipwell.yaml")
			save := func(text string) { must(t, os.WriteFile(file, []byte(text), 0o600)) }
			text := limitsOf("", "a=5", "b=5")
			save(text)
			p := start(t, "--listen", "127.0.0.1:0", "--store", url(t), "--config", file)
			taken := func(want string) {
				t.Helper()
				if status, body := post(t, p.url+"/v1/take", "limit=a&key=k&cost=2"); status != 200 || !strings.Contains(body, want) {
					t.Fatal(status, body, " want ", want)
				}
			}
			taken(`"remaining":3`)
			save("")
			p.stderr.wait(t, "dipwell.yaml: is empty; for a service without limits write limits: \\[\\](?s:.*)the last good configuration stays in force")
			save(text)
			p.stderr.wait(t, "configuration read again: 2 limits, unchanged")
			taken(`"remaining":1`)
			save(limitsOf("", "a=5"))
			p.stderr.wait(t, "limit b is dropped: it left "+file)
			if status, body := post(t, p.url+"/v1/take", "limit=b&key=k"); status != 404 {
				t.Error(status, body)
			}
			save("# all of it is gone\n")
			if code, _, stderr := program(t, "config", "check", file); code != 2 || !strings.Contains(stderr, "is empty") {
				t.Error(code, stderr)
			}
			if code, _, stderr := program(t, "serve", "--config", file); code != 2 || !strings.Contains(stderr, "is empty") {
				t.Error(code, stderr)
			}
		})
	}
}

// A limit to which an override does not fit is refused with the file, the limit and the key.
func TestServeUnfit(t *testing.T) {
	for name, url := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "dipwell.yaml")
			text := limitsOf("", "api=5")
			must(t, os.WriteFile(file, []byte(strings.Replace(text, "}", ", plans: {pro: {rate: 50}}}", 1)), 0o600))
			p := start(t, "--listen", "127.0.0.1:0", "--store", url(t), "--config", file)
			if code, _, stderr := program(t, "override", "set", "api", "k", "--plan", "pro", "--server", p.url); code != 0 {
				t.Fatal(stderr)
			}
			must(t, os.WriteFile(file, []byte(text), 0o600))
			p.stderr.wait(t, `dipwell.yaml:2: limit api: plans: plan pro is missing, and an override gives it \(the override of key "k"(?s:.*)the last good configuration stays in force`)
		})
	}
}

// The files of two services differ.
func TestServeDrift(t *testing.T) {
	for name, url := range sharedStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, dir := url(t), t.TempDir()
			serve := func(name, text string) (string, *process) {
				file := filepath.Join(dir, name)
				must(t, os.WriteFile(file, []byte(text), 0o600))
				return file, start(t, "--listen", "127.0.0.1:0", "--store", store, "--config", file)
			}
			capacity := func(p *process, want string) {
				t.Helper()
				eventually(t, func() error {
					if _, body := post(t, p.url+"/v1/check", "limit=x&key=k&cost=0"); !strings.Contains(body, `"capacity":`+want+",") {
						return fmt.Errorf("capacity %s is wanted: %s", want, body)
					}
					return nil
				})
			}
			gauge := func(p *process, want string) {
				t.Helper()
				eventually(t, func() error {
					if _, body := do(t, "GET", p.url+"/metrics", ""); !strings.Contains(body, "\ndipwell_config_drift "+want+"\n") {
						return errors.New("the drift is not " + want)
					}
					return nil
				})
			}
			file1, one := serve("one.yaml", limitsOf("revision: 1\n", "x=10", "a=1"))
			capacity(one, "10")
			_, two := serve("two.yaml", limitsOf("revision: 1\n", "x=20"))
			two.stderr.wait(t, "two.yaml replaces limits that another file of owner main had defined: x")
			one.stderr.wait(t, "warning: drift: the store differs in 1 limit from this service's settings: limit x: rate: 10 here and 20 in force")
			for range 2 {
				must(t, one.cmd.Process.Signal(syscall.SIGHUP))
				one.stderr.wait(t, "configuration read again: 2 limits, unchanged")
			}
			capacity(one, "20")
			capacity(two, "20")
			gauge(one, "1")
			gauge(two, "0")
			_, found := doctor(t, "--config", file1, "--store", store)
			expect(t, found, "drift", "warning: the store differs from the file: limit x: rate: 10 here and 20 in force", "limits", "ok: the file names every limit")
			_, three := serve("three.yaml", limitsOf("revision: 2\n", "x=30"))
			capacity(one, "30")
			_, old := serve("old.yaml", limitsOf("revision: 1\n", "x=5", "new=1"))
			old.stderr.wait(t, "old.yaml is revision 1 of owner main, but the store has seen revision 2: its limits are not defined")
			old.stderr.wait(t, "drift: .*only a file of owner main with a revision of at least 2 puts them in force, and this one has 1")
			capacity(three, "30")
			gauge(old, "2")
			other := filepath.Join(dir, "other.yaml")
			must(t, os.WriteFile(other, []byte(limitsOf("owner: billing\n", "y=1", "x=1")), 0o600))
			if code, _, stderr := program(t, "serve", "--listen", "127.0.0.1:0", "--store", store, "--config", other); code != 2 || !strings.Contains(stderr, ".yaml:4: limit x belongs to the configuration file of owner main and") {
				t.Error(code, stderr)
			}
			if status, body := do(t, "GET", one.url+"/v1/limits/x", ""); status != 200 || !strings.Contains(body, `"owner":"file"`) {
				t.Error(status, body)
			}
			if status, body := do(t, "GET", one.url+"/v1/limits/y", ""); status != 404 {
				t.Error("defined before the conflict was found: ", status, body)
			}
			_, found = doctor(t, "--config", file1, "--store", store)
			expect(t, found, "drift", "warning: the file is revision 1 of owner main, and the store has seen revision 2")
		})
	}
}

// lockedStore is a store in which others have locked all limits: it keeps definitions for later.
type lockedStore struct {
	store.Store
	limits *lockedLimits
}

func (s lockedStore) Abilities() store.Abilities {
	a := store.AbilitiesOf(s.Store)
	a.Store, a.Limits = s, s.limits
	return a
}

type lockedLimits struct {
	store.Definer
	asked []string
}

func (d *lockedLimits) Define(_ context.Context, l store.Limit, _ string) (*store.Definition, error) {
	d.asked = append(d.asked, l.Name)
	return store.NewDefinition(l)
}

// A service asks once for each limit, because each time takes a while if others have locked it.
func TestLockedLimitsAreDefinedOnce(t *testing.T) {
	s := newSides(t, "a")
	must(t, s.write("a", limitsOf("", "a=1", "b=1", "c=1")))
	limits := &lockedLimits{Definer: store.AbilitiesOf(s.limiter.Store()).Limits}
	limiter, err := dipwell.New(lockedStore{s.limiter.Store(), limits})
	must(t, err)
	s.by["a"].limiter = limiter
	must(t, s.write("a", limitsOf("", "a=1", "b=2", "c=1", "d=1")))
	if got := strings.Join(limits.asked, " "); got != "b d a c" {
		t.Errorf("defined %s", got)
	}
}

// BenchmarkFile reads a file of 10,000 limits that has one limit more than the one before it.
func BenchmarkFile(b *testing.B) {
	const most = 10_000
	st, err := memstore.New(memstore.Config{MaxKeys: 100})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	limiter, err := dipwell.New(st)
	if err != nil {
		b.Fatal(err)
	}
	log := func(string, ...any) {}
	d := &declared{ctx: b.Context(), limiter: limiter, path: filepath.Join(b.TempDir(), "limits"), info: log, warn: log}
	var limits []string
	for i := range most - 1 {
		limits = append(limits, fmt.Sprintf("limit%d=100", i))
	}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		err := os.WriteFile(d.path, []byte(limitsOf("", append(limits, fmt.Sprintf("other%d=100", i))...)), 0o600)
		b.StartTimer()
		f, loadErr := config.Load(d.path)
		if err = errors.Join(err, loadErr); err == nil {
			err = d.declare(&settings{File: *f})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
