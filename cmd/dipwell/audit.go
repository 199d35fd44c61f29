package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/server"
)

// AuditCmd lists what people have changed.
type AuditCmd struct {
	target `embed:""`
	Name   string  `arg:"" optional:"" name:"limit" help:"Only changes of this limit."`
	Key    *string `arg:"" optional:"" help:"Only changes of this key of the limit; an empty one is that of a shared limit."`
	Before string  `placeholder:"ID" help:"Only what is older than this entry."`
	N      int     `short:"n" default:"100" help:"Number of entries, 1 to 1000. Default 100."`
	NDJSON bool    `name:"ndjson" help:"Print all entries as JSON, one a line."`
}

func (AuditCmd) Help() string {
	return "Examples:\n\n  dipwell audit api cust-7\n  dipwell audit --ndjson > audit.ndjson\n\nA store keeps the last 10,000 changes, for at most 400 days."
}

func (c *AuditCmd) Run(e *env) error {
	q := url.Values{}
	switch {
	case c.JSON && c.NDJSON:
		return errors.New("ndjson, json: give only one of them")
	case c.Name == "" && c.Key != nil:
		return errors.New("limit: is empty")
	case c.NDJSON:
		c.N = 1000
	}
	q.Set("n", strconv.Itoa(c.N))
	if c.Before != "" {
		q.Set("before", c.Before)
	}
	if c.Name != "" {
		q.Set("limit", c.Name)
	}
	if c.Key != nil {
		q.Set("key", *c.Key)
	}
	if c.NDJSON {
		return c.export(e, q)
	}
	var page struct {
		Entries []server.AuditEntry
		Next    *string
	}
	if printed, err := c.list(e, "/v1/audit?"+q.Encode(), &page, "page of the audit"); printed || err != nil {
		return err
	}
	for _, x := range page.Entries {
		line := []string{x.At.Format(time.RFC3339Nano), plain(x.Who), x.Action, x.Limit}
		if x.Role != "" && x.Role != x.Who {
			line[1] += " (" + plain(x.Role) + ")"
		}
		if x.Key != nil {
			line = append(line, plain(string(*x.Key)))
		}
		if x.What != "" {
			line = append(line, plain(x.What))
		}
		if x.Note != "" {
			line = append(line, "("+plain(x.Note)+")")
		}
		fmt.Fprintln(e.stdout, strings.Join(line, " "))
	}
	return printNext(e, "--before", page.Next)
}

// export prints all entries of a query as lines of JSON.
func (c *AuditCmd) export(e *env, q url.Values) error {
	for more := true; more; {
		var page struct {
			Entries []json.RawMessage
			Next    *string
		}
		if _, err := c.list(e, "/v1/audit?"+q.Encode(), &page, "page of the audit"); err != nil {
			return err
		}
		for _, x := range page.Entries {
			fmt.Fprintln(e.stdout, string(x))
		}
		if more = page.Next != nil; more {
			q.Set("before", *page.Next)
		}
	}
	return nil
}
