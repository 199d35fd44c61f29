// Command api measures the service's JSON API against a no-op net/http handler
// that reads the body and answers with JSON of the same size: servers in
// processes of their own, one client program, taking turns.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dipwell/dipwell/bench/internal/report"
)

const answer = `{"allowed":true,"limit":"api","key":"user:123456","cost":1,"granted":1,"capacity":1000000000,"remaining":999999999,"retry_after_us":null,"reset_after_us":10000,"delay_us":0,"shadow":false,"source":"store"}`

func main() {
	if len(os.Args) > 2 && os.Args[1] == "noop" {
		noop(os.Args[2])
		return
	}
	rounds := flag.Int("rounds", 11, "rounds")
	conns := flag.Int("conns", 32, "connections")
	out := flag.String("o", "", "write the tables to this file as well")
	flag.Parse()
	var w io.Writer = os.Stdout
	if *out != "" {
		f := must(os.Create(*out))
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	report.Header(w, "The JSON API, metrics included", "make bench-api")
	run(w, *rounds, *conns)
}

// noop is the control: what net/http costs when nothing is decided.
func noop(addr string) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/take", func(w http.ResponseWriter, r *http.Request) {
		var buf [1024]byte
		for {
			if _, err := r.Body.Read(buf[:]); err != nil {
				break
			}
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, answer)
	})
	panic(http.ListenAndServe(addr, mux))
}

type contender struct {
	name, addr string
	perSecond  []float64
	p50, p99   []float64
}

func run(w io.Writer, rounds, conns int) {
	dir := must(os.MkdirTemp("", "bench-api"))
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "dipwell")
	build := exec.Command("go", "build", "-o", bin, "./cmd/dipwell")
	build.Dir = ".."
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	ours := &contender{name: "dipwell serve, POST /v1/take", addr: freeAddr()}
	control := &contender{name: "no-op handler", addr: freeAddr()}
	defer serve(ours.addr, bin, "serve", "--listen", ours.addr, "--limit", "api=100/1s,burst=1000000000")()
	defer serve(control.addr, must(os.Executable()), "noop", control.addr)()
	all := []*contender{control, ours}

	for range rounds {
		for _, c := range all {
			n, _ := load(c.addr, conns, 2*time.Second, 0)
			c.perSecond = append(c.perSecond, n)
		}
	}
	half := report.Median(ours.perSecond) / 2
	for range rounds {
		for _, c := range all {
			_, lat := load(c.addr, conns, 2*time.Second, half)
			c.p50, c.p99 = append(c.p50, percentile(lat, 50)), append(c.p99, percentile(lat, 99))
		}
	}
	var rows [][]string
	base := report.Median(control.perSecond)
	for _, c := range all {
		m := report.Median(c.perSecond)
		rows = append(rows, []string{c.name, fmt.Sprintf("%.0f", m), fmt.Sprintf("%.2f", m/base),
			fmt.Sprintf("%.0f", report.Median(c.p50)), fmt.Sprintf("%.0f", report.Median(c.p99)),
			fmt.Sprintf("%.2f", report.Median(c.p99)/report.Median(control.p99))})
	}
	report.Table(w, []string{"", "calls/s, " + strconv.Itoa(conns) + " connections", "× no-op",
		fmt.Sprintf("p50 µs at %.0f/s", half), "p99 µs", "p99 × no-op"}, rows)
	fmt.Fprintf(w, "Keys: 10,000. %d rounds of 2 s each; the client runs on the same cores. At half load calls are sent on a schedule and timed from it.\n", rounds)
}

func serve(addr, bin string, args ...string) (stop func()) {
	cmd := exec.Command(bin, args...)
	cmd.Stderr = io.Discard
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	for range 200 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return func() { cmd.Process.Kill(); cmd.Wait() }
}

func freeAddr() string {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().String()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
