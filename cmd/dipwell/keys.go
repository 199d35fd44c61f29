package main

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/dipwell/dipwell/internal/server"
)

type KeysCmd struct{ paged }

type paged struct {
	target `embed:""`
	Name   string  `arg:"" name:"limit" help:"Name of the limit."`
	Prefix string  `help:"Only keys that begin with this."`
	After  *string `help:"Only keys after this one, in byte order. An empty one is that of a shared limit."`
	N      int     `short:"n" default:"100" help:"Number of keys, 1 to 1000. Default 100."`
}

func (c *KeysCmd) Run(e *env) error {
	_, err := rows(&c.target, e, limitPath(c.Name, "/keys", "n", c.N, "prefix", c.Prefix, "after", c.After), "keys", "--after", func(k *server.LiveKey) {
		more := ""
		if k.Plan != "" {
			more = ", plan " + k.Plan
		}
		if k.Override {
			more += ", override"
		}
		if k.ResetAfter != nil {
			more = fullIn(*k.ResetAfter) + more
		}
		fmt.Fprintf(e.stdout, "%-40s %12d remaining%s\n", plain(cmp.Or(string(k.Key), "(shared)")), k.Remaining, more)
	})
	return err
}

type InspectCmd struct {
	target `embed:""`
	Name   string `arg:"" name:"limit" help:"Name of the limit."`
	Key    string `arg:"" optional:"" help:"Key of the bucket. A limit that is shared has none."`
}

func (c *InspectCmd) Run(e *env) error {
	b, err := c.call(e, http.MethodGet, limitPath(c.Name, "/keys", "key", &c.Key), nil)
	if err != nil {
		return err
	}
	a, err := c.decision(b)
	if err != nil {
		return err
	}
	if c.JSON {
		return c.print(e, &a)
	}
	key := ""
	if c.Key != "" {
		key = " " + plain(c.Key)
	}
	fmt.Fprintf(e.stdout, "%s%s%s; asked %s\n", a.Limit, key, a.state(), a.Asked)
	if a.Override != nil {
		fmt.Fprintln(e.stdout, "override: "+overrideText(a.Override))
	}
	for i := range a.Holds {
		printHold(e, "hold: ", &a.Holds[i])
	}
	if u := a.Usage; u != nil {
		fmt.Fprintf(e.stdout, "used in 31 days: %d tokens; %d calls allowed, %d refused\n", u.Tokens, u.Allowed, u.Refused)
	}
	if r := a.Refusals; r != nil {
		for i := range r.Last {
			fmt.Fprintf(e.stdout, "refused by %s: %s\n", r.Process, refusalText(&r.Last[i]))
		}
	}
	return nil
}

// state says what a key's bucket and overrides are, and the plan of its row.
func (a *answer) state() string {
	left := a.remaining() + fullIn(a.ResetAfter)
	switch {
	case a.Mode == "blocked" && a.BlockedUntil != 0:
		return a.by() + ": blocked until " + clock(a.BlockedUntil) + "; then " + left
	case a.Mode == "blocked":
		return a.by() + ": blocked; without that " + left
	case a.Row != nil: // the row is under the plan of the last calls
		row := answer{Plan: a.Row.Plan, Capacity: a.Row.Capacity, Remaining: a.Row.Remaining}
		return row.by() + ": " + row.remaining() + fullIn(a.Row.Reset) + "; a call without a plan: " + left
	}
	return a.by() + ": " + left
}

func refusalText(r *server.PastRefusal) string {
	text := fmt.Sprintf("%s cost %d", clock(r.At), r.Cost)
	switch {
	case r.Never:
		text += ", never allowed"
	case r.Retry != nil:
		text += fmt.Sprintf(", retry after %v", micros(*r.Retry))
	case r.Source == "fallback-closed":
		text += ", because the store did not answer"
	}
	if r.Shadow {
		text += ", let pass by shadow mode"
	}
	if r.More > 0 {
		text += fmt.Sprintf(", and %d more within a second", r.More)
	}
	return text
}
