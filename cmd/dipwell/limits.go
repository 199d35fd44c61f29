package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
)

// LimitsCmd lists the limits that a server knows.
type LimitsCmd struct {
	target `embed:""`
}

func (LimitsCmd) Help() string { return "Example: dipwell limits --json" }

func (c *LimitsCmd) Run(e *env) error {
	b, err := c.get(e, "/v1/limits")
	if err != nil {
		return err
	}
	if c.JSON {
		_, err = e.stdout.Write(b)
		return err
	}
	var list struct{ Limits []map[string]any }
	in := json.NewDecoder(bytes.NewReader(b))
	in.UseNumber() // as the server wrote them
	if err = in.Decode(&list); err != nil {
		return errors.New("the server's answer is no list of limits")
	}
	for _, l := range list.Limits {
		var more []string
		for k, v := range l {
			switch k {
			case "name", "rate", "per", "owner", "version", "capacity", "warning":
			default:
				more = append(more, fmt.Sprintf(",%s=%v", k, v))
			}
		}
		sort.Strings(more)
		fmt.Fprintf(e.stdout, "%v=%v/%v%s  (%v)\n", l["name"], l["rate"], l["per"], strings.Join(more, ""), l["owner"])
	}
	return nil
}
