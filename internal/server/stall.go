package server

import (
	"container/list"
	"net/http"
	"sync"
	"time"
)

// A room holds calls that wait for their peer, each for at most a time. If there are more
// than its limit, the call that has waited longest is ended, and not the new one: a healthy
// peer soon does its part, so the oldest calls are those of peers that do not.
type room struct {
	limit int
	after time.Duration
	end   func(call any) // ends a call; it must not block

	mu    sync.Mutex
	calls list.List // of *waiting, in order of entry
	timed bool      // expire will be called
}

type waiting struct {
	since time.Time
	call  any
}

// enter adds a call.
func (r *room) enter(call any) *list.Element {
	r.mu.Lock()
	if !r.timed {
		r.timed = true
		time.AfterFunc(r.after, r.expire)
	}
	added := r.calls.PushBack(&waiting{time.Now(), call})
	var oldest *waiting
	if r.calls.Len() > r.limit {
		oldest = r.calls.Remove(r.calls.Front()).(*waiting)
	}
	r.mu.Unlock()
	if oldest != nil {
		r.end(oldest.call)
	}
	return added
}

// leave removes a call, which may have been ended.
func (r *room) leave(added *list.Element) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.Remove(added)
}

// expire ends the calls whose time is over.
func (r *room) expire() {
	var over []*waiting
	r.mu.Lock()
	now := time.Now()
	for r.timed = false; r.calls.Len() > 0 && !r.timed; {
		first := r.calls.Front().Value.(*waiting)
		if left := r.after - now.Sub(first.since); left > 0 {
			r.timed = true
			time.AfterFunc(left, r.expire)
		} else {
			over = append(over, first)
			r.calls.Remove(r.calls.Front())
		}
	}
	r.mu.Unlock()
	for _, w := range over {
		r.end(w.call)
	}
}

// Bounds of HTTP/2, whose clients can keep an answer from being sent although they read
// what is sent: they have not allowed it (flow control).
const (
	maxRequests  = 100      // at a time on an HTTP/2 connection; the least that RFC 9113 recommends
	maxFrame     = 16 << 10 // of a frame, which net/http keeps until all of it has arrived; the least that RFC 9113 allows
	maxReceived  = maxBody  // bytes of bodies on a connection that no handler has read; the least that net/http allows
	maxStalled   = 4096     // writes that wait for their clients; each has a goroutine, about 20 kB
	stalledPiece = 4 << 10  // bytes of a write, of which a client must take all within stallTimeout
)

// unstalled returns a handler whose answers over HTTP/2 are broken off when their client
// takes nothing of them. Over HTTP/1.1, conn does that.
func unstalled(next http.Handler, after time.Duration) http.Handler {
	stalled := &room{limit: maxStalled, after: after, end: func(call any) { go call.(*stallWriter).reset() }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor < 2 {
			next.ServeHTTP(w, r)
			return
		}
		s := &stallWriter{ResponseWriter: w, control: http.NewResponseController(w), stalled: stalled}
		defer s.done()
		next.ServeHTTP(s, r)
		_ = s.FlushError() // which net/http would do later, without this bound
	})
}

// stallWriter is a ResponseWriter of HTTP/2 that waits in a room while it writes.
type stallWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stalled *room

	mu   sync.Mutex
	over bool // the handler has returned, and ResponseWriter must not be used
}

func (s *stallWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *stallWriter) Write(b []byte) (n int, err error) {
	for {
		piece := b[n:min(len(b), n+stalledPiece)]
		var m int
		err = s.within(func() (err error) { m, err = s.ResponseWriter.Write(piece); return err })
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

// Flush is for handlers that assert http.Flusher.
func (s *stallWriter) Flush() { _ = s.FlushError() }

func (s *stallWriter) FlushError() error { return s.within(s.control.Flush) }

// within calls write in the room.
func (s *stallWriter) within(write func() error) error {
	defer s.stalled.leave(s.stalled.enter(s))
	return write()
}

// reset resets the stream, so that a write that waits fails.
func (s *stallWriter) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		_ = s.control.SetWriteDeadline(time.Unix(1, 0)) // in the past
	}
}

func (s *stallWriter) done() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
}
