// Command postgres compares dipwell's decisions in PostgreSQL with three
// published designs in SQL, reimplemented here, and with bare statements: all
// on one server with the same settings, in turns. The command starts and
// removes the server, or uses the one given by -dsn.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
)

func main() {
	b := &bench{keys: 10_000}
	flag.IntVar(&b.numRounds, "rounds", 7, "rounds for each contender")
	flag.DurationVar(&b.length, "length", 3*time.Second, "length of a round")
	flag.IntVar(&b.lanes, "lanes", 4, "coalesce's lanes, a connection each")
	flag.BoolVar(&b.quick, "quick", false, "2 rounds of 1 s, small tables: shows that all of it runs, not how fast")
	flag.StringVar(&b.admin, "dsn", "", "use this server, a URL of a superuser, instead of one of its own")
	flag.StringVar(&b.only, "scenario", "", "run only these, with commas between: "+strings.Join(scenarioNames(), ", "))
	flag.BoolVar(&b.tuned, "tuned", false, "give the server of its own 4 GB of shared_buffers and rare checkpoints instead of PostgreSQL's defaults; files are then named SCENARIO-tuned.md")
	flag.IntVar(&b.newRate, "newrate", 20_000, "new keys a second in scenario newkeys")
	flag.DurationVar(&b.newFor, "newfor", time.Minute, "length of each of its two runs")
	flag.StringVar(&b.dir, "o", "", "write the tables to files in this directory as well, SCENARIO.md")
	flag.Parse()
	if b.quick {
		b.numRounds, b.length = 2, time.Second
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := b.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type bench struct {
	numRounds int
	length    time.Duration
	quick     bool
	tuned     bool
	only, dir string
	keys      int
	lanes     int
	newRate   int
	newFor    time.Duration

	bin        string // directory of pgbench; "" for the path
	server     string // settings that the benchmark gave the server
	postmaster int    // process id of the server; 0: another's server
	admin      string // DSN of the database from which others are created
	version    string
	created    []string // databases
	roles      []string // roles that did not exist before
	rivals     rivals
	fast       *schema // dipwell, unlogged
	conflicts  int     // conflicts that reached dipwell's callers
	decisions  int     // number of dipwell's decisions in the same rounds

	out             strings.Builder
	targets, missed int
	share           float64 // number of cores that other programs kept busy
}

// A scenario writes one file of tables.
type scenario struct {
	name string
	run  func(*bench, context.Context) error
}

// Files that implement scenarios register them; scenarios run in the order
// of the names of these files.
var scenarios []scenario

func register(name string, run func(*bench, context.Context) error) {
	scenarios = append(scenarios, scenario{name: name, run: run})
}

func scenarioNames() (names []string) {
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func (b *bench) run(ctx context.Context) (err error) {
	if err := b.checkOnly(); err != nil {
		return err
	}
	if b.admin == "" {
		stop, err := b.startServer()
		if err != nil {
			return err
		}
		defer stop()
	} else {
		if err := b.noteRoles(ctx); err != nil {
			return err
		}
		defer func() {
			if e := b.dropAll(context.WithoutCancel(ctx)); err == nil {
				err = e
			}
		}()
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	defer b.fast.close()
	for _, s := range scenarios {
		if b.only != "" && !slices.Contains(strings.Split(b.only, ","), s.name) {
			continue
		}
		b.out.Reset()
		b.targets, b.missed = 0, 0
		share, err := b.others()
		if err != nil {
			return err
		}
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if b.share, err = share(); err != nil {
			return err
		}
		if err := b.write(s.name); err != nil {
			return err
		}
	}
	return nil
}

// others starts measuring the load of other programs on the machine. The
// function that others returns reports how many cores they kept busy.
func (b *bench) others() (func() (float64, error), error) {
	used := func() (all, ours time.Duration, err error) {
		if all, err = cpu.Machine(); err != nil {
			return 0, 0, err
		}
		family, err := cpu.Family()
		if err != nil {
			return 0, 0, err
		}
		server, err := b.serverChildren()
		return all, family + server, err
	}
	start := time.Now()
	all, ours, err := used()
	return func() (float64, error) {
		allNow, oursNow, err := used()
		return max(0, (allNow-all-oursNow+ours).Seconds()/time.Since(start).Seconds()), err
	}, err
}

func (b *bench) checkOnly() error {
	for name := range strings.SplitSeq(b.only, ",") {
		if name != "" && !slices.Contains(scenarioNames(), name) {
			return fmt.Errorf("-scenario %s is none of %s", name, strings.Join(scenarioNames(), ", "))
		}
	}
	return nil
}

// prepare makes the databases used by most scenarios.
func (b *bench) prepare(ctx context.Context) (err error) {
	load.NameKeys(b.keys)
	if b.version, err = query(ctx, b.admin, "show server_version"); err != nil {
		return err
	}
	if b.rivals, err = b.newRivals(ctx, rivalsDB, "unlogged", b.keys, burst); err != nil {
		return err
	}
	b.fast, err = b.newSchema(ctx, fastDB, "unlogged")
	return err
}

// write prints a scenario's tables, and writes them to a file of its name.
func (b *bench) write(name string) error {
	var w io.Writer = os.Stdout
	if b.dir != "" {
		if b.tuned {
			name += "-tuned"
		}
		if err := os.MkdirAll(b.dir, 0o755); err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(b.dir, name+".md"))
		if err != nil {
			return err
		}
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	report.Header(w, "PostgreSQL: "+name, "go run ./postgres "+strings.Join(os.Args[1:], " "))
	fmt.Fprintf(w, "PostgreSQL %s, %s. Clients and server share the cores. "+
		"%d rounds of %v for each contender. Everybody enforces %d a second with a burst of %d, so that each call is admitted unless it says otherwise. "+
		"Server µs and client µs are processor time a decision, of all processes of the server and of the program that calls; its µs ÷ ours is of both, and of the contender whose ratio stands beside it. "+
		"A conflict is a serialization failure or deadlock that reached the caller, who then calls again. "+
		"Logged tables are with synchronous_commit=on. Other programs kept %.1f cores busy meanwhile; processor time is what they disturb least.\n\n",
		b.version, cmp.Or(b.server, "a server that was given"), b.numRounds, b.length, perSecond, burst, b.share)
	if b.targets > 0 {
		fmt.Fprintf(w, "**%d of %d targets reached.**\n\n", b.targets-b.missed, b.targets)
	}
	_, err := io.WriteString(w, b.out.String())
	return err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
