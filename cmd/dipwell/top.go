package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/server"
)

// TopCmd shows the decisions of a service, live or once.
type TopCmd struct {
	Server    string        `placeholder:"URL" env:"DIPWELL_SERVER" help:"Server to call (default http://127.0.0.1:8080)."`
	TokenFile string        `aliases:"admin-token-file" placeholder:"FILE" env:"DIPWELL_TOKEN_FILE,DIPWELL_ADMIN_TOKEN_FILE" help:"File with the token of a caller, or of admin calls; or set DIPWELL_TOKEN."`
	Interval  time.Duration `default:"2s" help:"Time between reports, 100ms to 20s. Default 2s."`
	N         int           `short:"n" default:"10" help:"Number of keys in a list and of limits, 1 to 100. Default 10."`
	Limit     string        `placeholder:"NAME" help:"Only this limit and its keys."`
	Hour      string        `placeholder:"WHEN" help:"Print the lists of an hour of the last week, from the store: a time such as 2030-01-31T18:00:00Z, or how long ago, such as 1h."`
	Once      bool          `help:"Print one report and end, as without a terminal."`
	JSON      bool          `name:"json" help:"Print one report as JSON and end."`
	clientTLS `embed:""`

	target target
}

// AfterApply checks the server's URL.
func (c *TopCmd) AfterApply() error {
	c.target = target{Server: c.Server, TokenFile: c.TokenFile, Timeout: 10 * time.Second, clientTLS: c.clientTLS}
	return checkServer(c.Server)
}

func (TopCmd) Help() string {
	return `Examples:
  dipwell top
  dipwell top --limit login -n 20 --server https://limits.internal:8443
  dipwell top --once --interval 10s
  dipwell top --hour 1h

The service counts keys in bounded memory: a count is too high by at most the
column ERROR, and never too low. Counts are of the last minute at most, and of
the one service that answers; rates per second of the last interval. --hour has
the counts of all services together; an hour is there once it has ended.`
}

const (
	minInterval = 100 * time.Millisecond
	maxInterval = 20 * time.Second
)

// topAnswer is the response of GET /v1/top.
type topAnswer struct {
	Process     string               `json:"process"`
	At          int64                `json:"at_us"`
	Window      int64                `json:"window_us"`
	MaxBytes    int64                `json:"sketch_max_bytes"`
	StoreErrors uint64               `json:"store_errors"`
	Shed        uint64               `json:"shed"`
	Limits      []server.LimitCounts `json:"limits"`
	server.TopLists
}

// topRate are rates per second, of one limit or of all.
type topRate struct {
	Limit     string  `json:"limit,omitempty"`
	Decisions float64 `json:"decisions"`
	Refused   float64 `json:"refused"`
	Shadow    float64 `json:"shadow"`
	Fallback  float64 `json:"fallback"`
}

// topReport is an answer with the rates since the previous answer. --json prints it.
type topReport struct {
	topAnswer
	Interval  int64     `json:"interval_us"`
	PerSecond topRate   `json:"per_second"`
	ByLimit   []topRate `json:"per_second_by_limit"` // those that refuse most first, then the busiest
	Errors    float64   `json:"store_errors_per_second"`
}

func (c *TopCmd) Run(e *env) error {
	switch {
	case c.Interval < minInterval || c.Interval > maxInterval:
		return fmt.Errorf("interval: %v is not between %v and %v", c.Interval, minInterval, maxInterval)
	case c.N < 1 || c.N > 100:
		return fmt.Errorf("n: %d is not between 1 and 100", c.N)
	}
	if c.Hour != "" {
		return c.hour(e, time.Now())
	}
	first, err := c.ask(e)
	if err != nil {
		return err
	}
	if out := e.stdout.terminal(); out != nil && !c.Once && !c.JSON {
		return c.live(e, out, first)
	}
	select {
	case <-time.After(c.Interval):
	case <-e.ctx.Done():
		return nil
	}
	second, err := c.ask(e)
	if err != nil {
		return err
	}
	report := compare(first, second)
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(report)
	}
	report.write(e.stdout, c.N)
	return nil
}

// live writes a report each interval in place of the last one, until Ctrl-C or a signal.
func (c *TopCmd) live(e *env, out io.Writer, last *topAnswer) error {
	for said := "counting…\n"; ; {
		fmt.Fprintf(out, "\x1b[H\x1b[Jdipwell top %s every %v\n%s", time.Now().Format(time.TimeOnly), c.Interval, said)
		select {
		case <-time.After(c.Interval):
		case <-e.ctx.Done():
			return nil
		}
		now, err := c.ask(e)
		if err != nil {
			said = "no answer: " + plain(err.Error()) + "\n"
			continue
		}
		var b strings.Builder
		compare(last, now).write(&b, c.N)
		said, last = b.String(), now
	}
}

// ask calls GET /v1/top, which also starts the counting of keys.
func (c *TopCmd) ask(e *env) (a *topAnswer, err error) {
	a = &topAnswer{}
	if _, err = c.get(e, url.Values{}, a); err == nil && a.At == 0 {
		err = errNoReport
	}
	return a, err
}

var errNoReport = errors.New("the server's answer is not a report")

// get calls GET /v1/top.
func (c *TopCmd) get(e *env, q url.Values, to any) (b []byte, err error) {
	q.Set("n", strconv.Itoa(c.N))
	if c.Limit != "" {
		q.Set("limit", c.Limit)
	}
	if b, err = c.target.http(e, http.MethodGet, "/v1/top?"+q.Encode(), nil); err != nil {
		return nil, err
	}
	if json.Unmarshal(b, to) != nil {
		return nil, errNoReport
	}
	return b, nil
}

// hour prints the lists of an hour.
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
	b, err := c.get(e, url.Values{"hour": {at.UTC().Format(time.RFC3339)}}, &h)
	if err == nil && h.Hour.IsZero() {
		err = errNoReport
	}
	if err != nil {
		return err
	}
	if c.JSON {
		_, err = e.stdout.Write(b)
		return err
	}
	writeHour(e.stdout, &h)
	return nil
}

// compare makes a report of two answers. If a counter is lower than before, the
// service has restarted, and the counter's rate is from zero.
func compare(old, now *topAnswer) *topReport {
	r := &topReport{topAnswer: *now, Interval: max(now.At-old.At, 1)}
	per := func(now, old uint64) float64 {
		if now < old {
			old = 0
		}
		return float64(now-old) * 1e6 / float64(r.Interval)
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
		r.ByLimit = append(r.ByLimit, one)
		all := &r.PerSecond
		all.Decisions, all.Refused, all.Shadow, all.Fallback = all.Decisions+one.Decisions, all.Refused+one.Refused, all.Shadow+one.Shadow, all.Fallback+one.Fallback
	}
	r.Errors = per(now.StoreErrors, old.StoreErrors)
	slices.SortStableFunc(r.ByLimit, func(a, b topRate) int {
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(b.Decisions, a.Decisions), cmp.Compare(a.Limit, b.Limit))
	})
	return r
}
