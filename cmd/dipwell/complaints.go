package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/grpclog"
)

// againAfter is when a complaint that has not changed is repeated.
const againAfter = time.Minute

// complaints is the log of a service. An error that repeats, such as that of a
// store that is away, is logged once a minute.
type complaints struct {
	to   io.Writer
	json *slog.Logger // nil: plain lines
	mu   sync.Mutex
	last string
	at   time.Time
}

// use sets the format of the log before anything is logged: in JSON each line
// is an object, also those of net/http, of gRPC and of the standard log package.
func (c *complaints) use(format string) {
	if format != "json" || c.json != nil {
		return
	}
	c.json = jsonLog(c.to)
	slog.SetDefault(c.json)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(c.json.Handler(), slog.LevelError).Writer()))
}

// jsonLog writes a duration in µs, with the unit in its name.
func jsonLog(to io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			return slog.Int64(a.Key+"_us", a.Value.Duration().Microseconds())
		}
		return a
	}}))
}

// logger is for what programs read.
func (c *complaints) logger() *slog.Logger {
	if c.json != nil {
		return c.json
	}
	return slog.New(slog.NewTextHandler(c.to, nil))
}

func (c *complaints) error(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text := err.Error(); text != c.last || time.Since(c.at) > againAfter {
		c.last, c.at = text, time.Now()
		c.line(slog.LevelError, text)
	}
}

func (c *complaints) say(format string, args ...any) { c.log(slog.LevelInfo, format, args...) }

func (c *complaints) warn(format string, args ...any) { c.log(slog.LevelWarn, format, args...) }

func (c *complaints) log(level slog.Level, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.line(level, fmt.Sprintf(format, args...))
}

// kept logs that something could not be read again, and that what was read
// before stays in force.
func (c *complaints) kept(what string, err error) {
	if c.json != nil {
		c.json.Error(what, "error", err.Error())
		return
	}
	c.say("%v\ndipwell: %s", err, what)
}

// event logs text, or in JSON msg with its attributes.
func (c *complaints) event(text, msg string, attrs ...any) {
	if c.json != nil {
		c.json.Info(msg, attrs...)
		return
	}
	c.say("%s", text)
}

func (c *complaints) line(level slog.Level, text string) {
	if c.json != nil {
		c.json.Log(context.Background(), level, text)
		return
	}
	fmt.Fprintf(c.to, "dipwell: %s\n", text)
}

// errLogged ends a command with status 2: its error is in the log.
var errLogged = errors.New("logged")

// ended logs, in JSON, the error that ends a command. In text that is main's job.
func (c *complaints) ended(err error) error {
	if err == nil || c.json == nil {
		return err
	}
	c.json.Error(err.Error())
	return errLogged
}
