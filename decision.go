package dipwell

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// A Decision is the answer to a call. For several limits it speaks for the one
// that decides (refused: the latest retry; allowed: the fewest remaining), and
// Limits has each, in the order asked.
type Decision struct {
	Allowed bool
	Never   bool   // the cost is more than the limit could ever hold; no wait will help
	Shadow  bool   // allowed only because the limit is in shadow mode
	Source  Source // how the answer was made
	Limit   string
	Key     string // "" is the limit's shared bucket
	Cost    int64  // tokens asked for
	Granted int64  // tokens taken

	Capacity   int64         // the limit's burst, in tokens
	Remaining  int64         // whole tokens left, after the charge if there was one
	RetryAfter time.Duration // until the first instant at which the same call would succeed
	ResetAfter time.Duration // until the bucket is full
	Delay      time.Duration // how long to wait before acting on a reservation

	Reservation Reservation // gives the tokens back through Cancel; zero when nothing is to wait for
	Limits      []Decision  // of a call with several limits

	def *Definition
}

// Definition returns the definition that decided, or nil for a zero Decision.
func (d *Decision) Definition() *Definition { return d.def }

// Err returns nil when the call was allowed and a *RefusedError otherwise, for
// callers who prefer an error.
func (d *Decision) Err() error {
	if d.Allowed {
		return nil
	}
	return &RefusedError{*d}
}

// A Reservation names tokens that were taken ahead of time.
type Reservation [16]byte

// newReservation draws a random (version 4) UUID. It cannot be guessed, so that
// whoever holds it may give the tokens back.
func newReservation() (r Reservation) {
	rand.Read(r[:])
	r[6] = r[6]&0x0f | 0x40
	r[8] = r[8]&0x3f | 0x80
	return r
}

// String writes the reservation as a UUID.
func (r Reservation) String() string {
	var b [36]byte
	return string(r.append(b[:0]))
}

func (r Reservation) append(b []byte) []byte {
	for i, part := range [...][]byte{r[:4], r[4:6], r[6:8], r[8:10], r[10:]} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, part)
	}
	return b
}

// ParseReservation reads what String writes.
func ParseReservation(s string) (r Reservation, err error) {
	bad := badField("reservation", "%q is not a reservation such as 0198c2f3-5b6e-7cc1-9d1a-3f0a5b7c9d11", s)
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return r, bad
	}
	digits := s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	if _, err := hex.Decode(r[:], []byte(digits)); err != nil {
		return Reservation{}, bad
	}
	return r, nil
}

// MarshalText and UnmarshalText use the form of String.
func (r Reservation) MarshalText() ([]byte, error) { return r.append(nil), nil }

func (r *Reservation) UnmarshalText(b []byte) (err error) {
	*r, err = ParseReservation(string(b))
	return err
}

// MarshalJSON writes the decision object of the HTTP API.
func (d Decision) MarshalJSON() ([]byte, error) {
	return append(d.AppendMembers([]byte{'{'}), '}'), nil
}

// AppendMembers appends the members of the decision's JSON object, without its braces.
func (d *Decision) AppendMembers(b []byte) []byte {
	b = d.appendOne(b)
	if d.Limits != nil {
		b = append(b, `,"limits":[`...)
		for i := range d.Limits {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(d.Limits[i].appendOne(append(b, '{')), '}')
		}
		b = append(b, ']')
	}
	return b
}

func (d *Decision) appendOne(b []byte) []byte {
	b = append(b, `"allowed":`...)
	b = strconv.AppendBool(b, d.Allowed)
	b = AppendJSONString(append(b, `,"limit":`...), d.Limit)
	b = append(b, `,"key":`...)
	if d.Key == "" {
		b = append(b, "null"...)
	} else {
		b = AppendJSONString(b, d.Key)
	}
	b = appendInt(b, `,"cost":`, d.Cost)
	b = appendInt(b, `,"granted":`, d.Granted)
	b = appendInt(b, `,"capacity":`, d.Capacity)
	b = appendInt(b, `,"remaining":`, d.Remaining)
	if d.Never || d.Allowed && !d.Shadow {
		b = append(b, `,"retry_after_us":null`...)
	} else {
		b = appendInt(b, `,"retry_after_us":`, d.RetryAfter.Microseconds())
	}
	b = appendInt(b, `,"reset_after_us":`, d.ResetAfter.Microseconds())
	b = appendInt(b, `,"delay_us":`, d.Delay.Microseconds())
	if d.Never {
		b = append(b, `,"never":true`...)
	}
	if d.Reservation != (Reservation{}) {
		b = append(d.Reservation.append(append(b, `,"reservation":"`...)), '"')
	}
	b = append(b, `,"shadow":`...)
	b = strconv.AppendBool(b, d.Shadow)
	b = append(b, `,"source":"`...)
	b = append(b, d.Source.String()...)
	return append(b, '"')
}

func appendInt(b []byte, member string, n int64) []byte {
	return strconv.AppendInt(append(b, member...), n, 10)
}

// AppendJSONString appends s as a JSON string. What is not UTF-8 becomes U+FFFD.
func AppendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			b = append(append(b, s[from:i]...), `\ufffd`...)
		} else if b = append(b, s[from:i]...); c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = fmt.Appendf(b, `\u%04x`, c)
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}
