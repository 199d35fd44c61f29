package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/grpc/grpclog"
)

const repeatAfter = time.Minute // a repeated error is logged again after this time

// A logger logs an error that repeats, as while a store is down, once in repeatAfter.
type logger struct {
	to   io.Writer
	json *slog.Logger // nil for plain text
	mu   sync.Mutex
	last string
	at   time.Time
}

// setFormat sets the format of the log. setFormat must be called before anything is
// logged. The format also applies to net/http, gRPC and the packages log and slog.
func (l *logger) setFormat(format string) {
	if l.json != nil {
		return
	}
	if format == "json" {
		l.json = jsonLog(l.to)
	}
	slog.SetDefault(l.slog())
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(l.slog().Handler(), slog.LevelError).Writer()))
}

// jsonLog writes log lines as JSON. A duration is in µs, and its name ends in _us.
func jsonLog(to io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			return slog.Int64(a.Key+"_us", a.Value.Duration().Microseconds())
		}
		return a
	}}))
}

func (l *logger) slog() *slog.Logger {
	if l.json != nil {
		return l.json
	}
	return slog.New(slog.NewTextHandler(prefixed{l.to}, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}}))
}

// prefixed writes lines of slog's TextHandler with the words of the message first, after the
// name of the program. An error in such a line may itself have several lines.
type prefixed struct{ to io.Writer }

func (p prefixed) Write(line []byte) (int, error) {
	text := strings.TrimPrefix(strings.TrimSuffix(string(line), "\n"), "msg=")
	if quoted, err := strconv.QuotedPrefix(text); err == nil && text[0] == '"' {
		message, _ := strconv.Unquote(quoted)
		if !strings.ContainsFunc(message, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
			text = message + text[len(quoted):]
		}
	}
	_, err := fmt.Fprintf(p.to, "dipwell: %s\n", strings.ReplaceAll(text, "\n", "\ndipwell: "))
	return len(line), err
}

func (l *logger) error(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text := err.Error(); text != l.last || time.Since(l.at) > repeatAfter {
		l.last, l.at = text, time.Now()
		l.line(slog.LevelError, text)
	}
}

func (l *logger) info(format string, args ...any) {
	l.line(slog.LevelInfo, fmt.Sprintf(format, args...))
}

func (l *logger) warn(format string, args ...any) {
	l.line(slog.LevelWarn, fmt.Sprintf(format, args...))
}

// reloadError logs that a reload failed. what names what stays in use.
func (l *logger) reloadError(what string, err error) {
	if l.json != nil {
		l.json.Error(what, "error", err.Error())
		return
	}
	l.info("%v\n%s", err, what)
}

func (l *logger) line(level slog.Level, text string) {
	l.slog().Log(context.Background(), level, text)
}

// errLogged ends a command with status 2. The error itself has already been logged.
var errLogged = errors.New("logged")
