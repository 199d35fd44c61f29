package httplimit

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/dipwell/dipwell/internal/texts"
)

// Refuse answers a refused request with a problem document that has the status, its title
// and retry_after, the seconds of Retry-After, alone: the names of limits and keys are not
// for clients. status is 429, or another that a proxy in front asks for. Call Headers.Set
// first: Refuse sets only Content-Type, Content-Length and Cache-Control (no-store). If no
// wait helps, there is neither Retry-After nor retry_after.
func Refuse(w http.ResponseWriter, status int) {
	buf := buffers.Get().(*[]byte)
	b := (*buf)[:0]
	b = append(b, `{"title":`...)
	b = texts.AppendJSON(b, http.StatusText(status))
	b = strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
	// Not from the decision: a limit with RetryJitter would give another number.
	if s := w.Header()["Retry-After"]; len(s) == 1 {
		if retry, err := strconv.ParseInt(s[0], 10, 64); err == nil {
			b = strconv.AppendInt(append(b, `,"retry_after":`...), retry, 10)
		}
	}
	b = append(b, '}', '\n')
	*buf = b
	writeProblem(w, status, *buf)
	buffers.Put(buf)
}

// buffers is a pool of body buffers, because an overloaded service sends
// thousands of refusals a second.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// Problem answers with a problem document of the type about:blank. detail is a
// sentence for the client. field, unless it is empty, names the field of the
// request that is wrong.
func Problem(w http.ResponseWriter, status int, field, detail string) {
	buf := buffers.Get().(*[]byte)
	b := (*buf)[:0]
	b = append(b, `{"type":"about:blank","title":`...)
	b = texts.AppendJSON(b, http.StatusText(status))
	b = strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
	b = texts.AppendJSON(append(b, `,"detail":`...), detail)
	if field != "" {
		b = texts.AppendJSON(append(b, `,"field":`...), field)
	}
	b = append(b, '}', '\n')
	*buf = b
	writeProblem(w, status, *buf)
	buffers.Put(buf)
}

func writeProblem(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = problemType
	h["Cache-Control"] = noStore
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client has gone
}

var (
	problemType = []string{"application/problem+json"}
	noStore     = []string{"no-store"}
)
