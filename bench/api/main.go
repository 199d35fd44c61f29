// Command api measures the JSON API of the service: in memory against a no-op
// net/http handler that reads the body and answers with JSON of the same size,
// and on PostgreSQL against a handler with a single statement. Each server is a
// process of its own; one client program measures them in turns.
package main

import (
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/internal/pgtest"
)

// gogc is the value that `dipwell serve` sets. All servers use it.
const gogc = "GOGC=150"

func main() {
	if len(os.Args) > 2 && os.Args[1] == "noop" {
		noop(os.Args[2])
		return
	}
	if len(os.Args) > 3 && os.Args[1] == "counter" {
		counter(os.Args[2], os.Args[3])
		return
	}
	b := &bench{}
	flag.IntVar(&b.rounds, "rounds", 11, "rounds")
	flag.IntVar(&b.conns, "conns", 32, "connections")
	flag.DurationVar(&b.length, "length", 2*time.Second, "length of a round")
	page := flag.Bool("page", false, "measure the page for people, and nothing else")
	out := flag.String("o", "", "write the tables to this file as well")
	flag.Parse()
	b.w = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		b.w = io.MultiWriter(os.Stdout, f)
	}
	defer b.stop()
	if *page {
		report.Header(b.w, "The page for people", "make bench-page")
		fmt.Fprintf(b.w, "%d rounds of %v each, %d connections that call POST /v1/take in memory; client, viewers, browser and server run on the same cores. "+
			"µs are processor time of the server. The load of the machine was %s before.\n\n", b.rounds, b.length, b.conns, strings.Fields(string(must(os.ReadFile("/proc/loadavg"))))[0])
		b.page(b.dipwell()("memory:"))
		b.walk()
		return
	}
	report.Header(b.w, "The JSON API, metrics included", "make bench-api")
	fmt.Fprintf(b.w, "Keys: 10,000. %d rounds of %v each, %d connections; client, servers and PostgreSQL run on the same cores, all servers with %s. "+
		"At half load calls are sent on a schedule, at half of the rate of `dipwell serve`, and timed from it. "+
		"PostgreSQL has its default settings and logged tables, which nobody analyzed; µs are processor time a call.\n\n", b.rounds, b.length, b.conns, gogc)
	b.run()
}

type bench struct {
	w             io.Writer
	rounds, conns int
	length        time.Duration
	closers       []func()
	postmaster    int
	bin           string // path of the program dipwell
}

func (b *bench) stop() {
	for i := len(b.closers) - 1; i >= 0; i-- {
		b.closers[i]()
	}
}

// A contender is a server and its results under one load.
type contender struct {
	name, addr string
	pid        int

	perSecond, p50, p99   []float64
	server, client, store []float64 // processor time of each in µs a call
}

// dipwell builds the program dipwell, and returns a function that starts it on a store.
func (b *bench) dipwell() func(store string) *contender {
	dir := must(os.MkdirTemp("", "bench-api"))
	b.closers = append(b.closers, func() { os.RemoveAll(dir) })
	b.bin = filepath.Join(dir, "dipwell")
	command("..", "go", "build", "-o", b.bin, "./cmd/dipwell")
	return func(store string) *contender { return b.serveLimits(store) }
}

// serveLimits starts the program on a store, with two limits and more.
func (b *bench) serveLimits(store string, more ...string) *contender {
	addr := freeAddr()
	args := []string{"serve", "--listen", addr, "--store", store, "--limit", "api=100/1s,burst=1000000000", "--limit", "drained=1/1d,burst=1"}
	return b.serve("dipwell serve, POST /v1/take", addr, b.bin, append(args, more...)...)
}

func (b *bench) run() {
	ours := b.dipwell()
	self := must(os.Executable())
	addr := freeAddr()
	b.compare("In memory", []*contender{b.serve("no-op handler", addr, self, "noop", addr), ours("memory:")})
	dsn := b.postgres()
	command("", b.bin, "migrate", "up", "--store", dsn)
	addr = freeAddr()
	b.compare("On PostgreSQL, logged", []*contender{b.serve("a handler with one conditional upsert", addr, self, "counter", addr, dsn), ours(dsn)})
}

// compare measures contenders with all calls allowed, and with nine of ten refused.
func (b *bench) compare(where string, all []*contender) {
	for _, refused := range []float64{0, 0.9} {
		title := where + ", every call admitted"
		if refused > 0 {
			title = where + ", 90 % of the calls refused"
		}
		b.measure(all, refused)
		b.table(title, all)
	}
}

func (b *bench) measure(all []*contender, refused float64) {
	for _, c := range all {
		*c = contender{name: c.name, addr: c.addr, pid: c.pid}
		load{c.addr, b.conns, b.length / 4, 0, refused}.run() // warm
	}
	for range b.rounds {
		for _, c := range all {
			b.full(c, refused)
		}
	}
	half := report.Median(all[len(all)-1].perSecond) / 2
	for range b.rounds {
		for _, c := range all {
			_, lat := load{c.addr, b.conns, b.length, half, refused}.run()
			c.p50, c.p99 = append(c.p50, percentile(lat, 50)), append(c.p99, percentile(lat, 99))
		}
	}
}

// full makes calls as fast as the server answers.
func (b *bench) full(c *contender, refused float64) {
	server, client, store := must(cpu.Process(c.pid)), cpu.Own(), b.storeTime()
	start := time.Now()
	n, _ := load{c.addr, b.conns, b.length, 0, refused}.run()
	c.perSecond = append(c.perSecond, float64(n)/time.Since(start).Seconds())
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	c.server = append(c.server, each(must(cpu.Process(c.pid))-server))
	c.client = append(c.client, each(cpu.Own()-client))
	c.store = append(c.store, each(b.storeTime()-store))
}

func (b *bench) storeTime() time.Duration {
	if b.postmaster == 0 {
		return 0
	}
	return must(cpu.Server(b.postmaster))
}

// table formats each contender's figures and its ratio to the first contender's.
func (b *bench) table(title string, all []*contender) {
	base, ours := all[0], all[len(all)-1]
	var rows [][]string
	for _, c := range all {
		m, p99 := report.Median(c.perSecond), report.Median(c.p99)
		rows = append(rows, []string{c.name, fmt.Sprintf("%.0f", m), report.Figure(m / report.Median(base.perSecond)),
			fmt.Sprintf("%.0f", report.Median(c.server)), fmt.Sprintf("%.0f", report.Median(c.store)), fmt.Sprintf("%.0f", report.Median(c.client)),
			fmt.Sprintf("%.0f", report.Median(c.p50)), fmt.Sprintf("%.0f", p99), report.Figure(p99 / report.Median(base.p99))})
	}
	fmt.Fprintf(b.w, "## %s\n\n", title)
	report.Table(b.w, []string{"", "calls/s", "× the first", "server µs", "PostgreSQL µs", "client µs",
		fmt.Sprintf("p50 µs at %.0f/s", report.Median(ours.perSecond)/2), "p99 µs", "p99 × the first's"}, rows)
}

// serve starts a server and waits until it listens.
func (b *bench) serve(name, addr, bin string, args ...string) *contender {
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), gogc)
	cmd.Stderr = io.Discard
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	b.closers = append(b.closers, func() { cmd.Process.Kill(); cmd.Wait() })
	await(addr)
	return &contender{name: name, addr: addr, pid: cmd.Process.Pid}
}

// postgres starts a PostgreSQL server with its default settings.
func (b *bench) postgres() (dsn string) {
	s := must(pgtest.New())
	b.closers = append(b.closers, func() {
		_ = s.Signal(syscall.SIGQUIT)
		s.Wait()
		s.Close()
	})
	b.postmaster = s.PID()
	return fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", s.Port, url.QueryEscape(s.Dir))
}

func command(dir, name string, args ...string) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %v\n%s", cmd.Args, err, out))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
