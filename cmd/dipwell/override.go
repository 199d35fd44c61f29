package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/server"
)

type OverrideCmd struct {
	Set  OverrideSetCmd  `cmd:"" help:"Set an override of a key, in place of the one of its kind (admin)."`
	List OverrideListCmd `cmd:"" help:"List the overrides of a limit in pages (admin)."`
	End  OverrideEndCmd  `cmd:"" help:"End an override of a key (admin)."`
}

type OverrideSetCmd struct {
	onKey `embed:""`
	Plan  *string `json:"plan,omitempty" help:"A plan of the limit."`
	Rate  *string `json:"-" placeholder:"RATE[/PER]" help:"Or numbers: a rate such as 600/1m."`
	Burst *int64  `json:"burst,omitempty" help:"And a burst."`
	Start *string `json:"start,omitempty" placeholder:"START" help:"When windows begin, also beside a plan: a billing day such as '17 00:00 Europe/Rome'."`
	For   *length `json:"for,omitempty" placeholder:"1h" help:"How long it holds, over one that stands. Default: it stands until it is ended."`
	Until *string `json:"until,omitempty" placeholder:"TIME" help:"Or when it ends, such as 2030-01-31T18:00:00Z."`
	Note  string  `json:"note,omitempty" help:"Why, at most 1024 bytes."`
}

func (c *OverrideSetCmd) Run(e *env) error {
	body := struct {
		*OverrideSetCmd
		Limit string  `json:"limit,omitempty"` // the limit is in the path of the request
		Rate  *int64  `json:"rate,omitempty"`
		Per   *string `json:"per,omitempty"`
	}{OverrideSetCmd: c}
	if c.Rate != nil {
		rate, per, found := strings.Cut(*c.Rate, "/")
		n, err := strconv.ParseInt(rate, 10, 64)
		if err != nil {
			return fmt.Errorf("rate: %q is not a whole number", rate)
		}
		if body.Rate = &n; found {
			body.Per = &per
		}
	}
	sent, err := json.Marshal(&body)
	if err != nil {
		return err
	}
	b, err := c.call(e, http.MethodPut, limitPath(c.Name, "/overrides"), sent)
	if err != nil {
		return err
	}
	o := struct {
		server.Override
		Asked string `json:"asked"` // URL of the server or of the store
	}{Asked: c.asked()}
	if err = json.Unmarshal(b, &o); err != nil || o.Limit == "" {
		return errors.New("the server's answer is not an override")
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(&o)
	}
	_, err = fmt.Fprintf(e.stdout, "%s; asked %s\n", overrideText(&o.Override), o.Asked)
	return err
}

type overrideKind struct {
	Kind *string `enum:"standing,temporary,automatic" help:"standing, which has no end, temporary, or automatic: a block that a refusal began."`
}

func overrideText(o *server.Override) string {
	s := o.Limit
	if o.Key != "" {
		s += " " + plain(string(o.Key))
	}
	s += ": " + numbersOf(o)
	if o.Replaced != nil {
		s += "; replaced: " + numbersOf(o.Replaced)
	}
	if o.Under != nil {
		s += "; at its end: " + numbersOf(o.Under)
	}
	return s
}

func numbersOf(o *server.Override) string {
	if o.Note != "" {
		return plain(o.Words("/")) + " (" + plain(o.Note) + ")"
	}
	return plain(o.Words("/"))
}

type OverrideListCmd struct {
	paged
	overrideKind
}

func (c *OverrideListCmd) Run(e *env) error {
	path := limitPath(c.Name, "/overrides", "n", c.N, "prefix", c.Prefix, "after", c.After, "kind", c.Kind)
	_, err := rows(&c.target, e, path, "overrides", "--after", func(o *server.Override) { fmt.Fprintln(e.stdout, overrideText(o)) })
	return err
}

type OverrideEndCmd struct {
	onKey
	noted
	overrideKind
}

func (c *OverrideEndCmd) Run(e *env) error {
	path := limitPath(c.Name, "/overrides", "key", c.Key, "note", c.Note, "kind", c.Kind)
	if _, err := c.call(e, http.MethodDelete, path, nil); err != nil {
		return err
	}
	if c.JSON {
		_, err := fmt.Fprintf(e.stdout, "{\"ended\":true,\"asked\":%q}\n", c.asked())
		return err
	}
	_, err := fmt.Fprintf(e.stdout, "ended; asked %s\n", c.asked())
	return err
}
