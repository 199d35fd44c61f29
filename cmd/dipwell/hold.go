package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/server"
)

// A length is a length of time in the body of a call.
type length time.Duration

func (l length) MarshalJSON() ([]byte, error) { return json.Marshal(period.Format(time.Duration(l))) }

type HoldCmd struct {
	floorCall `embed:""`
	TTL       length  `json:"ttl" name:"ttl" required:"" placeholder:"DURATION" help:"Time until the hold expires and everything is given back, such as 30s."`
	ID        *string `json:"id,omitempty" name:"id" help:"Id of the hold, which makes the call safe to repeat. Default: a random one."`
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
	target `json:"-" embed:""`
	Hold   string `json:"hold" arg:"" help:"Id of the hold, as hold printed it."`
	TTL    length `json:"ttl" name:"ttl" required:"" placeholder:"DURATION" help:"Time from now until the hold expires, such as 30s."`
}

type HoldsCmd struct{ onKey }

func (c *HoldsCmd) Run(e *env) error {
	_, err := rows(&c.target, e, limitPath(c.Name, "/holds", "key", c.Key), "holds", "", func(h *server.LiveHold) { printHold(e, "", h) })
	return err
}

func printHold(e *env, before string, h *server.LiveHold) {
	fmt.Fprintf(e.stdout, "%s%s: %d tokens until %s\n", before, h.Hold, h.Tokens, clock(h.Expires))
}
