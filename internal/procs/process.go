//go:build unix

package procs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// A Process is a server process of a test. It can be run again after it has
// ended.
type Process struct {
	Dir string // directory that has the file log with the output

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Run starts cmd with its output appended to the log. On Linux the process gets
// the signal onExit when the test binary ends, even if that is killed.
func (p *Process) Run(cmd *exec.Cmd, onExit syscall.Signal) error {
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.Dir, log, log
	SetAttributes(cmd, onExit)
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	p.cmd, p.done = cmd, done
	return nil
}

// SetAttributes gives cmd a process group of its own, so that an interrupt goes
// to the tests only, and onExit as Run does.
func SetAttributes(cmd *exec.Cmd, onExit syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	setExitSignal(cmd.SysProcAttr, onExit)
}

// Started reports whether Run has started a process. If Started returns false,
// only Dir, Log and Started may be used.
func (p *Process) Started() bool { return p.cmd != nil }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process.
func (p *Process) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.done }

// Wait returns when the process has ended.
func (p *Process) Wait() { <-p.done }

// Log returns the end of the log.
func (p *Process) Log() string {
	b, _ := os.ReadFile(p.logFile())
	return string(bytes.ToValidUTF8(b[max(0, len(b)-4096):], nil))
}

// LogSize returns the size of the log, and LogFrom what was appended after that.
func (p *Process) LogSize() int64 {
	info, err := os.Stat(p.logFile())
	if err != nil {
		return 0
	}
	return info.Size()
}

func (p *Process) LogFrom(size int64) string {
	b, _ := os.ReadFile(p.logFile())
	return string(b[min(size, int64(len(b))):])
}

func (p *Process) logFile() string { return filepath.Join(p.Dir, "log") }
