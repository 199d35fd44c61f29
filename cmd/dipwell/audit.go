package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/server"
)

type AuditCmd struct {
	target `embed:""`
	Name   string  `arg:"" optional:"" name:"limit" help:"Only changes of this limit."`
	Key    *string `arg:"" optional:"" help:"Only changes of this key of the limit; an empty one is that of a shared limit."`
	Before string  `placeholder:"ID" help:"Only what is older than this entry."`
	N      int     `short:"n" default:"100" help:"Number of entries, 1 to 1000. Default 100."`
	NDJSON bool    `name:"ndjson" help:"Print all entries as JSON, one a line."`
}

func (c *AuditCmd) Run(e *env) error {
	switch {
	case c.JSON && c.NDJSON:
		return errors.New("ndjson, json: give only one of them")
	case c.Name == "" && c.Key != nil:
		return errors.New("limit: is empty")
	case c.NDJSON:
		c.N = 1000
		return c.export(e)
	}
	var page struct {
		Entries []server.AuditEntry
		Next    *string
	}
	if printed, err := c.page(e, &page); printed || err != nil {
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

func (c *AuditCmd) page(e *env, to any) (printed bool, err error) {
	return c.list(e, "/v1/audit"+query("n", c.N, "before", c.Before, "limit", c.Name, "key", c.Key), to, "page of the audit")
}

func (c *AuditCmd) export(e *env) error {
	for more := true; more; {
		var page struct {
			Entries []json.RawMessage
			Next    *string
		}
		if _, err := c.page(e, &page); err != nil {
			return err
		}
		for _, x := range page.Entries {
			fmt.Fprintln(e.stdout, string(x))
		}
		if more = page.Next != nil; more {
			c.Before = *page.Next
		}
	}
	return nil
}
