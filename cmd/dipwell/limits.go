package main

import (
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
		printLimit(e, raw)
	}
	return nil
}

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
			return nil, errors.New("the server's answer is not a list of limits")
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
func printLimit(e *env, raw json.RawMessage) {
	var m struct {
		Owner       string
		PresentRate *int64 `json:"present_rate"`
		RateReason  string `json:"rate_reason"`
	}
	l, err := server.ParseLimit(raw)
	if err != nil || json.Unmarshal(raw, &m) != nil {
		fmt.Fprintf(e.stdout, "%s\n", raw)
		return
	}
	rate := ""
	if m.PresentRate != nil {
		rate = fmt.Sprintf("; %d per period at present in that process: %s", *m.PresentRate, m.RateReason)
	}
	fmt.Fprintf(e.stdout, "%s  (%s%s)\n", l, m.Owner, rate)
}
