package check

import (
	"bufio"
	"bytes"
	"io"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
)

// launch starts a service and returns the addresses of its first HTTP listeners, in the
// order in which it names them, and a function that ends it and fails the test if it does
// not end well.
func launch(t *testing.T, run *exec.Cmd, listeners int) (urls []string, stop func()) {
	t.Helper()
	var said bytes.Buffer
	run.Stderr = &said
	stdout, err := run.StdoutPipe()
	if err == nil {
		err = run.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`on (http://127\.0\.0\.1:\d+)`)
	for lines := bufio.NewScanner(stdout); len(urls) < listeners && lines.Scan(); {
		if m := at.FindStringSubmatch(lines.Text()); m != nil {
			urls = append(urls, m[1])
		}
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, stdout)
	}()
	stop = func() {
		_ = run.Process.Signal(syscall.SIGTERM)
		<-read // before Wait, which closes the pipe
		if err := run.Wait(); err != nil {
			t.Errorf("%v\n%s", err, said.String())
		}
	}
	if len(urls) < listeners {
		stop()
		t.Fatalf("%d listeners, want %d\n%s", len(urls), listeners, said.String())
	}
	return urls, stop
}
