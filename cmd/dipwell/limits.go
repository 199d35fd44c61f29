package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/dipwell/dipwell/internal/server"
)

type LimitsCmd struct {
	target `embed:""`
}

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
		if err = printLimit(e, raw); err != nil {
			return err
		}
	}
	return nil
}

var errNoLimits = errors.New("the server's answer is not a list of limits")

// limitsPage is the size of a page, and maxLimitsPages bounds what a server may send.
const (
	limitsPage     = 1000
	maxLimitsPages = 100
)

func (c *LimitsCmd) all(e *env) (list []json.RawMessage, err error) {
	list = []json.RawMessage{}
	after := ""
	for range maxLimitsPages {
		b, err := c.call(e, http.MethodGet, "/v1/limits"+query("after", &after, "n", limitsPage), nil)
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
	return nil, fmt.Errorf("the server has more than %d pages of limits", maxLimitsPages)
}

// printLimit prints what the server sent if a setting comes from a newer server.
func printLimit(e *env, raw json.RawMessage) error {
	var m map[string]any
	in := json.NewDecoder(bytes.NewReader(raw))
	in.UseNumber() // keep numbers as text
	if err := in.Decode(&m); err != nil {
		return errNoLimits
	}
	l, err := server.ParseLimit(raw)
	if err != nil {
		fmt.Fprintf(e.stdout, "%v: %v  (%v)\n", m["name"], m, m["owner"])
		return nil //nolint:nilerr // everything was printed
	}
	rate := ""
	if m["present_rate"] != nil {
		rate = fmt.Sprintf("; %v per period at present in that process: %v", m["present_rate"], m["rate_reason"])
	}
	fmt.Fprintf(e.stdout, "%s  (%v%s)\n", l, m["owner"], rate)
	return nil
}
