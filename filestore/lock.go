package filestore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// inUse returns the error of Open for a file that this process or another one has open.
// pid is that process's id, or 0 if it is not known.
func inUse(path string, pid int) error {
	who := "another process"
	if pid > 0 {
		who = fmt.Sprintf("process %d", pid)
	}
	return fmt.Errorf("file %s is in use by %s; only one process can open it: send the call to that process (a service: --server), or stop it", path, who)
}

// errLocked is the error of lock if the file is locked already.
var errLocked = errors.New("locked")

// Inspect locks the file for a moment, so that a file that is locked is tried again.
const (
	lockTries = 5
	lockPause = 20 * time.Millisecond
)

// waitForInspect waits before another try to lock a file. It returns false if there were
// enough.
func waitForInspect(try int) bool {
	time.Sleep(lockPause)
	return try < lockTries
}

// lockFile locks path by locking another file, path.lock, until that is closed or
// the process ends. SQLite's own locks are not used, so that sqlite3 can read the
// file meanwhile. If it is locked already, lockFile tries again as long as again returns
// true; try counts from 1.
func lockFile(path string, again func(try int) bool) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = lock(f)
	for try := 1; errors.Is(err, errLocked) && again(try); try++ {
		err = lock(f)
	}
	if err != nil {
		defer f.Close()
		if !errors.Is(err, errLocked) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		b, _ := io.ReadAll(io.LimitReader(f, 20))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return nil, inUse(path, pid)
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil { // it only appears in messages
		_ = f.Truncate(0)
	}
	return f, nil
}
