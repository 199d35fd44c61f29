package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// againAfter is when a complaint that has not changed is repeated.
const againAfter = time.Minute

// complaints tells of errors that come again and again, such as those of a
// store that is away, once and then once a minute.
type complaints struct {
	to   io.Writer
	mu   sync.Mutex
	last string
	at   time.Time
}

func (c *complaints) error(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := err.Error(); text != c.last || time.Since(c.at) > againAfter {
		c.last, c.at = text, time.Now()
		fmt.Fprintf(c.to, "dipwell: %s\n", text)
	}
}

func (c *complaints) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.to, "dipwell: "+format+"\n", args...)
}
