package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dipwell/dipwell/internal/server"
)

// openTerminal makes a terminal: what a person has in front, and what a program gets.
func openTerminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = person.Close() })
	if err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	return person, program
}

// reading collects what a terminal shows; lines would wait for the end of one.
func reading(f *os.File) *lines {
	l := &lines{}
	l.more = sync.NewCond(&l.mu)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := f.Read(b)
			l.mu.Lock()
			l.all.Write(b[:n])
			l.more.Broadcast()
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return l
}

// On a terminal top writes one report over the other until Ctrl-C or a signal.
func TestTopOnATerminal(t *testing.T) {
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "login=1/1d,burst=1")
	keepAsking(t, p.url, "limit=login&key=greedy")
	for _, end := range []string{"\x03", "SIGTERM"} {
		t.Run(fmt.Sprintf("%q", end), func(t *testing.T) {
			person, terminal := openTerminal(t)
			cmd := built(t, "top", "--server", p.url, "--interval", "100ms")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			shown := reading(person)
			report := `\x1b\[H\x1b\[Jdipwell top(?s:.*)BUSIEST KEYS(?s:.*)login greedy(?s:.*)MOST REFUSED(?s:.*)login greedy(?s:.*)`
			shown.wait(t, report+report)
			var err error
			if end == "SIGTERM" {
				err = cmd.Process.Signal(syscall.SIGTERM)
			} else {
				_, err = person.WriteString(end)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err = <-ended; err != nil {
				t.Error("status: ", err)
			}
		})
	}
}

// The lines of the audit do not control a terminal either.
func TestAuditOnATerminal(t *testing.T) {
	t.Setenv("DIPWELL_SERVER", startAPI(t, server.Config{}, "login=5/1m,burst=90"))
	if code, _, errs := program(t, "reset", "login", "x", "--note", "a\u009b31m\u202e"); code != 0 {
		t.Fatal(errs)
	}
	person, terminal := openTerminal(t)
	screen := reading(person)
	var errs bytes.Buffer
	if code := run(t.Context(), []string{"audit", "--ndjson"}, strings.NewReader(""), terminal, &errs); code != 0 {
		t.Fatal(code, errs.String())
	}
	screen.wait(t, `a\\u009b31m\\u202e`)
}
