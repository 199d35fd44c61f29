package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

// The client commands, one for each verb.
type (
	TakeCmd     struct{ call }
	CheckCmd    struct{ call }
	TakeUpToCmd struct{ call }
	ReserveCmd  struct{ call }
	WaitCmd     struct {
		call `embed:"" set:"timeout=30s" set:"for=until the tokens are there"`
	}
	ChargeCmd struct{ call }
	RefundCmd struct{ call }
	ResetCmd  struct{ onKey }
)

// onKey are the arguments that name a bucket.
type onKey struct {
	target `embed:""`
	Name   string  `arg:"" name:"limit" help:"Name of the limit."`
	Key    *string `arg:"" optional:"" help:"Key of the bucket. Default: the limit's shared bucket."`
}

// call are the arguments of a verb with a cost.
type call struct {
	onKey `embed:""`
	Cost  int64 `default:"1" help:"Tokens. Default 1."`
}

func (TakeCmd) Help() string     { return "Example: dipwell take login user:7 --cost 3" }
func (CheckCmd) Help() string    { return "Example: dipwell check login user:7 && echo there is one" }
func (TakeUpToCmd) Help() string { return "Example: dipwell take-up-to mails batch --cost 100 --json" }
func (ReserveCmd) Help() string  { return "Example: dipwell reserve jobs nightly --json" }
func (WaitCmd) Help() string     { return "Example: dipwell wait mails batch --timeout 5m && send-mails" }
func (ChargeCmd) Help() string   { return "Example: dipwell charge tokens user:7 --cost 1800" }
func (RefundCmd) Help() string   { return "Example: dipwell refund login user:7 --cost 1" }
func (ResetCmd) Help() string    { return "Example: dipwell reset login user:7" }

func (c *TakeCmd) Run(e *env) error     { return c.run(e, store.VerbTake) }
func (c *CheckCmd) Run(e *env) error    { return c.run(e, store.VerbCheck) }
func (c *TakeUpToCmd) Run(e *env) error { return c.run(e, store.VerbTakeUpTo) }
func (c *ReserveCmd) Run(e *env) error  { return c.run(e, store.VerbReserve) }
func (c *ChargeCmd) Run(e *env) error   { return c.run(e, store.VerbCharge) }
func (c *RefundCmd) Run(e *env) error   { return c.run(e, store.VerbRefund) }
func (c *ResetCmd) Run(e *env) error    { return c.decide(e, "/v1/reset", c.body(nil)) }

func (c *WaitCmd) Run(e *env) error {
	body := c.body(&c.Cost)
	body.Timeout = period.Format(c.Timeout)
	c.Timeout += answerTime
	return c.decide(e, "/v1/wait", body)
}

// answerTime is how long after its end the answer of a wait may come.
const answerTime = 10 * time.Second

// callBody is the body of a call.
type callBody struct {
	Limit   string  `json:"limit"`
	Key     *string `json:"key,omitempty"`
	Cost    *int64  `json:"cost,omitempty"`
	Timeout string  `json:"timeout,omitempty"`
}

func (c *onKey) body(cost *int64) *callBody {
	return &callBody{Limit: c.Name, Key: c.Key, Cost: cost}
}

func (c *call) run(e *env, verb store.Verb) error {
	return c.decide(e, "/v1/"+verb.String(), c.body(&c.Cost))
}

// decide sends a call and prints its decision.
func (t *target) decide(e *env, path string, body any) error {
	a, err := t.ask(e, path, body)
	if err != nil {
		return err
	}
	if err = t.print(e, &a); err == nil && !a.Allowed {
		err = errRefused
	}
	return err
}

func (t *target) print(e *env, a *answer) (err error) {
	if t.JSON {
		return json.NewEncoder(e.stdout).Encode(a)
	}
	_, err = fmt.Fprintln(e.stdout, a.String())
	return err
}

// String formats an answer for people.
func (a *answer) String() string {
	s := "allowed"
	if !a.Allowed {
		s = "refused"
	}
	s += ": " + a.Limit
	if a.Key != nil {
		s += " " + *a.Key
	}
	s += fmt.Sprintf(": %d of %d remaining", a.Remaining, a.Capacity)
	if a.Granted != a.Cost && a.Granted > 0 {
		s += fmt.Sprintf(", %d granted", a.Granted)
	}
	switch {
	case a.Never:
		s += ", the cost is more than the limit could ever hold"
	case a.RetryAfter != nil:
		s += fmt.Sprintf(", retry after %v", micros(*a.RetryAfter))
	case a.Delay > 0:
		s += fmt.Sprintf(", due in %v", micros(a.Delay))
	}
	if a.Reservation != "" {
		s += ", reservation " + a.Reservation
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

// fullIn formats when a bucket will be full.
func fullIn(us int64) string {
	if us == 0 {
		return ", full"
	}
	return fmt.Sprintf(", full in %v", micros(us))
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
