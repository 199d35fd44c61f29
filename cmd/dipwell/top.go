package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/server"
)

type TopCmd struct {
	remote   `embed:""`
	Interval time.Duration `default:"2s" help:"Time between reports, 100ms to 20s. Default 2s."`
	N        int           `short:"n" default:"10" help:"Number of keys in a list and of limits, 1 to 100. Default 10."`
	Limit    string        `placeholder:"NAME" help:"Only this limit and its keys."`
	Hour     string        `placeholder:"WHEN" help:"Print the lists of an hour of the last week, from the store: a time such as 2030-01-31T18:00:00Z, or how long ago, such as 1h."`
	Once     bool          `help:"Print one report and end, as without a terminal."`
}

func (c *TopCmd) AfterApply() error { return checkServer(c.Server) }

const (
	minInterval = 100 * time.Millisecond
	maxInterval = 20 * time.Second
)

type topRate struct {
	limit                                string
	decisions, refused, shadow, fallback float64 // for all limits only the first two are set
}

type topReport struct {
	*server.TopNow
	all     topRate
	byLimit []topRate // limits that refuse most first, then the busiest
	errors  float64   // errors of the store per second
}

func (c *TopCmd) Run(e *env) error {
	if err := cmp.Or(between("interval", c.Interval, minInterval, maxInterval), between("n", c.N, 1, 100)); err != nil {
		return err
	}
	if c.Hour != "" {
		return c.hour(e, time.Now())
	}
	last, err := c.ask(e)
	if err != nil {
		return err
	}
	out := e.stdout.terminal()
	if c.Once {
		out = nil
	}
	for said := "counting…\n"; ; {
		if out != nil { // the new report is written in place of the last one
			fmt.Fprintf(out, "\x1b[H\x1b[Jdipwell top %s every %v\n%s", time.Now().Format(time.TimeOnly), c.Interval, said)
		}
		select {
		case <-time.After(c.Interval):
		case <-e.ctx.Done():
			return nil
		}
		now, err := c.ask(e)
		switch {
		case err == nil && out == nil:
			compare(last, now).write(e.stdout, c.N)
			return nil
		case err == nil:
			var b strings.Builder
			compare(last, now).write(&b, c.N)
			said, last = b.String(), now
		case out == nil:
			return err
		default:
			said = "no answer: " + plain(err.Error()) + "\n"
		}
	}
}

// ask calls GET /v1/top, which also starts the counting of keys.
func (c *TopCmd) ask(e *env) (a *server.TopNow, err error) {
	a = &server.TopNow{}
	if err = c.get(e, "", a); err == nil && a.At == 0 {
		err = errNoReport
	}
	return a, err
}

var errNoReport = errors.New("the server's answer is not a report")

func (c *TopCmd) get(e *env, hour string, to any) error {
	t := target{remote: c.remote, Timeout: 10 * time.Second}
	b, err := t.http(e, http.MethodGet, "/v1/top"+query("n", c.N, "limit", c.Limit, "hour", hour), nil)
	if err == nil && json.Unmarshal(b, to) != nil {
		err = errNoReport
	}
	return err
}

func (c *TopCmd) hour(e *env, now time.Time) error {
	at, err := time.Parse(time.RFC3339, c.Hour)
	if err != nil {
		ago, wrong := period.ParseSetting(c.Hour)
		if wrong != nil {
			return fmt.Errorf("hour: %q is neither a time such as 2030-01-31T18:00:00Z nor a length of time ago such as 1h", c.Hour)
		}
		at = now.Add(-ago)
	}
	var h server.TopHour
	err = c.get(e, at.UTC().Format(time.RFC3339), &h)
	if err == nil && h.Hour.IsZero() {
		err = errNoReport
	}
	if err != nil {
		return err
	}
	writeHour(e.stdout, &h)
	return nil
}

// If a counter is lower than before, the service has restarted: its rate is then from zero.
func compare(old, now *server.TopNow) *topReport {
	interval := max(now.At-old.At, 1)
	r := &topReport{TopNow: now}
	per := func(now, old uint64) float64 {
		if now < old {
			old = 0
		}
		return float64(now-old) * 1e6 / float64(interval)
	}
	before := map[string]*server.LimitCounts{}
	for i := range old.Limits {
		before[old.Limits[i].Limit] = &old.Limits[i]
	}
	for i := range now.Limits {
		l, was := &now.Limits[i], before[now.Limits[i].Limit]
		if was == nil {
			was = &server.LimitCounts{}
		}
		one := topRate{l.Limit, per(l.Calls(), was.Calls()), per(l.Refused, was.Refused), per(l.Shadow, was.Shadow), per(l.Fallback, was.Fallback)}
		r.byLimit = append(r.byLimit, one)
		r.all.decisions, r.all.refused = r.all.decisions+one.decisions, r.all.refused+one.refused
	}
	r.errors = per(now.StoreErrors, old.StoreErrors)
	slices.SortStableFunc(r.byLimit, func(a, b topRate) int {
		return cmp.Or(cmp.Compare(b.refused, a.refused), cmp.Compare(b.decisions, a.decisions), cmp.Compare(a.limit, b.limit))
	})
	return r
}

const longestKey = 100 // characters of a key that a report shows

func (r *topReport) write(w io.Writer, n int) {
	all := &r.all
	share := 0.0
	if all.decisions > 0 {
		share = 100 * all.refused / all.decisions
	}
	fmt.Fprintf(w, "decisions %s/s, refused %s/s (%.1f %%), store errors %s/s\n", rate(all.decisions), rate(all.refused), share, rate(r.errors))
	if r.Shed > 0 {
		fmt.Fprintf(w, "%s turned away since the start: too many were in flight\n", howMany(r.Shed, "call"))
	}
	t := table(w, "\nDECISIONS/S\tREFUSED/S\tSHADOW/S\tFALLBACK/S\t  LIMIT")
	for _, l := range r.byLimit[:min(len(r.byLimit), n)] {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t  %s\n", rate(l.decisions), rate(l.refused), rate(l.shadow), rate(l.fallback), plain(l.limit))
	}
	_ = t.Flush() // the writer keeps its error
	if more := len(r.byLimit) - n; more > 0 {
		fmt.Fprintf(w, "and %s\n", howMany(more, "more limit"))
	}
	if r.Process != "" {
		fmt.Fprintf(w, "\ncounted by %s alone\n", plain(r.Process))
	}
	within := (time.Duration(r.Window/1e6) * time.Second).String()
	writeLists(w, &r.TopLists, within)
}

func writeHour(w io.Writer, h *server.TopHour) {
	hour := h.Hour.Format(time.RFC3339)
	if len(h.Processes) == 0 {
		fmt.Fprintf(w, "nothing is kept of the hour %s\n", hour)
		return
	}
	fmt.Fprintf(w, "hour %s, %s: %s\n", hour, howMany(len(h.Processes), "service"), plain(strings.Join(h.Processes, ", ")))
	writeLists(w, &h.TopLists, "1h")
}

func writeLists(w io.Writer, l *server.TopLists, within string) {
	writeKeys(w, &l.Busiest, "BUSIEST KEYS, "+within)
	writeKeys(w, &l.Refused, "MOST REFUSED KEYS, "+within)
}

func writeKeys(w io.Writer, l *server.KeyList, title string) {
	t := table(w, "\nCOUNT\tERROR\tAT LEAST\tOF ALL\t  "+title)
	for _, k := range l.Keys {
		key := plain(cmp.Or(string(k.Key), "(shared)"))
		if r := []rune(key); len(r) > longestKey {
			key = string(r[:longestKey-1]) + "…"
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%.1f %%\t  %s %s\n", k.Count, k.Error, k.Count-k.Error, 100*float64(k.Count)/float64(max(l.Counted, 1)), plain(k.Limit), key)
	}
	_ = t.Flush() // the writer keeps its error
	if l.Unlisted > 0 {
		fmt.Fprintf(w, "each other key at most %d\n", l.Unlisted)
	}
}

// table begins a table of numbers whose last column is a name of any length.
func table(w io.Writer, head string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, head)
	return t
}

func rate(f float64) string {
	if f > 0 && f < 100 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 0, 64)
}

// plain quotes a text with control characters, because keys are chosen by clients.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.QuoteToGraphic(s)
	}
	return s
}
