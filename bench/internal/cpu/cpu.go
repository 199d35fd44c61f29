// Package cpu reads the processor time used by processes.
package cpu

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Own returns the processor time of this process, user and system.
func Own() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// tick is the unit of times in /proc/PID/stat: USER_HZ is 100 on every platform.
const tick = 10 * time.Millisecond

// Process returns the processor time of a process. The time is exact to 1 ns if the
// kernel has schedstat and no thread of the process has ended, and to 10 ms otherwise.
// Process returns an error if the process has ended.
func Process(pid int) (time.Duration, error) {
	s, err := read(strconv.Itoa(pid))
	return s.own, err
}

// Server returns the processor time of a process and its children, including
// those that have ended: PostgreSQL has a process for each connection.
func Server(pid int) (time.Duration, error) {
	s, err := read(strconv.Itoa(pid))
	if err != nil {
		return 0, err
	}
	total := s.own + s.ended
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range all {
		if e.Name()[0] < '0' || e.Name()[0] > '9' {
			continue
		}
		if c, err := read(e.Name()); err == nil && c.parent == pid { // otherwise the process ended meanwhile
			total += c.own
		}
	}
	return total, nil
}

// Machine returns the processor time of all processes of the machine.
func Machine() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(b, []byte("\n"))
	total := 0
	for i, f := range bytes.Fields(first)[1:] { // the line has the times: user, nice, system, idle, iowait, irq, softirq, …
		if i == 3 || i == 4 || i > 6 {
			continue
		}
		n, err := strconv.Atoi(string(f))
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		total += n
	}
	return time.Duration(total) * tick, nil
}

// Family returns the processor time of this process and its children, including
// those that have ended.
func Family() (time.Duration, error) { return Server(os.Getpid()) }

type stat struct {
	parent     int
	own, ended time.Duration // times of the process, and of its children that ended and were waited for
}

// read parses /proc/PID/stat. The process name, in parentheses, may contain any
// characters.
func read(pid string) (s stat, err error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return s, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	var n [5]int
	for i, at := range []int{1, 11, 12, 13, 14} {
		if n[i], err = strconv.Atoi(string(f[at])); err != nil {
			return s, fmt.Errorf("/proc/%s/stat: %w", pid, err)
		}
	}
	s = stat{n[0], time.Duration(n[1]+n[2]) * tick, time.Duration(n[3]+n[4]) * tick}
	s.own = max(s.own, scheduled(pid))
	return s, nil
}

// scheduled returns the sum of the first fields of the schedstat files of a process's
// threads, in ns, or 0 if the kernel has no such files. Threads that have ended have no such
// file.
func scheduled(pid string) (total time.Duration) {
	threads, _ := filepath.Glob("/proc/" + pid + "/task/*/schedstat")
	for _, name := range threads {
		b, _ := os.ReadFile(name)
		first, _, _ := bytes.Cut(b, []byte(" "))
		n, _ := strconv.ParseInt(string(first), 10, 64)
		total += time.Duration(n)
	}
	return total
}
