package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// With ten thousand idle connections the service answers other clients, and its
// memory is bounded and reused afterwards.
func TestIdleConnections(t *testing.T) {
	const (
		clients = 10000
		perConn = 40e3 // bytes: a goroutine's stack and net/http's buffers
	)
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "api=1000000/1s")
	before := scrape(t, http.DefaultClient, p.url)
	conns := make([]net.Conn, clients)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	ask := func(c net.Conn, key int) error {
		body := fmt.Sprint("limit=api&key=", key)
		if _, err := fmt.Fprintf(c, "POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			return err
		}
		res, err := http.ReadResponse(bufio.NewReaderSize(c, 1024), nil)
		if err != nil {
			return err
		}
		_ = res.Body.Close() // it is in the buffer, which goes
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", res.Status)
		}
		return nil
	}
	all := func(f func(i int) error) {
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				for i := w; i < clients; i += 16 {
					if err := f(i); err != nil {
						t.Errorf("client %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	all(func(i int) (err error) {
		if conns[i], err = net.Dial("tcp", strings.TrimPrefix(p.url, "http://")); err != nil {
			return err
		}
		return ask(conns[i], i)
	})
	if t.Failed() {
		return
	}
	held := scrape(t, http.DefaultClient, p.url)
	t.Logf("%d idle connections: %.0f goroutines, RSS %.1f MB, before %.1f MB", clients, held("go_goroutines"), held("process_resident_memory_bytes")/1e6, before("process_resident_memory_bytes")/1e6)
	if got := held("process_resident_memory_bytes") - before("process_resident_memory_bytes"); got > clients*perConn*memoryFactor {
		t.Errorf("they take %.0f MB", got/1e6)
	}
	all(func(i int) error {
		if i%10 > 0 {
			return nil
		}
		return ask(conns[i], i)
	})
	for _, c := range conns {
		_ = c.Close()
	}
	eventually(t, func() error {
		if got := scrape(t, http.DefaultClient, p.url)("go_goroutines"); got > before("go_goroutines")+16 {
			return fmt.Errorf("%.0f goroutines, before %.0f", got, before("go_goroutines"))
		}
		return nil
	})
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}
