package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/replay"
	"github.com/dipwell/dipwell/internal/texts"
)

type ReplayCmd struct {
	Log       string   `required:"" placeholder:"FILE" help:"Access log, gzipped or not; - is standard input."`
	Config    string   `placeholder:"FILE" help:"Use the limits of a configuration file, with their plans and parents."`
	Limit     []string `sep:"none" placeholder:"LIMIT" help:"NAME=RATE/PER and more settings after commas: 'login=5/1m,burst=20'. With --config: the name of a limit of the file; default all that are not a parent. May be given again."`
	By        string   `default:"ip" placeholder:"FIELD" help:"The field that is the key: ip, user, method, path, url, status, agent, referer, or another name of the log; none if all limits are shared, which have no key. ip, or ip=FIELD, is an address and counts as in the middleware. Several with + between them make a key of several parts, such as tenant+user. Default ip."`
	Trusted   []string `name:"trusted-proxies" placeholder:"PREFIX" help:"Proxies that are skipped, from the right, in a list of addresses, such as 10.0.0.0/8. Default: those of --config, or none, and then the client is the first of a list."`
	Where     []string `sep:"none" placeholder:"CONDITION" help:"FIELD=VALUE, or FIELD~PATTERN with a regular expression: keep only the lines that match. May be given again."`
	Plan      []string `sep:"none" placeholder:"FIELD" help:"The field with the name of a request's plan; or FIELD=VALUE:PLAN or FIELD~PATTERN:PLAN, for those that match. May be given again; the first that matches decides."`
	Cost      string   `default:"1" placeholder:"N|FIELD" help:"Tokens that a request costs: a number, or a field such as bytes. Default 1."`
	All       bool     `help:"A request is granted by all limits or charged by none. Otherwise each limit decides alone."`
	Pattern   string   `placeholder:"GROK|NAME" help:"How to read a line: a grok pattern that captures time and ip, or a format: combined, common, vhost_combined, json, csv, alb, elb, haproxy, envoy, w3c. Default: recognized from the log's first lines."`
	TimeField string   `placeholder:"FIELD" help:"Field with the time. Default: the usual names."`
	Decisions string   `placeholder:"FILE" help:"Write each decision as a JSON line; - is standard output, without the report."`
	Plot      string   `placeholder:"FILE" help:"Draw the requests granted and refused over time, as .svg."`
	JSON      bool     `name:"json" help:"Print the report as JSON."`
}

func (c *ReplayCmd) Run(e *env) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	in, err := replay.File(c.Log, e.stdin)
	if err != nil {
		return fmt.Errorf("--log: %w", err)
	}
	sink, err := c.sink(e.stdout)
	if err != nil {
		return fmt.Errorf("--decisions: %w", err)
	}
	o.Decisions = sink
	bar := newBar(e.stderr)
	o.Progress = bar.show
	rep, err := replay.Run(e.ctx, in, o)
	bar.finish()
	err = flag(err)
	if f, ok := sink.(io.Closer); ok { // all but standard output
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return err
	}
	if c.Plot != "" {
		f, err := os.Create(c.Plot)
		if err == nil {
			err = errors.Join(rep.WritePlot(f), f.Close())
		}
		if err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	return errors.Join(c.print(e.stdout, rep), flag(rep.Unread()))
}

func (c *ReplayCmd) options() (o replay.Options, err error) {
	if err = c.limits(&o); err != nil {
		return o, err
	}
	for i, text := range c.Trusted {
		prefix, err := config.ParseProxy(text)
		if err != nil {
			return o, fmt.Errorf("--trusted-proxies: %w", err)
		}
		o.TrustedProxies = append(o.TrustedProxies[:i], prefix)
	}
	switch {
	case c.Plot == "":
	case same(c.Plot, c.Log):
		return o, fmt.Errorf("--plot: %s is the log", c.Plot)
	case !strings.EqualFold(filepath.Ext(c.Plot), ".svg"):
		return o, fmt.Errorf("--plot: %q does not end in .svg", c.Plot)
	}
	for name, value := range map[string]string{"by": c.By, "cost": c.Cost} {
		if value == "" {
			return o, fmt.Errorf("--%s: is empty", name)
		}
	}
	o.All, o.Pattern, o.By, o.Cost, o.TimeField = c.All, c.Pattern, c.By, c.Cost, c.TimeField
	o.Where, o.Plan = c.Where, c.Plan
	return o, nil
}

// limits sets the limits of --config that --limit names, and its proxies; or those of --limit.
func (c *ReplayCmd) limits(o *replay.Options) error {
	if c.Config == "" {
		if len(c.Limit) == 0 {
			return errors.New("--limit or --config is missing")
		}
		for _, s := range c.Limit {
			l, err := dipwell.ParseLimit(s)
			if err != nil {
				return fmt.Errorf("--limit: %w", err)
			}
			o.Limits = append(o.Limits, l)
		}
		return nil
	}
	f, err := config.Load(c.Config)
	if err != nil {
		return inFile(c.Config, err)
	}
	var names []string
	for _, l := range f.Limits {
		names = append(names, l.Name)
	}
	for _, name := range c.Limit {
		if !slices.Contains(names, name) {
			return fmt.Errorf("--limit: %s has no limit %s%s", c.Config, name, texts.Nearest(name, names))
		}
	}
	o.Limits, o.Ask, o.TrustedProxies = f.Limits, c.Limit, f.TrustedProxies
	return nil
}

// flag adds the name of the flag to an error about an option.
func flag(err error) error {
	if field, ok := errors.AsType[*dipwell.FieldError](err); ok && field.Limit == "" {
		return fmt.Errorf("--%w", err)
	}
	return err
}

func (c *ReplayCmd) print(stdout io.Writer, rep *replay.Report) error {
	switch {
	case c.Decisions == "-":
		return nil
	case c.JSON:
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(rep)
	}
	return rep.Write(stdout)
}

func (c *ReplayCmd) sink(stdout io.Writer) (io.Writer, error) {
	switch {
	case c.Decisions == "":
		return nil, nil
	case c.Decisions == "-":
		return stdout, nil
	case same(c.Decisions, c.Log):
		return nil, fmt.Errorf("%s is the log", c.Decisions)
	}
	return os.Create(c.Decisions)
}

// The decisions and the plot must not overwrite the log.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// bar shows progress if standard error is a terminal.
type bar struct {
	out  io.Writer // nil if standard error is not a terminal
	last time.Time // when the line was last written
}

func newBar(stderr *output) *bar {
	if f := stderr.terminal(); f != nil {
		return &bar{out: f}
	}
	return &bar{}
}

// show writes the progress line again, at most ten times a second.
func (b *bar) show(stage string, done, total int64) {
	if b.out == nil || time.Since(b.last) < 100*time.Millisecond {
		return
	}
	b.last = time.Now()
	part := fmt.Sprint(done)
	if total > 0 {
		part = fmt.Sprintf("%d %%", 100*done/total)
	}
	fmt.Fprintf(b.out, "\r%s %s\x1b[K", stage, part)
}

func (b *bar) finish() {
	if !b.last.IsZero() {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}
