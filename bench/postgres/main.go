// Command postgres measures dipwell's decisions in PostgreSQL against three
// published designs in SQL, written anew, and against the floor: all on one
// server with the same settings, taking turns. The server is one of its own
// that it starts and removes, or the one at -dsn.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/pgstore"
)

func main() {
	b := &bench{keys: 10_000}
	flag.IntVar(&b.numRounds, "rounds", 7, "rounds for each contender")
	flag.DurationVar(&b.length, "length", 3*time.Second, "length of a round")
	flag.IntVar(&b.lanes, "lanes", 4, "coalesce's lanes, a connection each")
	flag.BoolVar(&b.quick, "quick", false, "2 rounds of 1 s, small tables: shows that all of it runs, not how fast")
	flag.StringVar(&b.admin, "dsn", "", "use this server, a URL of a superuser, instead of one of its own")
	flag.StringVar(&b.only, "scenario", "", "run only these, with commas between: "+strings.Join(scenarioNames(), ", "))
	out := flag.String("o", "", "write the tables to this file as well")
	flag.Parse()
	if b.quick {
		b.numRounds, b.length = 2, time.Second
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := b.run(ctx)
	stop()
	if e := b.write(*out); err == nil {
		err = e
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type bench struct {
	numRounds int
	length    time.Duration
	quick     bool
	only      string
	keys      int
	lanes     int

	bin       string // where pgbench is; "" for the path
	server    string // its settings, where they are ours
	admin     string // DSN of a database from which others are made
	version   string
	created   []string // databases
	roles     []string // that were not there before
	rivals    rivals
	fast      *well // dipwell, unlogged
	conflicts int   // that reached dipwell's callers
	decisions int   // of dipwell's, in the same rounds

	out             strings.Builder
	targets, missed int
}

// scenarios in the order in which they run.
var scenarios = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"single", (*bench).single},
	{"hot", (*bench).hot},
	{"refused", (*bench).refused},
	{"pgbench", (*bench).sqlFunctions},
	{"coalesced", (*bench).coalesced},
	{"few", (*bench).few},
	{"logged", (*bench).logged},
	{"verbs", (*bench).verbs},
	{"coalescedverbs", (*bench).coalescedVerbs},
	{"growth", (*bench).growth},
	{"refill", (*bench).refillCost},
	{"rows", (*bench).manyRows},
	{"hotupdates", (*bench).hotUpdates}, // last: it counts what all of the others did
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
		var stop func()
		if b.admin, b.bin, stop, err = startServer(); err != nil {
			return err
		}
		defer stop()
		b.server = "over a Unix socket, with " + strings.Join(settings, ", ")
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
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (b *bench) checkOnly() error {
	for name := range strings.SplitSeq(b.only, ",") {
		if name != "" && !slices.Contains(scenarioNames(), name) {
			return fmt.Errorf("-scenario %s is none of %s", name, strings.Join(scenarioNames(), ", "))
		}
	}
	return nil
}

// prepare makes the databases that most scenarios share.
func (b *bench) prepare(ctx context.Context) (err error) {
	load.NameKeys(b.keys)
	if b.version, err = query(ctx, b.admin, "show server_version"); err != nil {
		return err
	}
	if b.rivals, err = b.invite(ctx, rivalsDB, b.keys, burst); err != nil {
		return err
	}
	b.fast, err = b.dig(ctx, fastDB, pgstore.Unlogged)
	return err
}

func (b *bench) write(name string) error {
	var w io.Writer = os.Stdout
	if name != "" {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		w = io.MultiWriter(os.Stdout, f)
	}
	report.Header(w, "PostgreSQL: decisions a second, beside published designs", "make bench-postgres")
	fmt.Fprintf(w, "PostgreSQL %s, %s. Clients and server share the cores. "+
		"%d rounds of %v for each contender. Everybody enforces %d a second with a burst of %d, so that each call is admitted unless it says otherwise. "+
		"A conflict is a serialization failure or deadlock that reached the caller, who then calls again.\n\n",
		b.version, cmp.Or(b.server, "a server that was given"), b.numRounds, b.length, perSecond, burst)
	fmt.Fprintf(w, "**%d of %d targets reached.**\n\n", b.targets-b.missed, b.targets)
	_, err := io.WriteString(w, b.out.String())
	return err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
