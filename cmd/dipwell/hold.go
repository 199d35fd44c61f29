package main

import (
	"fmt"
	"time"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/server"
)

type HoldCmd struct {
	floorCall `embed:""`
	TTL       time.Duration `json:"-" name:"ttl" required:"" help:"Time until the hold expires and everything is given back, such as 30s."`
	ID        *string       `json:"id,omitempty" name:"id" help:"Id of the hold, which makes the call safe to repeat. Default: a random one."`
}

func (c *HoldCmd) Run(e *env) error {
	return c.decide(e, "/v1/hold", struct {
		*HoldCmd
		TTL string `json:"ttl"`
	}{c, period.Format(c.TTL)})
}

type SettleCmd struct {
	target `embed:""`
	Hold   string  `arg:"" help:"Id of the hold, as hold printed it."`
	Cost   []int64 `help:"Actual cost in tokens; one for each limit that was held. Default: what was held."`
	Note   string  `help:"Why, at most 1024 bytes: the audit then has it."`
}

func (c *SettleCmd) Run(e *env) error {
	body := struct {
		Hold  string  `json:"hold"`
		Cost  *int64  `json:"cost,omitempty"`
		Costs []int64 `json:"costs,omitempty"`
		Note  string  `json:"note,omitempty"`
	}{Hold: c.Hold, Costs: c.Cost, Note: c.Note}
	if len(c.Cost) == 1 { // so that errors name the flag
		body.Cost, body.Costs = &c.Cost[0], nil
	}
	return c.decide(e, "/v1/settle", body)
}

type ExtendCmd struct {
	target `embed:""`
	Hold   string        `arg:"" help:"Id of the hold, as hold printed it."`
	TTL    time.Duration `name:"ttl" required:"" help:"Time from now until the hold expires, such as 30s."`
}

func (c *ExtendCmd) Run(e *env) error {
	return c.decide(e, "/v1/extend", map[string]string{"hold": c.Hold, "ttl": period.Format(c.TTL)})
}

type HoldsCmd struct{ onKey }

func (c *HoldsCmd) Run(e *env) error {
	var list struct{ Holds []server.LiveHold }
	if printed, err := c.list(e, limitPath(c.Name, "/holds", "key", c.Key), &list, "list of holds"); printed || err != nil {
		return err
	}
	printHolds(e, "", list.Holds)
	return nil
}

func printHolds(e *env, before string, holds []server.LiveHold) {
	for _, h := range holds {
		fmt.Fprintf(e.stdout, "%s%s: %d tokens until %s\n", before, h.Hold, h.Tokens, clock(h.Expires))
	}
}
