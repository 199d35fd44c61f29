package filestore

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/texts"
)

// ParseURL parses file:PATH or file:PATH?durability=each|100ms and returns the path
// and Config.Every, 100 ms without a durability. The path has no escapes;
// file:///PATH is the same as file:/PATH.
func ParseURL(text string) (path string, every time.Duration, err error) {
	rest, ok := strings.CutPrefix(text, "file:")
	if !ok {
		return "", 0, fmt.Errorf("store: %q is not a file: URL", text)
	}
	if tail, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(tail, "/") {
			return "", 0, fmt.Errorf("store: %q names a host; a file has none: file:PATH", text)
		}
		rest = tail
	}
	path, query, _ := strings.Cut(rest, "?")
	if path == "" {
		return "", 0, fmt.Errorf("store: %q names no file: file:PATH", text)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", 0, fmt.Errorf("store: %q: %w", text, err)
	}
	every = defaultEvery
	for name, v := range values {
		if name != "durability" {
			return "", 0, fmt.Errorf("store: %q: file: has no parameter %s%s", text, name, texts.Nearest(name, []string{"durability"}))
		}
		if len(v) != 1 {
			return "", 0, fmt.Errorf("store: %q: durability is given twice", text)
		}
		if every, err = parseEvery(v[0]); err != nil {
			return "", 0, fmt.Errorf("store: durability: %w", err)
		}
	}
	return path, every, nil
}

func parseEvery(s string) (time.Duration, error) {
	if s == "each" {
		return Each, nil
	}
	every, err := period.Parse(s)
	if err != nil || every < minEvery || every > maxEvery {
		return 0, fmt.Errorf("%q is neither each nor a time from %v to %v, such as 100ms", s, minEvery, maxEvery)
	}
	return every, nil
}
