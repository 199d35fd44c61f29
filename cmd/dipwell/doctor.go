package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/store"
)

// DoctorCmd checks everything that a service depends on. DoctorCmd changes nothing.
type DoctorCmd struct {
	Config  string        `placeholder:"FILE" env:"DIPWELL_CONFIG" help:"Check this configuration file and the store that it names."`
	Store   string        `placeholder:"URL" env:"DIPWELL_STORE" help:"Check this store."`
	Server  string        `placeholder:"URL" env:"DIPWELL_SERVER" help:"Check this running service (default http://127.0.0.1:8080 if nothing else is given)."`
	Timeout time.Duration `default:"30s" help:"Timeout of all checks. Default 30s."`

	clientTLS `embed:""`
}

func (c *DoctorCmd) AfterApply() error { return checkServer(c.Server) }

const (
	verdictOK      = "ok"
	verdictWarning = "warning"
	verdictProblem = "problem"
)

type finding struct{ verdict, check, found, advice string }

type examination struct {
	findings []finding
	declared *config.File // settings of the file given by --config, or nil
}

func (x *examination) ok(check, found string, args ...any) {
	x.judge(false, "", check, "", found, args...)
}

func (x *examination) warn(check, advice, found string, args ...any) {
	x.judge(true, verdictWarning, check, advice, found, args...)
}

func (x *examination) problem(check, advice, found string, args ...any) {
	x.judge(true, verdictProblem, check, advice, found, args...)
}

// judge adds a finding: verdict with advice if wrong is true, else ok.
func (x *examination) judge(wrong bool, verdict, check, advice, found string, args ...any) {
	if !wrong {
		verdict, advice = verdictOK, ""
	}
	x.findings = append(x.findings, finding{verdict, check, fmt.Sprintf(found, args...), advice})
}

// judgeList adds the finding good if the list is empty, else the verdict with bad and the list.
func (x *examination) judgeList(list []string, verdict, check, advice, bad, good string) {
	if len(list) == 0 {
		x.ok(check, "%s", good)
		return
	}
	x.judge(true, verdict, check, advice, "%s: %s", bad, names(list, "; "))
}

func (c *DoctorCmd) Run(e *env) error {
	if c.Store != "" {
		if err := knownStore(c.Store); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(e.ctx, c.Timeout)
	defer cancel()
	x := &examination{}
	store := c.Store
	if c.Config != "" {
		store = cmp.Or(store, x.config(c.Config))
	}
	if store != "" {
		x.store(ctx, store)
	}
	if c.Server != "" || c.Config == "" && c.Store == "" {
		if _, err := c.client(); err != nil {
			return err
		}
		x.server(&env{ctx: ctx}, &target{remote: remote{Server: c.Server, clientTLS: c.clientTLS}, Timeout: c.Timeout})
	}
	if e.ctx.Err() != nil {
		return e.ctx.Err()
	}
	return x.report(e.stdout)
}

// report returns errRefused if there is a problem.
func (x *examination) report(w io.Writer) error {
	count := map[string]int{}
	for _, f := range x.findings {
		count[f.verdict]++
		fmt.Fprintf(w, "%-8s %-13s %s\n", f.verdict, f.check, plain(f.found))
		if f.advice != "" {
			fmt.Fprintf(w, "%22s %s\n", "→", f.advice)
		}
	}
	fmt.Fprintf(w, "%d fine, %s, %s\n", count[verdictOK], howMany(count[verdictWarning], "warning"), howMany(count[verdictProblem], "problem"))
	if count[verdictProblem] > 0 {
		return errRefused
	}
	return nil
}

// config checks a configuration file like serve, and returns its store.
func (x *examination) config(path string) string {
	const advice = "serve does not start with it; a running service keeps the last good one"
	set, err := (&ServeCmd{Config: path}).merge()
	if err != nil {
		x.problem("configuration", advice, "%v", inFile(path, err))
		return ""
	}
	_, notes, errs := set.checkNamed()
	for _, err := range errs {
		x.problem("configuration", advice, "%s: %v", path, err)
	}
	x.declared = &set.File
	x.ok("configuration", "%s: %s, store %s", path, howMany(len(set.Limits), "limit"), redact(set.Store))
	for _, note := range notes {
		x.warn("configuration", "", "%s", note)
	}
	x.secretFile("admin_token_file", set.AdminTokenFile)
	x.secretFile("key_secret_file", set.KeySecretFile)
	x.secretFile("tls_key", set.TLSKey)
	for i, c := range set.Callers {
		x.secretFile(fmt.Sprintf("callers[%d].token_file", i), c.TokenFile)
	}
	return set.Store
}

func (x *examination) secretFile(setting, path string) {
	if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o007 != 0 {
		x.warn("configuration", "chmod o-rwx "+path, "%s: %s can be read by everybody on this machine", setting, path)
	}
}

func (x *examination) store(ctx context.Context, url string) {
	switch scheme, _, _ := strings.Cut(url, ":"); {
	case scheme == "memory":
		x.ok("store", "memory: buckets are in the process; a restart makes all of them full, and services do not share them")
	case scheme == "file":
		x.file(url)
	case strings.HasPrefix(scheme, "redis"):
		x.redis(ctx, url)
	default:
		x.postgres(ctx, url)
	}
}

func (x *examination) down(url string, err error) {
	x.problem("store", "until it answers, calls are answered by the on_store_error of their limits", "%s does not answer: %v", redact(url), err)
}

// Thresholds for findings.
const (
	skewWarning = 100 * time.Millisecond
	skewProblem = 5 * time.Second
)

// clock judges a clock that is ahead of this machine's. wrong bounds the measurement's error.
func (x *examination) clock(whose string, ahead, wrong time.Duration) {
	way, apart := "ahead of", ahead
	if ahead < 0 {
		way, apart = "behind", -ahead
	}
	verdict := verdictWarning
	if apart-wrong > skewProblem {
		verdict = verdictProblem
	}
	x.judge(apart-wrong > skewWarning, verdict, "clock",
		"decide by the store's clock as before, and synchronise both machines (chronyc tracking): limits with on_store_error: local go on by this machine's",
		"%s is %v %s this machine's, ±%v", whose, apart.Round(time.Microsecond), way, wrong.Round(time.Microsecond))
}

func (x *examination) limits(s store.Store) {
	l, err := dipwell.New(s)
	if err != nil {
		x.problem("limits", "", "%v", err)
		return
	}
	x.drift(l)
	limits := l.Limits()
	x.ok("limits", "the store has %d", len(limits))
	for _, d := range limits {
		if d.Warning != "" {
			x.warn("limits", "", "%s", d.Warning)
		}
	}
}

func (x *examination) server(e *env, t *target) {
	if _, err := t.http(e, http.MethodGet, "/healthz", nil); err != nil {
		x.problem("service", "", "%s does not answer: %v", t.asked(), err)
		return
	}
	x.ok("service", "%s answers", t.asked())
	if _, err := t.http(e, http.MethodGet, "/readyz", nil); err != nil {
		x.problem("store", "see the service's log, and run dipwell doctor --store there", "/readyz: %v", err)
		return
	}
	x.ok("store", "it can decide")
}

// timeoutError returns err, or a plain error in its place if it is a timeout.
func timeoutError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}

// drift reports limits that differ between file and store, and limits in the store
// that a file of the same owner has defined and this one does not name.
func (x *examination) drift(l *dipwell.Limiter) {
	if x.declared == nil {
		return
	}
	file := fileOwner(x.declared)
	d := declared{limiter: l, file: file}
	limits := (&settings{File: *x.declared}).declared(file)
	if seen := d.newerRevision(file); seen > 0 {
		x.warn("drift", "the file is an old one; a newer file has a higher revision", "the file is revision %d of owner %s, and the store has seen revision %d: a service defines nothing from it", file.Revision, file.Name, seen)
	}
	x.judgeList(drift(l, limits), verdictWarning, "drift", "another file or a program has changed them, or no service has read this file yet: "+d.remedy("a restart of its service"),
		"the store differs from the file", "the store has all limits as the file names them")
	x.judgeList(orphans(l, file.Name, limits), verdictWarning, "limits", "if no other service's file names them: name them in this file and take them out again while the service runs",
		"limits that files of owner "+file.Name+" made and this one does not name", "the file names every limit that files of owner "+file.Name+" made")
}
