package filestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// lockAt is the byte that a process locks in a data file. It lies behind all pages that
// SQLite could write (2^48 bytes) and all bytes that SQLite locks, so that sqlite3 can read
// the file meanwhile.
const lockAt = 1 << 60

// errLocked is the error of lock if the file is locked already.
var errLocked = errors.New("locked")

// dataFile is a data file that a store of this process has open and has locked. The lock is
// on the file itself, so all its names (links, bind mounts) have the same lock. It lasts
// until Close, or the end of the process.
type dataFile struct {
	*os.File
	info fs.FileInfo
}

// dataFiles are the data files that this process has open. If a process closes any descriptor
// of a file, the system drops SQLite's locks on that file. So this package opens no file that
// is in the list, and holds mu for as long as a file is open that is not in it.
var dataFiles struct {
	mu   sync.Mutex
	open map[*dataFile]struct{}
}

// findOpen returns the entry of a file, or nil. dataFiles.mu is locked.
func findOpen(info fs.FileInfo) *dataFile {
	for f := range dataFiles.open {
		if os.SameFile(f.info, info) {
			return f
		}
	}
	return nil
}

// openLocked opens and locks a file. The path has no symbolic links.
func openLocked(path string) (*dataFile, error) {
	dataFiles.mu.Lock()
	defer dataFiles.mu.Unlock()
	info, err := statRegular(path)
	if err != nil {
		return nil, err
	}
	if findOpen(info) != nil {
		return nil, inUse(path, os.Getpid())
	}
	f, err := os.OpenFile(path, os.O_RDWR|noFollow, 0)
	if err != nil {
		return nil, err
	}
	err = lock(f)
	if errors.Is(err, errLocked) {
		_, pid, _ := locked(f) // pid is only for the message
		err = inUse(path, pid)
	} else if err != nil {
		err = fmt.Errorf("lock file %s: %w", path, err)
	}
	d := &dataFile{File: f}
	if err == nil {
		d.info, err = f.Stat()
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	if dataFiles.open == nil {
		dataFiles.open = map[*dataFile]struct{}{}
	}
	dataFiles.open[d] = struct{}{}
	return d, nil
}

// statRegular returns an error for anything but a regular file, because opening it could wait.
func statRegular(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("file %s is not a regular file", path)
	}
	return info, err
}

// Close unlocks the file. Close SQLite's connection before.
func (d *dataFile) Close() error {
	dataFiles.mu.Lock()
	defer dataFiles.mu.Unlock()
	delete(dataFiles.open, d)
	return d.File.Close()
}

// inUse returns the error of Open for a file that this process or another one has open.
// pid is that process's id, or 0 if it is not known.
func inUse(path string, pid int) error {
	who := "another process"
	if pid > 0 {
		who = fmt.Sprintf("process %d", pid)
	}
	return fmt.Errorf("file %s is in use by %s; only one process can open it: send the call to that process (a service: --server), or stop it", path, who)
}
