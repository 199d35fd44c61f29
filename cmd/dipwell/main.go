// Command dipwell is a rate limiter: a service, its clients, and a replay of
// access logs, in one program.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	_ "time/tzdata" // calendars must not depend on what the machine has installed

	"github.com/alecthomas/kong"
)

// commands lists what the program does: one field, one file.
type commands struct {
	Serve    ServeCmd    `cmd:"" help:"Answer over HTTP, or be a rate-limiting reverse proxy."`
	Take     TakeCmd     `cmd:"" help:"Take tokens if all of them are there."`
	Check    CheckCmd    `cmd:"" help:"Answer as take would, and change nothing."`
	TakeUpTo TakeUpToCmd `cmd:"" help:"Take as many tokens as there are, up to --cost."`
	Reserve  ReserveCmd  `cmd:"" help:"Take tokens ahead of time; the answer says how long to wait."`
	Charge   ChargeCmd   `cmd:"" help:"Take tokens whatever is left."`
	Refund   RefundCmd   `cmd:"" help:"Give tokens back (admin)."`
	Reset    ResetCmd    `cmd:"" help:"Make a bucket full (admin)."`
	Cancel   CancelCmd   `cmd:"" help:"Give a reservation's tokens back before it is due."`
	Limits   LimitsCmd   `cmd:"" help:"List the limits that a server knows."`
	Keys     KeysCmd     `cmd:"" help:"Page through the live keys of a limit (admin)."`
	Inspect  InspectCmd  `cmd:"" help:"Look at one bucket, consuming nothing (admin)."`
	Top      TopCmd      `cmd:"" help:"Watch a service: decisions, refusals, the busiest and most refused keys (admin)."`
	Migrate  MigrateCmd  `cmd:"" help:"Create, upgrade, look at or remove the schema in PostgreSQL."`
	Config   ConfigCmd   `cmd:"" help:"Check a configuration file."`
	Replay   ReplayCmd   `cmd:"" help:"Run an access log through limits in virtual time."`
	Bench    BenchCmd    `cmd:"" help:"Measure a store: decisions a second, and how long one takes."`
	Doctor   DoctorCmd   `cmd:"" help:"Look for what is wrong with a configuration, a store or a running service."`
	Version  VersionCmd  `cmd:"" help:"Print the version."`
}

const description = `Rate limits in the database you already run.

  dipwell serve --limit 'api=10/1s,burst=50'
  curl -d limit=api -d key=user:7 localhost:8080/v1/take

Exit status: 0 allowed or done, 1 refused, 2 error.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// env is what a command may touch outside itself.
type env struct {
	ctx    context.Context // ends when the program is asked to stop
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// errRefused ends a command with status 1: the answer was no, and has been printed.
var errRefused = errors.New("refused")

// exit is how the parser's own endings (--help) leave it.
type exit int

// run is the program: it parses args, runs one command and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	defer func() {
		if e := recover(); e != nil {
			c, ok := e.(exit)
			if !ok {
				panic(e)
			}
			code = int(c)
		}
	}()
	e := &env{ctx, stdin, stdout, stderr}
	parser, err := kong.New(&commands{Serve: ServeCmd{Plugins: kong.Plugins{serveFlags()}}}, kong.Name("dipwell"), kong.Description(description),
		kong.Writers(stdout, stderr), kong.Exit(func(c int) { panic(exit(c)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}))
	if err != nil {
		panic(err) // the commands above are wrong
	}
	if len(args) == 0 {
		shortHelp(stderr, parser)
		return 2
	}
	cmd, err := parser.Parse(args)
	if err == nil {
		err = cmd.Run(e)
	} else {
		err = fmt.Errorf("%w (see dipwell --help)", err)
	}
	switch {
	case errors.Is(err, errRefused):
		return 1
	case errors.Is(err, errLogged):
		return 2
	case err != nil:
		fmt.Fprintln(stderr, "dipwell: "+err.Error())
		return 2
	}
	return 0
}

// shortHelp says what the program is for and names its commands.
func shortHelp(w io.Writer, parser *kong.Kong) {
	var names []string
	for _, c := range parser.Model.Children {
		names = append(names, c.Name)
	}
	fmt.Fprintf(w, "Usage: dipwell COMMAND [flags]\n\n%s\n\nCommands: %s.\ndipwell --help describes them, dipwell COMMAND --help one of them.\n",
		description, strings.Join(names, ", "))
}
