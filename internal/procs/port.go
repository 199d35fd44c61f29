package procs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"sync"
)

// The range of ports given out. This range, and the range 10000 above for the
// bus of a Redis Cluster, are below the ephemeral ports (32768 and up on
// Linux): an ephemeral port could be taken before the server starts, or while
// it is stopped.
const (
	firstPort = 10240
	ports     = 10000
)

// given are the ports given out by this process.
var given struct {
	sync.Mutex
	locks map[int]net.Listener
}

// Port reserves a free port of 127.0.0.1 for a server of this process's tests.
// also lists offsets of ports that must be free too. On Linux no other process
// gets the port from Port until this process ends.
func Port(also ...int) (int, error) {
	given.Lock()
	defer given.Unlock()
	if given.locks == nil {
		given.locks = map[int]net.Listener{}
	}
	for range 1000 {
		port := firstPort + rand.IntN(ports)
		if _, taken := given.locks[port]; taken {
			continue
		}
		if lock, err := reserve(port, also); err == nil {
			given.locks[port] = lock
			return port, nil
		}
	}
	return 0, errors.New("no free port")
}

func reserve(port int, also []int) (lock net.Listener, err error) {
	if runtime.GOOS == "linux" { // reserve it by an abstract socket, which has no file and ends with the process
		if lock, err = new(net.ListenConfig).Listen(context.Background(), "unix", fmt.Sprintf("@dipwell-test-port-%d", port)); err != nil {
			return nil, err
		}
	}
	for _, distance := range append([]int{0}, also...) {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+distance)))
		if err != nil {
			if lock != nil {
				_ = lock.Close()
			}
			return nil, err
		}
		_ = l.Close()
	}
	return lock, nil
}
