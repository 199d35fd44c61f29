package httplimit

import (
	"net/http"
	"strconv"

	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/internal/texts"
)

// Refuse answers a refused request with a problem document that has only the status, its
// title and retry_after, the seconds of Retry-After: the names of limits and keys are not
// for clients. status is 429, or another that a proxy in front asks for. Call Headers.Set
// first: Refuse sets only Content-Type, Content-Length and Cache-Control (no-store). If no
// wait helps, there is neither Retry-After nor retry_after.
func Refuse(w http.ResponseWriter, status int) {
	front.Problem(w, status, func(b []byte) []byte {
		b = appendTitle(append(b, '{'), status)
		// The seconds are read from the header, not from the decision, because RetryJitter
		// would give another number.
		if s := w.Header()["Retry-After"]; len(s) == 1 {
			if retry, err := strconv.ParseInt(s[0], 10, 64); err == nil {
				b = strconv.AppendInt(append(b, `,"retry_after":`...), retry, 10)
			}
		}
		return append(b, '}')
	})
}

// Problem answers with a problem document of the type about:blank. detail is a sentence for
// the client. field, unless it is empty, names the field of the request that is wrong.
func Problem(w http.ResponseWriter, status int, field, detail string) {
	front.Problem(w, status, func(b []byte) []byte {
		b = appendTitle(append(b, `{"type":"about:blank",`...), status)
		b = texts.AppendJSON(append(b, `,"detail":`...), detail)
		if field != "" {
			b = texts.AppendJSON(append(b, `,"field":`...), field)
		}
		return append(b, '}')
	})
}

func appendTitle(b []byte, status int) []byte {
	b = texts.AppendJSON(append(b, `"title":`...), http.StatusText(status))
	return strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
}
