// Command dipwell is a rate limiter: the service, its command-line clients, and tools for
// migration, replay, simulation and measurement.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	_ "time/tzdata" // calendars must not depend on the machine's time zone files
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

// commands are the subcommands, each in a file of its own.
type commands struct {
	Serve    ServeCmd    `cmd:"" help:"Run the service over HTTP and gRPC, or a rate-limiting reverse proxy."`
	Take     TakeCmd     `cmd:"" help:"Take tokens, all or none."`
	Check    CheckCmd    `cmd:"" help:"Answer like take, but change nothing."`
	TakeUpTo TakeUpToCmd `cmd:"" help:"Take as many tokens as are free, up to --cost."`
	Reserve  ReserveCmd  `cmd:"" help:"Take tokens in advance; the answer says how long to wait."`
	Wait     WaitCmd     `cmd:"" help:"Wait for tokens, for at most --timeout, and take them."`
	Charge   ChargeCmd   `cmd:"" help:"Take tokens even if fewer are left."`
	Refund   RefundCmd   `cmd:"" help:"Give tokens back (admin)."`
	Reset    ResetCmd    `cmd:"" help:"Make a bucket full (admin)."`
	Hold     HoldCmd     `cmd:"" help:"Take tokens until settle or until --ttl has passed."`
	Settle   SettleCmd   `cmd:"" help:"End a hold: give back or charge the difference to the actual cost."`
	Extend   ExtendCmd   `cmd:"" help:"Move the expiry of a hold."`
	Holds    HoldsCmd    `cmd:"" help:"List the live holds of a key (admin)."`
	Override OverrideCmd `cmd:"" help:"Give one key a plan, or its own rate and burst (admin)."`
	Audit    AuditCmd    `cmd:"" help:"List what people have changed (admin)."`
	Cancel   CancelCmd   `cmd:"" help:"Give a reservation's tokens back before it is due."`
	Limits   LimitsCmd   `cmd:"" help:"List the limits of a server."`
	Keys     KeysCmd     `cmd:"" help:"List the live keys of a limit in pages (admin)."`
	Inspect  InspectCmd  `cmd:"" help:"Show one bucket without changing it (admin)."`
	Top      TopCmd      `cmd:"" help:"Watch a service: decisions, refusals, the busiest and most refused keys (admin)."`
	Migrate  MigrateCmd  `cmd:"" help:"Create, upgrade, show or remove the schema in PostgreSQL."`
	Config   ConfigCmd   `cmd:"" help:"Check a configuration file."`
	Replay   ReplayCmd   `cmd:"" help:"Run an access log through limits in virtual time."`
	Simulate SimulateCmd `cmd:"" help:"Simulate a cluster with faults in virtual time, and check its promises."`
	Bench    BenchCmd    `cmd:"" help:"Measure a store: decisions per second, and latency."`
	Doctor   DoctorCmd   `cmd:"" help:"Find problems of a configuration, a store or a running service."`
	Version  VersionCmd  `cmd:"" help:"Print the version."`
}

const description = `Rate limits in the database you already run.

  dipwell serve --limit 'api=10/1s,burst=50'
  curl -d limit=api -d key=user:7 localhost:8080/v1/take

Exit status: 0 allowed or done, 1 refused, 2 error.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills the program
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// env is the environment of a command.
type env struct {
	ctx    context.Context // ends at the first signal
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// output is standard output. It keeps the first error, so that no command ends as if its
// answer had been printed.
type output struct {
	to  io.Writer
	mu  sync.Mutex
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.to.Write(b)
	if err != nil {
		o.mu.Lock()
		o.err = cmp.Or(o.err, err)
		o.mu.Unlock()
	}
	return n, err
}

// file returns the file that standard output is, or nil.
func (e *env) file() *os.File {
	w := e.stdout
	if o, ok := w.(*output); ok {
		w = o.to
	}
	f, _ := w.(*os.File)
	return f
}

// errRefused ends a command with status 1. The answer has been printed.
var errRefused = errors.New("refused")

// exit is the panic by which the parser ends run, as after --help.
type exit int

// run parses args, runs a command and returns the exit status.
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
	out := &output{to: stdout}
	e := &env{ctx, stdin, out, stderr}
	parser, err := kong.New(&commands{Serve: ServeCmd{Plugins: kong.Plugins{serveFlags()}}}, append(readers(), kong.Name("dipwell"), kong.Description(description), kong.Vars{"timeout": "10s", "for": "for an answer"},
		kong.Writers(stdout, stderr), kong.Exit(func(c int) { panic(exit(c)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}))...)
	if err != nil {
		panic(err) // a bug in commands
	}
	if len(args) == 0 {
		shortHelp(stderr, parser)
		return 2
	}
	for _, arg := range args {
		if !utf8.ValidString(arg) { // the parser would replace it by U+FFFD, and different keys would share a bucket
			fmt.Fprintf(stderr, "dipwell: %q is not UTF-8\n", arg)
			return 2
		}
	}
	cmd, err := parser.Parse(args)
	if err == nil {
		if err = cmd.Run(e); out.err != nil {
			err = out.err
		}
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

// shortHelp prints the description and the names of the commands.
func shortHelp(w io.Writer, parser *kong.Kong) {
	var names []string
	for _, c := range parser.Model.Children {
		names = append(names, c.Name)
	}
	fmt.Fprintf(w, "Usage: dipwell COMMAND [flags]\n\n%s\n\nCommands: %s.\ndipwell --help describes them, dipwell COMMAND --help one of them.\n",
		description, strings.Join(names, ", "))
}
