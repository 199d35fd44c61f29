// Command llm is a gateway in front of a language model that streams. It limits
// requests and tokens a minute, of each API key and of its organisation.
//
//	go run ./examples/llm
//	curl -N localhost:8080 -H 'X-Org: acme' -H 'X-Key: alice' -d '{"prompt":"Tell me a story.","max_tokens":50}'
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
)

// limits are those of a key, 'org/key', and of its organisation. A key may use a
// half of what its organisation may.
var limits = []dipwell.Limit{
	{Name: "org-requests", Rate: 100, Period: time.Minute, Parts: 1},
	{Name: "org-tokens", Rate: 60_000, Period: time.Minute, Parts: 1},
	{Name: "requests", Parent: "org-requests", Rate: 50, Period: time.Minute},
	{Name: "tokens", Parent: "org-tokens", Rate: 30_000, Period: time.Minute},
}

// call is the body of a request.
type call struct {
	Prompt    string `json:"prompt"`
	MaxTokens int64  `json:"max_tokens"`
}

// estimate is the most that a call can use. A token is about four bytes of text.
func (c *call) estimate() int64 { return promptTokens(c.Prompt) + c.MaxTokens }

func promptTokens(prompt string) int64 { return int64(len(prompt)+3) / 4 }

// gateway streams the answers of a model to those who are within their limits.
type gateway struct {
	limiter *dipwell.Limiter
	model   string // URL
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c call
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&c); err != nil || c.MaxTokens < 1 {
		httplimit.Problem(w, http.StatusBadRequest, "body", "must be a prompt and max_tokens")
		return
	}
	org, key := r.Header.Get("X-Org"), r.Header.Get("X-Key") // that you have authenticated
	name := dipwell.Key(org, key)
	// The hold is extended while the answer streams. If this program dies, its
	// tokens are back within 30 seconds.
	d, err := g.limiter.Holding(r.Context(), 30*time.Second, []dipwell.Take{
		{Limit: "requests", Key: name, Cost: 1},
		{Limit: "tokens", Key: name, Cost: c.estimate()},
	}, func(ctx context.Context) ([]int64, error) {
		used, err := g.stream(ctx, w, &c)
		return []int64{1, used}, err // what was used is paid, whatever happened
	})
	switch {
	case err != nil && !d.Allowed:
		httplimit.Fail(w, err)
	case !d.Allowed:
		httplimit.IETF.Set(w.Header(), &d)
		httplimit.Refuse(w, http.StatusTooManyRequests)
	}
}

// stream asks the model, passes its answer on, and returns how many tokens it used.
func (g *gateway) stream(ctx context.Context, w http.ResponseWriter, c *call) (used int64, err error) {
	body, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.model, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		http.Error(w, "the model does not answer", http.StatusBadGateway)
		return 0, err
	}
	defer res.Body.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	used = promptTokens(c.Prompt)
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		var event struct {
			Token string `json:"token"`
			Used  int64  `json:"used"` // in the last event
		}
		if err = json.Unmarshal(lines.Bytes(), &event); err != nil {
			return used, err
		}
		if event.Used > 0 {
			used = event.Used
		} else {
			used++
		}
		if _, err = fmt.Fprintf(w, "data: %s\n\n", lines.Bytes()); err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil { // the client has gone
			return used, err
		}
	}
	return used, lines.Err()
}
