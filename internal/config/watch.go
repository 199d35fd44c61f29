package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// writeDelay is the delay between a change and reading the file, since editors write
// in several steps.
const writeDelay = 100 * time.Millisecond

// Watch calls changed after each change of the content at path, until ctx ends. It
// watches directories, because editors and orchestrators replace files and symbolic
// links rather than write to them.
// changed is not called before Watch has returned.
func Watch(ctx context.Context, path string, changed func()) error {
	return WatchFiles(ctx, []string{path}, changed)
}

// WatchFiles is Watch for several files.
func WatchFiles(ctx context.Context, paths []string, changed func()) error {
	each := func(f func(path string) []string) (all []string) {
		for _, path := range paths {
			all = append(all, f(path)...)
		}
		return all
	}
	dirs := func() []string { return each(dirsOf) }
	now := func() string {
		return strings.Join(each(func(path string) []string { return []string{content(path)} }), "\x00")
	}
	return WatchDirs(ctx, paths, dirs, now, changed)
}

// WatchDirs is WatchFiles for several directories. dirs returns the directories to watch
// now, of which those of the first call must exist. changed is called when content returns
// another value.
func WatchDirs(ctx context.Context, paths []string, dirs func() []string, content func() string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", paths[0], err)
	}
	if err = addAll(w, dirs()); err != nil {
		_ = w.Close()
		return fmt.Errorf("watch %s: %w", strings.Join(paths, ", "), err)
	}
	_ = addAll(w, linksOf(paths...)) // not every directory above may be readable
	last := content()
	go func() {
		defer func() { _ = w.Close() }()
		var due <-chan time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-w.Errors: // events may have been lost: read the file
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
				_ = addAll(w, append(dirs(), linksOf(paths...)...)) // links may have new targets; a missing directory is added when it appears
				if now := content(); now != last {
					last = now
					changed()
				}
			}
		}
	}()
	return nil
}

// soon returns due, or a new timer if it is nil, so that constant changes do not
// postpone the reading.
func soon(due <-chan time.Time) <-chan time.Time {
	if due != nil {
		return due
	}
	return time.After(writeDelay)
}

// addAll adds directories to the watcher.
func addAll(w *fsnotify.Watcher, dirs []string) (err error) {
	for _, d := range dirs {
		if e := w.Add(d); err == nil {
			err = e
		}
	}
	return err
}

// dirsOf returns the directories of path and of the file it links to.
func dirsOf(path string) []string {
	dirs := []string{filepath.Dir(path)}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs
}

// maxLinks is how many links are followed from a path, as by Linux. More are a cycle.
const maxLinks = 40

// linksOf returns the directories of the symbolic links on the way from the root to paths:
// if one of them is replaced, another file is at the path.
func linksOf(paths ...string) (dirs []string) {
	for _, path := range paths {
		dirs = append(dirs, linksOn(path)...)
	}
	return dirs
}

func linksOn(path string) (dirs []string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	volume := filepath.VolumeName(path)
	at, rest := volume+string(filepath.Separator), strings.Split(path[len(volume):], string(filepath.Separator))
	for len(rest) > 0 && len(dirs) < maxLinks {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(next)
		switch {
		case err != nil: // no link
			at = next
			continue
		case filepath.IsAbs(target):
			at = filepath.VolumeName(target) + string(filepath.Separator)
			target = target[len(filepath.VolumeName(target)):]
		}
		dirs = append(dirs, filepath.Dir(next))
		rest = append(strings.Split(target, string(filepath.Separator)), rest...)
	}
	return dirs
}

// content returns the content of a file, or the error of reading it.
func content(path string) string {
	b, err := LoadYAML(path)
	if err != nil {
		return "\x00" + err.Error()
	}
	return string(b)
}
