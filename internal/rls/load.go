package rls

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/yamlfile"
)

// Load reads a file, or all files of a directory and of those below it that
// end in .yaml or .yml. Names that begin with a dot are passed over, and so is
// what orchestrators keep their versions in. Links are followed.
func Load(def Defaults, path string) (*Rules, error) {
	files, _, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(def, files...)
}

// Watch calls changed after each change of what Load would read, until ctx
// ends. Links that are swapped are noticed. changed is not called before Watch
// has returned.
func Watch(ctx context.Context, path string, changed func()) error {
	return config.WatchDirs(ctx, path, func() []string { return dirsOf(path) }, func() string { return content(path) }, changed)
}

// content is a digest of all files; what cannot be read differs from any other.
func content(path string) string {
	files, _, err := read(path)
	if err != nil {
		return "\x00" + err.Error()
	}
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%d %s %d ", len(f.Name), f.Name, len(f.YAML))
		_, _ = h.Write(f.YAML)
	}
	return string(h.Sum(nil))
}

// dirsOf are the directories whose changes may change what is read: the path's
// own, so that it may be replaced, and where links and files lie.
func dirsOf(path string) []string {
	dirs := []string{filepath.Dir(path)}
	_, seen, _ := read(path)
	return append(dirs, seen...)
}

// read returns the files in the order of their names, and the directories that
// were looked into.
func read(path string) (files []File, dirs []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("rls config: %w", err)
	}
	r := reader{}
	if info.IsDir() {
		r.dir(path, 0)
	} else {
		r.file(path)
	}
	if r.err == nil && len(r.files) == 0 {
		r.err = &yamlfile.Error{File: path, Reason: "has no file that ends in .yaml or .yml"}
	}
	return r.files, r.dirs, r.err
}

type reader struct {
	files []File
	dirs  []string
	total int
	err   error
}

// looked notes a directory, by its own name and where links lead.
func (r *reader) looked(dir string) {
	for _, d := range []string{dir, resolved(dir)} {
		if !slices.Contains(r.dirs, d) {
			r.dirs = append(r.dirs, d)
		}
	}
}

func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

func (r *reader) dir(path string, depth int) {
	r.looked(path)
	if depth > maxDepth { // a link to a directory above, most likely
		r.err = errors.Join(r.err, &yamlfile.Error{File: path, Reason: fmt.Sprintf("is more than %d directories deep", maxDepth)})
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("rls config: %w", err))
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if r.entry(filepath.Join(path, e.Name()), depth); r.err != nil {
			return
		}
	}
}

func (r *reader) entry(path string, depth int) {
	info, err := os.Stat(path)
	switch ext := filepath.Ext(path); {
	case errors.Is(err, fs.ErrNotExist) && ext != ".yaml" && ext != ".yml":
	case err != nil:
		r.err = fmt.Errorf("rls config: %w", err)
	case info.IsDir():
		r.dir(path, depth+1)
	case ext == ".yaml" || ext == ".yml":
		r.file(path)
	}
}

// maxTotal bounds all files together.
const maxTotal = 64 << 20

func (r *reader) file(path string) {
	b, err := yamlfile.Load(path)
	if err != nil {
		r.err = err
		return
	}
	r.looked(filepath.Dir(resolved(path)))
	if r.total += len(b); r.total > maxTotal || len(r.files) == maxFiles {
		r.err = &yamlfile.Error{File: path, Reason: fmt.Sprintf("is too much: at most %d files and %d MiB in all", maxFiles, maxTotal>>20)}
		return
	}
	r.files = append(r.files, File{path, b})
}
