package period

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// The functions of this file read what people write for rates, numbers and lengths of time,
// so that an error can say what to write. The functions return "" for texts that they cannot
// read.

// words are what people write for units.
var words = map[string]string{
	"millisecond": "ms", "msec": "ms", "microsecond": "us", "usec": "us",
	"s": "s", "sec": "s", "second": "s", "m": "m", "min": "m", "minute": "m", "h": "h", "hr": "h", "hour": "h",
	"d": "d", "day": "d", "w": "w", "wk": "w", "week": "w", "mo": "mo", "mon": "mo", "month": "mo", "y": "y", "yr": "y", "year": "y",
	"ms": "ms", "us": "us", "µs": "us",
}

// Rewrite returns a length of time such as "15 minutes", "hour", "60" (seconds) or "0.5s" as
// Parse reads it.
func Rewrite(s string) string {
	s = strings.TrimSpace(s)
	digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789."))]
	word := strings.ToLower(strings.Trim(s[len(digits):], " -"))
	if word == "" && digits != "" {
		word = "s"
	}
	unit, ok := words[word]
	if !ok {
		unit, ok = words[strings.TrimSuffix(word, "s")]
	}
	n, of := fraction(digits)
	if digits == "" {
		n, of = 1, 1
	}
	if !ok || of == 0 {
		return ""
	}
	one, err := Parse("1" + unit)
	if err != nil || n == 0 || of > 1 && (one < 0 || one/time.Microsecond%time.Duration(of) != 0) {
		return ""
	}
	if text := strconv.FormatInt(n, 10) + unit; of == 1 {
		if text == s { // Parse, which calls this function for its error, cannot read such a text
			return ""
		}
		if _, err = Parse(text); err != nil {
			return ""
		}
		return text
	}
	if n > math.MaxInt64/int64(one) {
		return ""
	}
	return Format(one / time.Duration(of) * time.Duration(n))
}

// RewriteRate returns a rate such as "5 per 15 minutes", "100/hour", "10k/s", "0.5/1s" or
// "5rps" as ParseLimit reads it: "5/15m".
func RewriteRate(s string) string {
	number, per, ok := strings.Cut(s, "/")
	for _, sep := range []string{" per ", " each ", " every ", " in ", " an ", " a "} {
		if !ok {
			number, per, ok = strings.Cut(s, sep)
		}
	}
	for _, unit := range []string{"s", "m", "h"} {
		if n, short := strings.CutSuffix(strings.ToLower(s), "p"+unit); !ok && short {
			number, per, ok = n, unit, true
		}
	}
	number = strings.TrimSpace(strings.ToLower(number))
	for _, noun := range []string{"requests", "request", "reqs", "req", "calls", "call", "tokens", "token", "times", "r", "q"} {
		number = strings.TrimSuffix(number, noun)
	}
	n, of := Count(number)
	length, err := Parse(strings.TrimSpace(per))
	if text := Rewrite(per); err != nil && text != "" {
		length, err = Parse(text)
	}
	if !ok || err != nil || n == 0 || of == 0 || int64(length) > math.MaxInt64/of || -length > MaxMonths/time.Duration(of) {
		return ""
	}
	return strconv.FormatInt(n, 10) + "/" + Format(length*time.Duration(of))
}

// Count reads a number such as "10k", "10_000" or "0.5" as n / of, in lowest terms. of is 0 if
// it cannot.
func Count(s string) (n, of int64) {
	s = strings.ToLower(strings.NewReplacer("_", "", ",", "", "'", "", " ", "").Replace(s))
	digits, times := strings.TrimRight(s, "kmg"), int64(1)
	switch s[len(digits):] {
	case "k":
		times = 1e3
	case "m":
		times = 1e6
	case "g":
		times = 1e9
	case "":
	default:
		return 0, 0
	}
	n, of = fraction(digits)
	if of == 0 || n > math.MaxInt64/times {
		return 0, 0
	}
	return lowest(n*times, of)
}

// fraction reads a number in decimal notation as n / of, in lowest terms.
func fraction(s string) (n, of int64) {
	whole, decimals, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole+decimals, 10, 64)
	if err != nil || n < 0 || len(decimals) > 9 {
		return 0, 0
	}
	of = 1
	for range decimals {
		of *= 10
	}
	return lowest(n, of)
}

func lowest(n, of int64) (int64, int64) {
	a, b := n, of
	for b > 0 {
		a, b = b, a%b
	}
	return n / a, of / a
}
