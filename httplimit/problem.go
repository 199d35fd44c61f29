package httplimit

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/internal/texts"
)

// quotaExceeded is the problem type of a refusal.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// Refuse answers a refused request with a problem document of the type quota-exceeded,
// which lists the limits that refused ("violated-policies") and has the members of the
// decision's JSON object, the key among them. status is 429, or another that a proxy in
// front asks for. If d is Never, the document says that no wait will help. Call
// Headers.Set first: Refuse sets only Content-Type, Content-Length and Cache-Control
// (no-store).
func Refuse(w http.ResponseWriter, d *dipwell.Decision, status int) {
	buf := buffers.Get().(*[]byte)
	*buf = append(appendRefusal((*buf)[:0], d, status), '\n')
	writeProblem(w, status, *buf)
	buffers.Put(buf)
}

// buffers is a pool of body buffers, because an overloaded service sends
// thousands of refusals a second.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// appendRefusal appends the problem document of a refusal.
func appendRefusal(b []byte, d *dipwell.Decision, status int) []byte {
	b = append(b, `{"type":"`+quotaExceeded+`","title":"Request cannot be satisfied as assigned quota has been exceeded","status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	if d.Never {
		b = append(b, `,"detail":"`...)
		if front.Blocked(d) {
			b = append(b, `the key is blocked`...)
		} else {
			b = append(b, `the call asks for more than the limit could ever hold`...)
		}
		b = append(b, `; no wait will help"`...)
	}
	b = append(b, `,"violated-policies":[`...)
	if d.Limits == nil {
		b = texts.AppendJSON(b, d.Limit)
	}
	first := true
	for i := range d.Limits {
		if e := &d.Limits[i]; !e.Allowed && !refused(d.Limits[:i], e.Limit) {
			if !first {
				b = append(b, ',')
			}
			b, first = texts.AppendJSON(b, e.Limit), false
		}
	}
	return append(d.AppendMembers(append(b, `],`...)), '}')
}

func refused(limits []dipwell.Decision, name string) bool {
	for i := range limits {
		if !limits[i].Allowed && limits[i].Limit == name {
			return true
		}
	}
	return false
}

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
