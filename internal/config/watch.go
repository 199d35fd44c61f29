package config

import (
	"context"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/background"
)

const (
	watchEvery = 100 * time.Millisecond
	watchShare = 100 // at most one part in this many of the time: large files are read less often
	mostSteps  = 50  // a file that keeps changing is used as it is after this many readings
)

// Watch calls changed when content returns another value, until ctx ends. Watch reads
// the content again and again: so it does not matter whether a file is written, replaced or
// reached by another link, or on which file system it is. A change is used once two readings
// are equal, since files are written in several steps.
func Watch(ctx context.Context, content func() string, changed func()) {
	used := content()
	go func() {
		seen, steps := used, 0
		for wait := watchEvery; background.Sleep(ctx, wait) == nil; {
			began := time.Now()
			wait = watchEvery
			switch now := content(); {
			case now != seen && steps < mostSteps:
				seen, steps = now, steps+1
			case now != used:
				used, seen, steps = now, now, 0
				changed()
			default:
				steps = 0
				wait = max(wait, watchShare*time.Since(began))
			}
		}
	}()
}

// Content returns the content of files, or the errors of reading them.
func Content(paths ...string) string {
	var all strings.Builder
	for _, path := range paths {
		b, err := LoadYAML(path)
		if err != nil {
			b = []byte("\x00" + err.Error())
		}
		all.Write(append(b, 0))
	}
	return all.String()
}
