package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strings"
)

// LimitsCmd lists the limits of a server.
type LimitsCmd struct {
	target `embed:""`
}

func (LimitsCmd) Help() string { return "Example: dipwell limits --json" }

func (c *LimitsCmd) Run(e *env) error {
	list, err := c.all(e)
	if err != nil {
		return err
	}
	c.printAsked(e)
	if c.JSON {
		out := json.NewEncoder(e.stdout)
		out.SetEscapeHTML(false)
		return out.Encode(map[string]any{"limits": list})
	}
	for _, raw := range list {
		var l map[string]any
		in := json.NewDecoder(bytes.NewReader(raw))
		in.UseNumber() // keep numbers as text
		if err = in.Decode(&l); err != nil {
			return errNoLimits
		}
		printLimit(e, l)
	}
	return nil
}

var errNoLimits = errors.New("the server's answer is no list of limits")

// limitsPage is the size of a page.
const limitsPage = "1000"

// all reads all pages.
func (c *LimitsCmd) all(e *env) (list []json.RawMessage, err error) {
	list = []json.RawMessage{}
	for after := ""; ; {
		b, err := c.call(e, http.MethodGet, "/v1/limits?"+url.Values{"after": {after}, "n": {limitsPage}}.Encode(), nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Limits []json.RawMessage
			Next   *string
		}
		if err = json.Unmarshal(b, &page); err != nil {
			return nil, errNoLimits
		}
		list = append(list, page.Limits...)
		if page.Next == nil || *page.Next <= after {
			return list, nil
		}
		after = *page.Next
	}
}

func printLimit(e *env, l map[string]any) {
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
