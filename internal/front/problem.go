package front

import (
	"net/http"
	"strconv"
	"sync"
)

// documents has buffers, because an overloaded service sends thousands of refusals a second.
var documents = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

var (
	problemType = []string{"application/problem+json"}
	noStore     = []string{"no-store"}
)

// Problem answers with a status and the problem document that document appends to a buffer.
func Problem(w http.ResponseWriter, status int, document func([]byte) []byte) {
	buf := documents.Get().(*[]byte)
	*buf = append(document((*buf)[:0]), '\n')
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = problemType, noStore
	h["Content-Length"] = []string{strconv.Itoa(len(*buf))}
	w.WriteHeader(status)
	_, _ = w.Write(*buf) // an error means that the client has gone
	documents.Put(buf)
}
