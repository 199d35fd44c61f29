package config

import (
	"context"
	"strings"
	"time"
)

const (
	watchEvery = 100 * time.Millisecond
	watchShare = 100                    // of the time at most: large files are read less often
	writeDelay = 100 * time.Millisecond // between a change and its use, since files are written in several steps
	mostSteps  = 50                     // a file that goes on changing is used as it is after so many writeDelays
)

// Watch calls changed after each change of what content returns, until ctx ends. It reads the
// content again and again: then it does not matter whether a file is written, replaced or
// reached by another link, and on which file system it is.
func Watch(ctx context.Context, content func() string, changed func()) {
	last := content()
	go func() {
		timer := time.NewTimer(watchEvery)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			began, wait := time.Now(), watchEvery
			if now := content(); now != last {
				last = settled(content, now)
				changed()
			} else {
				wait = max(wait, watchShare*time.Since(began))
			}
			timer.Reset(wait)
		}
	}()
}

// settled returns the content once it has stayed the same for writeDelay.
func settled(content func() string, now string) string {
	for range mostSteps {
		time.Sleep(writeDelay)
		was := now
		if now = content(); now == was {
			break
		}
	}
	return now
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
