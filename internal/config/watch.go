package config

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/dipwell/dipwell/internal/yamlfile"
)

// settle is how long a file must lie still before it is read: editors and
// copies write in several steps.
const settle = 100 * time.Millisecond

// Watch calls changed after each change of a file's content or of what its
// path leads to, until ctx ends. It watches directories, because editors and
// orchestrators replace files and symbolic links rather than write to them.
// changed is not called before Watch has returned.
func Watch(ctx context.Context, path string, changed func()) error {
	return WatchDirs(ctx, path, func() []string { return dirsOf(path) }, func() string { return content(path) }, changed)
}

// WatchDirs is Watch for what path leads to by way of several directories:
// dirs names those that count at present, the first of which must be there, and
// content is what a change is seen by.
func WatchDirs(ctx context.Context, path string, dirs func() []string, content func() string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	if err = addAll(w, dirs()); err != nil {
		_ = w.Close()
		return fmt.Errorf("watch %s: %w", path, err)
	}
	last := content()
	go func() {
		defer func() { _ = w.Close() }()
		var due <-chan time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-w.Errors: // events were lost: look at the file
				if !ok {
					return
				}
				due = soon(due)
			case _, ok := <-w.Events:
				if !ok {
					return
				}
				due = soon(due)
			case <-due:
				due = nil
				_ = addAll(w, dirs()) // a link may lead elsewhere now; what is gone will be back with an event
				if now := content(); now != last {
					last = now
					changed()
				}
			}
		}
	}()
	return nil
}

// soon keeps the earlier time: a directory that never rests must not put it off.
func soon(due <-chan time.Time) <-chan time.Time {
	if due != nil {
		return due
	}
	return time.After(settle)
}

// addAll watches directories. Those that are watched already stay so.
func addAll(w *fsnotify.Watcher, dirs []string) (err error) {
	for _, d := range dirs {
		if e := w.Add(d); err == nil {
			err = e
		}
	}
	return err
}

// dirsOf are the directories of the path and of every link on its way.
func dirsOf(path string) []string {
	dirs := []string{filepath.Dir(path)}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs
}

// content is a file's bytes; a file that cannot be read differs from any other.
func content(path string) string {
	b, err := yamlfile.Load(path)
	if err != nil {
		return "\x00" + err.Error()
	}
	return string(b)
}
