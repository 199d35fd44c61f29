package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// load makes calls over a number of connections for a while: as fast as they are
// answered, or at a fixed rate (perSecond over all connections), each timed from
// its scheduled time. A share of the calls is on keys whose bucket is empty.
type load struct {
	addr      string
	conns     int
	length    time.Duration
	perSecond float64
	refused   float64
}

// run returns the number of answered calls and their latencies in µs.
func (l load) run() (total int, all []float64) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for c := range l.conns {
		wg.Go(func() {
			n, lat := l.client(c, start)
			mu.Lock()
			defer mu.Unlock()
			total += n
			all = append(all, lat...)
		})
	}
	wg.Wait()
	return total, all
}

func (l load) client(id int, start time.Time) (n int, lat []float64) {
	conn := must(net.Dial("tcp", l.addr))
	defer conn.Close()
	in, random := bufio.NewReaderSize(conn, 4096), rand.New(rand.NewPCG(uint64(id), rand.Uint64()))
	var req []byte
	var gap time.Duration
	if l.perSecond > 0 {
		gap = time.Duration(float64(l.conns) / l.perSecond * 1e9)
	}
	due := start.Add(gap * time.Duration(id) / time.Duration(l.conns))
	for time.Since(start) < l.length {
		if gap > 0 {
			time.Sleep(time.Until(due))
		}
		limit := "api"
		if random.Float64() < l.refused {
			limit = "drained"
		}
		req = request(req[:0], l.addr, limit, random.IntN(10_000))
		must(conn.Write(req))
		skipResponse(in)
		if gap > 0 {
			lat = append(lat, float64(time.Since(due).Nanoseconds())/1e3)
			due = due.Add(gap)
		}
		n++
	}
	return n, lat
}

func request(b []byte, addr, limit string, key int) []byte {
	length := len(`{"limit":"","key":"user:","cost":1}`) + len(limit) + len(strconv.Itoa(key))
	return fmt.Appendf(b, "POST /v1/take HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"+
		`{"limit":"%s","key":"user:%d","cost":1}`, addr, length, limit, key)
}

var contentLength = []byte("Content-Length: ")

// skipResponse reads one response and panics if it is not a decision.
func skipResponse(in *bufio.Reader) {
	length := -1
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			panic(err)
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) && !bytes.HasPrefix(line, []byte("HTTP/1.1 429")) {
			panic(string(line))
		}
		if v, ok := bytes.CutPrefix(line, contentLength); ok {
			length = must(strconv.Atoi(string(bytes.TrimSpace(v))))
		}
		if len(line) == 2 {
			break
		}
	}
	if length < 0 {
		panic("a response without its length")
	}
	must(in.Discard(length))
}

func percentile(v []float64, p int) float64 {
	slices.Sort(v)
	return v[min(len(v)-1, len(v)*p/100)]
}

// await returns once a server listens.
func await(addr string) {
	for range 500 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	panic(addr + " does not answer")
}

func freeAddr() string {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().String()
}
