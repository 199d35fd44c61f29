package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// load sends calls over a number of connections for a while: as fast as they
// are answered, or perSecond in all on a schedule, each timed from the instant
// it was due. It returns the calls a second and their times in µs.
func load(addr string, conns int, length time.Duration, perSecond float64) (float64, []float64) {
	var mu sync.Mutex
	var all []float64
	total := 0
	var wg sync.WaitGroup
	start := time.Now()
	for c := range conns {
		wg.Go(func() {
			n, lat := client(addr, c, conns, start, length, perSecond)
			mu.Lock()
			defer mu.Unlock()
			total += n
			all = append(all, lat...)
		})
	}
	wg.Wait()
	return float64(total) / time.Since(start).Seconds(), all
}

func client(addr string, id, conns int, start time.Time, length time.Duration, perSecond float64) (n int, lat []float64) {
	conn := must(net.Dial("tcp", addr))
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 4096)
	var req []byte
	var gap time.Duration
	if perSecond > 0 {
		gap = time.Duration(float64(conns) / perSecond * 1e9)
	}
	due := start.Add(gap * time.Duration(id) / time.Duration(conns))
	for time.Since(start) < length {
		if gap > 0 {
			time.Sleep(time.Until(due))
		}
		req = request(req[:0], addr, (n*conns+id)*2654435761%10_000)
		if _, err := conn.Write(req); err != nil {
			panic(err)
		}
		skipResponse(in)
		if gap > 0 {
			lat = append(lat, float64(time.Since(due).Nanoseconds())/1e3)
			due = due.Add(gap)
		}
		n++
	}
	return n, lat
}

func request(b []byte, addr string, key int) []byte {
	body := fmt.Appendf(nil, `{"limit":"api","key":"user:%d","cost":1}`, key)
	b = fmt.Appendf(b, "POST /v1/take HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", addr, len(body))
	return append(b, body...)
}

var contentLength = []byte("Content-Length: ")

// skipResponse reads one response and insists that it is a 200.
func skipResponse(in *bufio.Reader) {
	length := -1
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			panic(err)
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
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
