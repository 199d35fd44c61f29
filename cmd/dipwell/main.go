// Command dipwell is a rate limiter: the service, its command-line clients, and tools for
// migration, replay and measurement.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	_ "time/tzdata" // so that calendars do not depend on the machine's time zone files
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

type commands struct {
	Serve      ServeCmd      `cmd:"" help:"Run the service over HTTP and gRPC, or a rate-limiting reverse proxy."`
	Take       floorCall     `cmd:"" help:"Take tokens, all or none."`
	Check      floorCall     `cmd:"" help:"Answer like take, but change nothing."`
	TakeUpTo   planCall      `cmd:"" help:"Take as many tokens as are free, up to --cost."`
	Reserve    planCall      `cmd:"" help:"Take tokens in advance; the answer says how long to wait."`
	Wait       WaitCmd       `cmd:"" help:"Wait for tokens, for at most --timeout, and take them."`
	Charge     call          `cmd:"" help:"Take tokens even if fewer are left."`
	Refund     notedCall     `cmd:"" help:"Give tokens back (admin)."`
	Reset      notedKey      `cmd:"" help:"Make a bucket full (admin)."`
	Hold       HoldCmd       `cmd:"" help:"Take tokens until settle or until --ttl has passed."`
	Settle     SettleCmd     `cmd:"" help:"End a hold: give back or charge the difference to the actual cost."`
	Extend     ExtendCmd     `cmd:"" help:"Move the expiry of a hold."`
	Holds      HoldsCmd      `cmd:"" help:"List the live holds of a key (admin)."`
	Override   OverrideCmd   `cmd:"" help:"Give one key a plan, or its own rate and burst (admin)."`
	Audit      AuditCmd      `cmd:"" help:"List what people have changed (admin)."`
	Cancel     CancelCmd     `cmd:"" help:"Give a reservation's tokens back before it is due."`
	Limits     LimitsCmd     `cmd:"" help:"List the limits of a server."`
	Keys       KeysCmd       `cmd:"" help:"List the live keys of a limit in pages (admin)."`
	Inspect    InspectCmd    `cmd:"" help:"Show one bucket without changing it (admin)."`
	Top        TopCmd        `cmd:"" help:"Watch a service: decisions, refusals, the busiest and most refused keys (admin)."`
	Migrate    MigrateCmd    `cmd:"" help:"Create, upgrade, show or remove the schema in PostgreSQL."`
	Config     ConfigCmd     `cmd:"" help:"Check a configuration file."`
	Replay     ReplayCmd     `cmd:"" help:"Run an access log through limits in virtual time."`
	Bench      BenchCmd      `cmd:"" help:"Measure a store: decisions per second, and latency."`
	Doctor     DoctorCmd     `cmd:"" help:"Find problems of a configuration, a store or a running service."`
	Completion CompletionCmd `cmd:"" help:"Print the completion for a shell, or the manual page."`
	Version    VersionCmd    `cmd:"" help:"Print the version, as --version does."`
	Help       HelpCmd       `cmd:"" help:"Describe the program, or one command."`
}

// HelpCmd exists for the list of commands; run turns it into --help.
type HelpCmd struct {
	Command []string `arg:"" optional:"" help:"Such as take, or migrate up."`
}

// meant returns the arguments that others stand for: those of help and of --version.
func meant(args []string) []string {
	switch {
	case args[0] == "help" && !slices.Contains(args, "--help"):
		return append(args[1:len(args):len(args)], "--help")
	case args[0] == "--version":
		return append([]string{"version"}, args[1:]...)
	}
	return args
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

type env struct {
	ctx    context.Context // ends at the first signal
	stdin  io.Reader
	stdout *output
	stderr *output
}

// errRefused ends a command with status 1. The command has already printed the answer.
var errRefused = errors.New("refused")

// exit is the panic by which the parser ends run, as after --help.
type exit int

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
	out, errs := &output{to: stdout}, &output{to: stderr}
	e := &env{ctx, stdin, out, errs}
	parser, err := kong.New(&commands{Serve: ServeCmd{Plugins: kong.Plugins{serveFlags()}}}, append(readers(), kong.Name("dipwell"), kong.Description(description), kong.Vars{"timeout": "10s", "for": "for an answer"},
		kong.Writers(out, errs), kong.Exit(func(c int) { panic(exit(c)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}))...)
	if err != nil {
		panic(err) // an error is a bug in the list of commands
	}
	addExamples(parser.Model.Node)
	if len(args) == 0 {
		shortHelp(errs, parser)
		return 2
	}
	for _, arg := range args {
		if !utf8.ValidString(arg) { // the parser would replace it by U+FFFD, and different keys would share a bucket
			fmt.Fprintf(errs, "dipwell: %q is not UTF-8\n", arg)
			return 2
		}
	}
	cmd, err := parser.Parse(meant(args))
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
		fmt.Fprintln(errs, "dipwell: "+err.Error())
		return 2
	}
	return 0
}

func addExamples(n *kong.Node) {
	n.Detail = examples[n.Path()]
	for _, c := range n.Children {
		addExamples(c)
	}
}

func shortHelp(w io.Writer, parser *kong.Kong) {
	var names []string
	for _, c := range parser.Model.Children {
		names = append(names, c.Name)
	}
	fmt.Fprintf(w, "Usage: dipwell COMMAND [flags]\n\n%s\n\nCommands: %s.\ndipwell --help describes them, dipwell help COMMAND one of them.\n",
		description, strings.Join(names, ", "))
}
