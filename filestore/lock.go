package filestore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// InUseError refuses a file that a process has open: this one, or another.
type InUseError struct {
	Path string
	PID  int // of who has it; 0: unknown
}

func (e *InUseError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("file %s is in use by %s; only one can have it open: ask that one (a service: --server), or stop it", e.Path, who)
}

// errLocked: somebody else holds the lock.
var errLocked = errors.New("locked")

// lockFile locks path by a file beside it, until it is closed or the process
// ends, however it ends. SQLite's own locks are left alone, so that sqlite3 can
// read the file meanwhile.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = lock(f); err != nil {
		defer f.Close()
		if !errors.Is(err, errLocked) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		b, _ := io.ReadAll(io.LimitReader(f, 20))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return nil, &InUseError{path, pid}
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil { // the number is for people; the lock holds without
		_ = f.Truncate(0)
	}
	return f, nil
}
