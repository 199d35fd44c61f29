package httplimit

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/dipwell/dipwell/internal/jsontext"

	"github.com/dipwell/dipwell"
)

// QuotaExceeded is the problem type of a refusal.
const QuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// Refuse answers a refused request with a problem that also carries the
// decision's members. The status is 429, or another where a proxy wants one.
// Headers are set before, by Headers.Set.
func Refuse(w http.ResponseWriter, d *dipwell.Decision, status int) {
	buf := buffers.Get().(*[]byte)
	*buf = append(AppendRefusal((*buf)[:0], d, status), '\n')
	writeProblem(w, status, *buf)
	buffers.Put(buf)
}

// buffers hold problem bodies: refusals come by the thousand exactly when a
// service has no time for them.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// AppendRefusal appends the problem of a refusal as a JSON object.
func AppendRefusal(b []byte, d *dipwell.Decision, status int) []byte {
	b = append(b, `{"type":"`+QuotaExceeded+`","title":"Request cannot be satisfied as assigned quota has been exceeded","status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	if d.Never {
		b = append(b, `,"detail":"the cost is more than the limit could ever hold; no wait will help"`...)
	}
	b = append(b, `,"violated-policies":[`...)
	if d.Limits == nil {
		b = jsontext.AppendString(b, d.Limit)
	}
	first := true
	for i := range d.Limits {
		if e := &d.Limits[i]; !e.Allowed && !refused(d.Limits[:i], e.Limit) {
			if !first {
				b = append(b, ',')
			}
			b, first = jsontext.AppendString(b, e.Limit), false
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

// Problem answers with a problem of no special type. field, where there is one,
// names what the caller wrote wrong; detail is a sentence.
func Problem(w http.ResponseWriter, status int, field, detail string) {
	buf := buffers.Get().(*[]byte)
	b := (*buf)[:0]
	b = append(b, `{"type":"about:blank","title":`...)
	b = jsontext.AppendString(b, http.StatusText(status))
	b = strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
	b = jsontext.AppendString(append(b, `,"detail":`...), detail)
	if field != "" {
		b = jsontext.AppendString(append(b, `,"field":`...), field)
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
	_, _ = w.Write(body) // the client is gone, and there is nobody to tell
}

var (
	problemType = []string{"application/problem+json"}
	noStore     = []string{"no-store"}
)
