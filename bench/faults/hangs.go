package main

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
)

const (
	healthyFor  = 3 * time.Second
	hungFor     = 12 * time.Second
	hungCallers = 32
)

// hangs prints what callers are answered while a store works, and in the
// seconds after it was stopped.
func hangs(w io.Writer, bin string) {
	var table [][]string
	for _, timeout := range []string{"100ms", ""} {
		pg := must(pgtest.New("fsync=on"))
		dsn := pg.DSN("postgres")
		if out, err := exec.Command(bin, "migrate", "up", "--store", dsn).CombinedOutput(); err != nil {
			panic(string(out))
		}
		table = append(table, hang(bin, "PostgreSQL", dsn, timeout, func() error { return pg.SignalAll(syscall.SIGSTOP) }))
		_ = pg.SignalAll(syscall.SIGKILL)
		pg.Wait()
		pg.Close()
		db := must(redistest.New())
		table = append(table, hang(bin, "Redis", db.URL(), timeout, db.Hang))
		db.Kill()
		db.Close()
	}
	report.Table(w, []string{"hung store", "limit's timeout", "answers/s, healthy", "answers/s, hung", "×", "of the last half", "slowest answer while hung, ms"}, table)
	fmt.Fprintf(w, "%d callers over HTTP, closed loops; healthy for %v, hung for %v from the moment of SIGSTOP; the last half is without the time that the breaker needs to open.\n", hungCallers, healthyFor, hungFor)
}

func hang(bin, name, url, timeout string, stopStore func() error) []string {
	limit := "all=1000000/1s,burst=1000000"
	if timeout != "" {
		limit += ",timeout=" + timeout
	} else {
		timeout = "none"
	}
	base, stop := serve(bin, "--store", url, "--deny-max-age", "0", "--limit", limit)
	defer stop()
	key := func(c, i int) string { return fmt.Sprint("k", (c*7919+i)%1000) }
	callers(base, "all", hungCallers, 500*time.Millisecond, key)
	healthy := callers(base, "all", hungCallers, healthyFor, key)
	check(stopStore())
	first := callers(base, "all", hungCallers, hungFor/2, key)
	second := callers(base, "all", hungCallers, hungFor/2, key)
	hung := (first.perSecond + second.perSecond) / 2
	return []string{name, timeout, fmt.Sprintf("%.0f", healthy.perSecond), fmt.Sprintf("%.0f", hung), times(hung, healthy.perSecond),
		fmt.Sprintf("%.0f", second.perSecond), fmt.Sprintf("%.0f", max(first.percentile(100), second.percentile(100)))}
}
