package rls

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dipwell/dipwell/internal/config"
)

// Load reads a file, or all files of a directory and below it, whatever their names, as
// envoyproxy/ratelimit does. It follows links, and skips names that begin with a dot, such
// as ..data of a ConfigMap.
func Load(def Defaults, path string) (*Rules, error) {
	files, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(def, files...)
}

// Content returns a digest of all files that Load reads, or the error of reading them.
func Content(path string) string {
	files, err := read(path)
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

// read returns the files in order of name.
func read(path string) ([]File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("rls config: %w", err)
	}
	r := reader{}
	if info.IsDir() {
		r.dir(path, 0)
	} else {
		r.file(path, false)
	}
	if r.err == nil && len(r.files) == 0 {
		r.err = &config.YAMLError{File: path, Reason: "has no files"}
	}
	return r.files, r.err
}

type reader struct {
	files []File
	total int
	err   error
}

func (r *reader) dir(path string, depth int) {
	if depth > maxDepth { // probably a link to a parent directory
		r.err = &config.YAMLError{File: path, Reason: fmt.Sprintf("is more than %d directories deep", maxDepth)}
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		r.err = fmt.Errorf("rls config: %w", err)
	}
	for _, e := range entries {
		if r.err == nil && !strings.HasPrefix(e.Name(), ".") {
			r.entry(filepath.Join(path, e.Name()), depth)
		}
	}
}

func (r *reader) entry(path string, depth int) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		if _, gone := os.Lstat(path); !errors.Is(gone, fs.ErrNotExist) { // otherwise removed since the directory was listed
			r.err = fmt.Errorf("rls config: %w", err)
		}
	case info.IsDir():
		r.dir(path, depth+1)
	case !info.Mode().IsRegular():
		r.err = &config.YAMLError{File: path, Reason: "is neither a file nor a directory"}
	default:
		ext := filepath.Ext(path)
		r.file(path, ext != ".yaml" && ext != ".yml")
	}
}

// maxTotal is the most bytes that all files together may have.
const maxTotal = 64 << 20

func (r *reader) file(path string, odd bool) {
	b, err := config.LoadYAML(path)
	if err != nil {
		r.err = err
		return
	}
	if r.total += len(b); r.total > maxTotal || len(r.files) == maxFiles {
		r.err = &config.YAMLError{File: path, Reason: fmt.Sprintf("is too large: at most %d files and %d MiB in all", maxFiles, maxTotal>>20)}
		return
	}
	r.files = append(r.files, File{path, b, odd})
}
