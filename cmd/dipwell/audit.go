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
		return c.export(e)
	}
	_, err := rows(&c.target, e, c.path(), "entries", "--before", func(x *server.AuditEntry) {
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
	})
	return err
}

func (c *AuditCmd) path() string {
	return "/v1/audit" + query("n", c.N, "before", c.Before, "limit", c.Name, "key", c.Key)
}

func (c *AuditCmd) export(e *env) error {
	c.N = 1000
	for {
		next, err := rows(&c.target, e, c.path(), "entries", "", func(x *json.RawMessage) { fmt.Fprintln(e.stdout, string(*x)) })
		if err != nil || next == nil {
			return err
		}
		c.Before = *next
	}
}
