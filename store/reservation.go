package store

import (
	"encoding/hex"
)

// A Reservation identifies tokens that were taken ahead of time. Its text is a UUID.
// Whoever knows that text can cancel the reservation, so it must be hard to guess: the Limiter
// makes random ones. The zero Reservation means that there is none. A Reservation is
// comparable, and may be stored or sent to another program, which can cancel it on the same
// store until it is due.
type Reservation [16]byte

// String writes the reservation as a UUID.
func (r Reservation) String() string {
	text := [36]byte{8: '-', 13: '-', 18: '-', 23: '-'}
	hex.Encode(text[:], r[:4])
	hex.Encode(text[9:], r[4:6])
	hex.Encode(text[14:], r[6:8])
	hex.Encode(text[19:], r[8:10])
	hex.Encode(text[24:], r[10:])
	return string(text[:])
}

// MarshalText returns the text of String. The error is always nil.
func (r Reservation) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a UUID as String writes it. The error is a *FieldError, and r is
// then the zero Reservation.
func (r *Reservation) UnmarshalText(text []byte) error {
	*r = Reservation{}
	s := string(text)
	bad := badField("reservation", "%q is not a reservation such as 0198c2f3-5b6e-7cc1-9d1a-3f0a5b7c9d11", s)
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return bad
	}
	digits := s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	if _, err := hex.Decode(r[:], []byte(digits)); err != nil {
		*r = Reservation{}
		return bad
	}
	return nil
}
