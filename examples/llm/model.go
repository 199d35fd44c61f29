package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// model is a server that answers as a language model does: a token now and then, and
// in the end what it used. It uses half of what it may.
type model struct{ pause time.Duration }

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c call
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	n := (c.MaxTokens + 1) / 2
	for i := range n {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(m.pause):
		}
		fmt.Fprintf(w, "{\"token\":\"word%d \"}\n", i)
		_ = http.NewResponseController(w).Flush()
	}
	fmt.Fprintf(w, "{\"used\":%d}\n", promptTokens(c.Prompt)+n)
}
