package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// againAfter is when a complaint that has not changed is repeated.
const againAfter = time.Minute

// complaints tells of errors that come again and again, such as those of a
// store that is away, once and then once a minute.
type complaints struct {
	to   io.Writer
	json *slog.Logger // nil: plain lines
	mu   sync.Mutex
	last string
	at   time.Time
}

func (c *complaints) error(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := err.Error(); text != c.last || time.Since(c.at) > againAfter {
		c.last, c.at = text, time.Now()
		c.line(slog.LevelError, text)
	}
}

func (c *complaints) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.line(slog.LevelInfo, fmt.Sprintf(format, args...))
}

func (c *complaints) line(level slog.Level, text string) {
	if c.json != nil {
		c.json.Log(context.Background(), level, text)
		return
	}
	fmt.Fprintf(c.to, "dipwell: %s\n", text)
}
