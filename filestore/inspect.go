package filestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Condition is the state of a file, as found by Inspect.
type Condition struct {
	Path    string // absolute path of the file, without symbolic links
	Missing bool   // there is no file; Open would create it
	Schema  int    // version of the file's format
	Wanted  int    // version of the format that this program reads and writes
	InUse   bool   // a process has the file open
	PID     int    // id of that process; 0 if unknown
}

// Inspect reads a file's header and changes nothing. A file in use is not an error.
func Inspect(path string) (*Condition, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	c := &Condition{Path: path, Wanted: schemaVersion}
	dataFiles.mu.Lock()
	defer dataFiles.mu.Unlock()
	info, err := statRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		c.Missing = true
		return c, checkLost(path)
	}
	if err != nil {
		return c, err
	}
	if own := findOpen(info); own != nil {
		c.InUse, c.PID = true, os.Getpid()
		return c, c.read(own.File)
	}
	f, err := os.OpenFile(path, os.O_RDWR|noFollow, 0)
	if err != nil {
		return c, fmt.Errorf("file %s: %w", path, err)
	}
	defer f.Close()
	if err = c.read(f); err == nil {
		if c.InUse, c.PID, err = locked(f); err != nil {
			err = fmt.Errorf("lock of %s: %w", path, err)
		}
	}
	return c, err
}

func (c *Condition) read(f *os.File) error {
	header := make([]byte, 72)
	_, err := f.ReadAt(header, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("file %s: %w", c.Path, err)
	}
	c.Schema = int(binary.BigEndian.Uint32(header[60:]))
	if binary.BigEndian.Uint32(header[68:]) != applicationID {
		return foreign(c.Path)
	}
	return nil
}
