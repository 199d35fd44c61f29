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

// maxTotal is the most bytes that all files together may have.
const maxTotal = 64 << 20

// read returns the files in order of name.
func read(path string) (files []File, err error) {
	total := 0
	if err = eachFile(path, 0, func(path string, odd bool) error {
		b, err := config.LoadYAML(path)
		if total += len(b); err == nil && (total > maxTotal || len(files) == maxFiles) {
			err = fault(path, "is too large: at most %d files and %d MiB in all", maxFiles, maxTotal>>20)
		}
		files = append(files, File{path, b, odd})
		return err
	}); err == nil && len(files) == 0 {
		err = fault(path, "has no files")
	}
	return files, err
}

func fault(path, format string, args ...any) error {
	return &config.YAMLError{File: path, Reason: fmt.Sprintf(format, args...)}
}

// eachFile calls f for the file path, or for each file in the directory path, which is depth
// levels below the configured one. odd reports whether a file of a directory does not end in
// .yaml or .yml.
func eachFile(path string, depth int, f func(path string, odd bool) error) error {
	info, err := os.Stat(path)
	switch _, gone := os.Lstat(path); {
	case depth > 0 && errors.Is(gone, fs.ErrNotExist): // removed since the directory was listed
		return nil
	case err != nil:
		return fmt.Errorf("rls config: %w", err)
	case depth == 0 && !info.IsDir():
		return f(path, false)
	case !info.IsDir() && !info.Mode().IsRegular():
		return fault(path, "is neither a file nor a directory")
	case !info.IsDir():
		ext := filepath.Ext(path)
		return f(path, ext != ".yaml" && ext != ".yml")
	case depth > maxDepth: // probably a link to a parent directory
		return fault(path, "is more than %d directories deep", maxDepth)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("rls config: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			if err = eachFile(filepath.Join(path, e.Name()), depth+1, f); err != nil {
				return err
			}
		}
	}
	return nil
}
