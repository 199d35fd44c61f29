package server

import (
	"net/http"
	"strconv"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/internal/texts"
)

// quotaExceeded is the problem type of a refusal.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// refuse answers a refused call with a problem document of the type quota-exceeded, which
// lists the limits that refused and has the members of the decision's JSON object.
func refuse(w http.ResponseWriter, d *dipwell.Decision, status int) error {
	front.Problem(w, status, func(b []byte) []byte { return appendRefusal(b, d, status) })
	return nil
}

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
	first := true
	for e := range front.Refused(d) {
		if !first {
			b = append(b, ',')
		}
		b, first = texts.AppendJSON(b, e.Limit), false
	}
	return append(d.AppendMembers(append(b, `],`...)), '}')
}
