package procs

import (
	"net"
	"runtime"
	"strconv"
	"testing"
)

// TestPort checks that a port is given out once, to this process and to others,
// and never while it is in use.
func TestPort(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port, err := Port(10000)
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port < firstPort || port >= firstPort+ports {
			t.Errorf("%d was given before, or is out of range", port)
		}
		seen[port] = true
		if _, err := reserve(port, nil); err == nil && runtime.GOOS == "linux" {
			t.Errorf("another process gets %d as well", port)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	used := l.Addr().(*net.TCPAddr).Port
	if _, err := reserve(used, nil); err == nil {
		t.Errorf("%d is in use", used)
	}
	if _, err := reserve(used-1000, []int{1000}); err == nil {
		t.Errorf("%d is in use, 1000 above", used)
	}
	if lock, err := reserve(used-1000, nil); err != nil {
		t.Logf("%s is in use as well: %v", strconv.Itoa(used-1000), err)
	} else if lock != nil {
		_ = lock.Close()
	}
}
