package filestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Condition is the state of a file, as found by Inspect.
type Condition struct {
	Path    string    // absolute, without symbolic links
	Missing bool      // there is no file; Open would create it
	Schema  int       // version of the format
	Wanted  int       // version that this program reads and writes
	Bytes   int64     // size, including the write-ahead log
	Written time.Time // last change of the file or its write-ahead log
	InUse   bool      // a process has it open
	PID     int       // of that process; 0 if unknown
}

// Inspect reads a file's header and changes nothing. The error is what Open would
// return, except that a file in use is not an error.
func Inspect(path string) (*Condition, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	c := &Condition{Path: path, Wanted: schemaVersion}
	if err = checkHeader(path); errors.Is(err, fs.ErrNotExist) {
		c.Missing = true
		dir, err := os.Stat(filepath.Dir(path))
		if err == nil && !dir.IsDir() {
			err = fmt.Errorf("file %s: %s is not a directory", path, filepath.Dir(path))
		}
		return c, err
	} else if err != nil {
		return c, err
	}
	for _, name := range []string{path, path + "-wal"} {
		if st, err := os.Stat(name); err == nil {
			c.Bytes += st.Size()
			if st.ModTime().After(c.Written) {
				c.Written = st.ModTime()
			}
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return c, fmt.Errorf("file %s: %w", path, err)
	}
	defer f.Close()
	var header [100]byte
	if _, err = f.ReadAt(header[:], 0); err != nil {
		return c, fmt.Errorf("file %s: %w", path, err)
	}
	c.Schema = int(binary.BigEndian.Uint32(header[60:]))
	if app := binary.BigEndian.Uint32(header[68:]); app != applicationID {
		return c, fmt.Errorf("file %s is an SQLite database of another program", path)
	}
	return c, c.findProcess()
}

// findProcess sets InUse and PID. It does so by trying to lock the file for a moment; the
// lock is shared with other calls of Inspect.
func (c *Condition) findProcess() error {
	f, err := os.OpenFile(c.Path+".lock", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock of %s: %w", c.Path, err)
	}
	defer f.Close()
	if err = lockShared(f); err != nil && !errors.Is(err, errLocked) {
		return fmt.Errorf("lock of %s: %w", c.Path, err)
	}
	if c.InUse = err != nil; c.InUse {
		b, _ := os.ReadFile(f.Name())
		c.PID, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	return nil
}
