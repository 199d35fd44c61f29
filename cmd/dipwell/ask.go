package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

type noted struct {
	Note string `json:"note" help:"Why, at most 1024 bytes, for dipwell audit."`
}

// onKey are the arguments that name a bucket. onKey, and structs that embed it, are bodies of
// calls: flags that were not given are left out, because the server refuses an empty plan.
type onKey struct {
	target `json:"-" embed:""`
	Name   string  `json:"limit" arg:"" name:"limit" help:"Name of the limit."`
	Key    *string `json:"key,omitempty" arg:"" optional:"" help:"Key of the bucket. A limit that is shared has none."`
}

type call struct {
	onKey `embed:""`
	Cost  int64 `json:"cost" default:"1" help:"Tokens. Default 1."`
}

// planCall is a call that may name a plan, and floorCall one that may also leave tokens free.
// notedCall and notedKey are recorded in the audit.
type (
	planCall struct {
		call `embed:""`
		Plan *string `json:"plan,omitempty" help:"Plan of the limit, unless the key has an override."`
	}
	floorCall struct {
		planCall `embed:""`
		Floor    int64 `json:"floor,omitempty" help:"Tokens that must stay free."`
	}
	notedCall struct {
		call
		noted
	}
	notedKey struct {
		onKey
		noted
	}
)

// Run is for commands that are bodies of calls: /v1/take_up_to for take-up-to.
func (t *target) Run(e *env, k *kong.Context) error {
	cmd := k.Selected()
	return t.decide(e, "/v1/"+strings.ReplaceAll(cmd.Name, "-", "_"), cmd.Target.Addr().Interface())
}

type WaitCmd struct {
	floorCall `embed:"" kong:"set='timeout=30s',set='for=until the tokens are there'"`
}

func (c *WaitCmd) Run(e *env) error {
	body := struct {
		floorCall
		Timeout string `json:"timeout"`
	}{c.floorCall, period.Format(c.Timeout)}
	c.Timeout += answerTime
	return c.decide(e, "/v1/wait", body)
}

const answerTime = 10 * time.Second // after the end of a wait, until its answer must have arrived

func (t *target) decide(e *env, path string, body any) error {
	b, err := json.Marshal(body)
	if err == nil {
		b, err = t.call(e, http.MethodPost, path, b)
	}
	if err != nil {
		return err
	}
	a, err := t.decision(b)
	if err != nil {
		return err
	}
	a.settled = path == "/v1/settle"
	if err = t.print(e, &a); err == nil && !a.Allowed {
		err = errRefused
	}
	return err
}

func (t *target) print(e *env, a *answer) (err error) {
	if t.JSON {
		a.Detail = ""
		return json.NewEncoder(e.stdout).Encode(a)
	}
	_, err = fmt.Fprintln(e.stdout, a.String())
	return err
}

func (a *answer) String() string {
	s := "allowed"
	if !a.Allowed {
		s = "refused"
	}
	s += ": " + a.Limit
	if a.Key != nil {
		s += " " + plain(*a.Key)
	}
	s += a.by()
	s += ": " + a.remaining()
	if a.Granted != a.Cost && a.Granted > 0 {
		s += fmt.Sprintf(", %d granted", a.Granted)
	}
	switch {
	case a.Never:
		s += ", " + cmp.Or(a.Detail, "no wait will help")
	case a.RetryAfter != nil:
		s += fmt.Sprintf(", retry after %v", micros(*a.RetryAfter))
		if a.RetryIsBound {
			s += " or when a hold ends"
		}
	case a.Delay > 0:
		s += fmt.Sprintf(", due in %v", micros(a.Delay))
	}
	if a.Reservation != "" {
		s += ", reservation " + a.Reservation
	}
	if a.Hold != "" {
		s += ", hold " + a.Hold
		switch {
		case a.settled:
			s += " settled"
		case a.Expires != 0:
			s += " until " + clock(a.Expires)
		}
	}
	if a.Repeated {
		s += ", repeated: the call was made before"
	}
	if a.ResetAfter > 0 {
		s += fullIn(a.ResetAfter)
	}
	if a.Shadow {
		s += ", in shadow mode: enforcing would have refused"
	}
	if a.Source != "store" {
		s += " (" + a.Source + ")"
	}
	return s + "; asked " + a.Asked
}

// by says which plan decided a call, if it was not the limit itself.
func (a *answer) by() string {
	switch a.Plan {
	case "":
		return ""
	case "override":
		return " (override)"
	}
	return " (plan " + a.Plan + ")"
}

func (a *answer) remaining() string {
	if a.Capacity == store.MaxInt {
		return "unlimited"
	}
	return fmt.Sprintf("%d of %d remaining", a.Remaining, a.Capacity)
}

// clock formats a time in µs since the Unix epoch.
func clock(us int64) string { return time.UnixMicro(us).UTC().Format("2006-01-02 15:04:05Z") }

func fullIn(us int64) string {
	if us == 0 {
		return ", full"
	}
	return fmt.Sprintf(", full in %v", micros(us))
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
