package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/internal/pgtest"
)

// scenario describes rows locked by another transaction.
type scenario struct {
	name         string
	keys         int // locked
	stuck        int // number of callers of locked keys
	others       int // number of callers of other keys
	otherKeys    int
	timeout      string // timeout of the limit that the locked rows belong to
	setting      string // a setting of the database
	killBackend  bool   // each second, end one backend that serves a lane of calls
	busy         int    // number of processes that only compute, beside the service
	otherTimeout string // timeout of the limit of the other keys
}

var scenarios = []scenario{
	{name: "1 caller of 1 locked key, 16 of 40 others", keys: 1, stuck: 1, others: 16, otherKeys: 40},
	{name: "20 callers of 1 locked key, 40 of 200 others", keys: 1, stuck: 20, others: 40, otherKeys: 200},
	{name: "20 callers of 4 locked keys, 40 of 200 others", keys: 4, stuck: 20, others: 40, otherKeys: 200},
	{name: "the same, timeout 50 ms", keys: 4, stuck: 20, others: 40, otherKeys: 200, timeout: "50ms"},
	{name: "2 callers of 1 locked key, statement_timeout 100 ms", keys: 1, stuck: 2, others: 16, otherKeys: 40, setting: "statement_timeout = 100"},
	{name: "2 callers of 1 locked key, a backend killed each second", keys: 1, stuck: 2, others: 16, otherKeys: 40, killBackend: true},
	{name: "1 caller of 1 locked key, 16 of 40 others, timeout 200 ms, busy machine", keys: 1, stuck: 1, others: 16, otherKeys: 40, timeout: "200ms", otherTimeout: "200ms", busy: 4},
}

const lockedFor = 6 * time.Second

// locks prints, for each scenario, the rate of callers of other keys without
// and with locked rows, measured in turns.
func locks(w io.Writer, bin string, rounds int, name string) {
	s := must(pgtest.New("fsync=on", "synchronous_commit=on"))
	defer func() { _ = s.Signal(syscall.SIGQUIT); s.Wait(); s.Close() }()
	dsn := s.DSN("postgres")
	if out, err := exec.Command(bin, "migrate", "up", "--store", dsn).CombinedOutput(); err != nil {
		panic(string(out))
	}
	var table [][]string
	for i := range scenarios {
		sc := &scenarios[i]
		if !strings.Contains(sc.name, name) {
			continue
		}
		var calm, disturbed []*seen
		var stuck []*seen
		for range rounds {
			a, _ := sc.run(bin, dsn, false)
			b, c := sc.run(bin, dsn, true)
			calm, disturbed, stuck = append(calm, a), append(disturbed, b), append(stuck, c)
		}
		rate := func(s *seen) float64 { return s.perSecond }
		p99 := func(s *seen) float64 { return s.percentile(99) }
		table = append(table, []string{sc.name,
			fmt.Sprintf("%.0f", median(calm, rate)), fmt.Sprintf("%.0f", median(disturbed, rate)), times(median(disturbed, rate), median(calm, rate)),
			fmt.Sprintf("%.1f", median(calm, p99)), fmt.Sprintf("%.1f", median(disturbed, p99)), times(median(disturbed, p99), median(calm, p99)),
			failed(calm), failed(disturbed),
			fmt.Sprintf("%.0f", median(stuck, func(s *seen) float64 { return s.percentile(100) }))})
	}
	report.Table(w, []string{"locked rows, PostgreSQL", "others/s, nothing locked", "others/s, locked", "×", "p99 ms, nothing locked", "p99 ms, locked", "×", "others that failed, nothing locked", "others that failed, locked", "slowest call of a locked key, ms"}, table)
	fmt.Fprintf(w, "%d rounds of %v each way, HTTP, closed loops; the client and the server run on the same cores. Without a timeout of the limit a call may take five seconds.\n\n", rounds, lockedFor)
}

func median(all []*seen, f func(*seen) float64) float64 {
	var v []float64
	for _, s := range all {
		v = append(v, f(s))
	}
	return report.Median(v)
}

// failed formats how many of the calls failed.
func failed(all []*seen) string {
	failed, calls := 0, 0
	for _, s := range all {
		failed, calls = failed+s.failed, calls+s.calls
	}
	return fmt.Sprintf("%d of %d", failed, calls)
}

// run returns the answers to callers of other keys and to callers of the locked
// keys.
func (sc *scenario) run(bin, dsn string, lock bool) (others, stuck *seen) {
	ctx := context.Background()
	conn := must(pgx.Connect(ctx, dsn))
	defer conn.Close(ctx)
	execute(conn, "alter database postgres reset all")
	if sc.setting != "" {
		execute(conn, "alter database postgres set "+sc.setting)
	}
	big := "big=1000000/1s,burst=1000000"
	if sc.timeout != "" {
		big += ",timeout=" + sc.timeout
	}
	all := "all=1000000/1s,burst=1000000"
	if sc.otherTimeout != "" {
		all += ",timeout=" + sc.otherTimeout
	}
	base, stop := serve(bin, "--store", dsn, "--deny-max-age", "0", "--limit", big, "--limit", all)
	defer stop()
	defer compute(sc.busy)()
	callers(base, "big", 4, 300*time.Millisecond, func(c, i int) string { return fmt.Sprint("stuck", i%max(sc.keys, 1)) })
	if lock {
		execute(conn, "begin")
		for i := range sc.keys {
			execute(conn, fmt.Sprintf("select dipwell.take('big', 'stuck%d')", i))
		}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		stuck = callers(base, "big", sc.stuck, lockedFor, func(c, _ int) string { return fmt.Sprint("stuck", c%sc.keys) })
	})
	if lock && sc.killBackend {
		wg.Go(func() { killBackends(dsn, done) })
	}
	others = callers(base, "all", sc.others, lockedFor, func(c, i int) string { return fmt.Sprint("k", (c+i*sc.others)%sc.otherKeys) })
	close(done)
	wg.Wait()
	if lock {
		execute(conn, "rollback")
	}
	return others, stuck
}

// compute starts n processes that use up idle processor time, and returns a function that
// ends them.
func compute(n int) (end func()) {
	var all []*exec.Cmd
	for range n {
		c := exec.Command("nice", "sh", "-c", "while :; do :; done")
		check(c.Start())
		all = append(all, c)
	}
	return func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
}

// killBackends terminates, each second, one backend that is deciding.
func killBackends(dsn string, done chan struct{}) {
	ctx := context.Background()
	conn := must(pgx.Connect(ctx, dsn))
	defer conn.Close(ctx)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			execute(conn, `select pg_terminate_backend(pid) from pg_stat_activity
				where application_name = 'dipwell' and query like '%dipwell.buckets%' order by random() limit 1`)
		}
	}
}

func execute(conn *pgx.Conn, sql string) {
	_, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	check(err)
}
