package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/texts"
)

// scanner parses JSON in place, and more strictly than encoding/json: invalid UTF-8
// and text after the end are errors. Callers reject repeated members.
type scanner struct {
	b   []byte
	pos int
}

// errSyntax returns a syntax error at the current position.
func (s *scanner) errSyntax(want string) error {
	if s.pos >= len(s.b) {
		return bad("body", "is not JSON: it ends where "+want+" should be")
	}
	return bad("body", fmt.Sprintf("is not JSON: at byte %d, where %s should be", s.pos, want))
}

func (s *scanner) space() {
	for s.pos < len(s.b) {
		switch s.b[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// next skips space, and consumes c if it is the next byte.
func (s *scanner) next(c byte) bool {
	s.space()
	if s.pos < len(s.b) && s.b[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// peek returns the next byte that is not space, or 0.
func (s *scanner) peek() byte {
	if s.space(); s.pos < len(s.b) {
		return s.b[s.pos]
	}
	return 0
}

// parseObject parses a body that is an object. member parses the value of each member.
func parseObject(b []byte, member func(s *scanner, name string) error) error {
	s := scanner{b: b}
	if err := s.object(func(name string) error { return member(&s, name) }); err != nil {
		return err
	}
	return s.end()
}

// object parses an object. f parses the value of each member.
func (s *scanner) object(f func(name string) error) error {
	if !s.next('{') {
		return s.errSyntax("an object")
	}
	if s.next('}') {
		return nil
	}
	for {
		name, err := s.str("body")
		if err != nil {
			return err
		}
		if !s.next(':') {
			return s.errSyntax("a colon")
		}
		if err = f(name); err != nil {
			return err
		}
		if s.next('}') {
			return nil
		}
		if !s.next(',') {
			return s.errSyntax("a comma")
		}
	}
}

// array parses an array. f parses each of its values.
func (s *scanner) array(field string, f func() error) error {
	if !s.next('[') {
		return s.notA(field, "an array")
	}
	if s.next(']') {
		return nil
	}
	for {
		if err := f(); err != nil {
			return err
		}
		if s.next(']') {
			return nil
		}
		if !s.next(',') {
			return s.errSyntax("a comma")
		}
	}
}

// key parses a key: a string, or an array with the parts of a path.
func (s *scanner) key(field string) (string, error) {
	if s.peek() != '[' {
		return s.str(field)
	}
	var parts []string
	err := s.array(field, func() error {
		part, err := s.str(field)
		if err == nil && part == "" {
			err = bad(field, fmt.Sprintf("part %d is empty", len(parts)+1))
		}
		parts = append(parts, part)
		return err
	})
	if err == nil && len(parts) == 0 {
		err = bad(field, "has no parts; leave it out if the limit is shared")
	}
	return dipwell.Key(parts...), err
}

// end returns an error if anything but space follows.
func (s *scanner) end() error {
	if s.space(); s.pos < len(s.b) {
		return bad("body", fmt.Sprintf("has text after its end, at byte %d", s.pos))
	}
	return nil
}

// str parses a string. field is for errors.
func (s *scanner) str(field string) (string, error) {
	if !s.next('"') {
		if field == "body" {
			return "", s.errSyntax("a string")
		}
		return "", s.notA(field, "a string")
	}
	from := s.pos
	for i := from; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			s.pos = i + 1
			return intern(s.b[from:i]), nil
		case c == '\\' || c < ' ' || c >= utf8.RuneSelf:
			return s.slowStr(field, from, i)
		}
	}
	s.pos = len(s.b)
	return "", s.errSyntax("the end of a string")
}

// intern returns string(b), without an allocation for the most frequent names.
func intern(b []byte) string {
	switch string(b) {
	case "limit":
		return "limit"
	case "key":
		return "key"
	case "cost":
		return "cost"
	}
	return string(b)
}

// notA returns the error of a value of the wrong kind, or a syntax error if it is
// not JSON.
func (s *scanner) notA(field, kind string) error {
	if c := s.peek(); c == '"' || c == '{' || c == '[' || c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f' || c == 'n' {
		return bad(field, "must be "+kind)
	}
	return s.errSyntax("a value")
}

var (
	pairs    = regexp.MustCompile(`(?i)\\\\|\\ud[89ab]..\\ud[c-f]..`) // an escaped backslash, or both halves of a surrogate pair
	halfPair = regexp.MustCompile(`(?i)\\ud[89a-f]`)
)

// slowStr continues str for a string with escapes or non-ASCII bytes.
func (s *scanner) slowStr(field string, from, i int) (text string, err error) {
	for ; i < len(s.b) && s.b[i] != '"'; i++ {
		if s.pos = i; s.b[i] < ' ' {
			return "", s.errSyntax("no control character")
		}
		if s.b[i] == '\\' {
			i++
		}
	}
	if i >= len(s.b) {
		s.pos = len(s.b)
		return "", s.errSyntax("the end of a string")
	}
	s.pos = i + 1
	switch raw := s.b[from:i]; {
	case !utf8.Valid(raw):
		err = bad(field, "is not valid UTF-8")
	case halfPair.Match(pairs.ReplaceAll(raw, nil)) || json.Unmarshal(s.b[from-1:i+1], &text) != nil:
		err = bad(field, "has a bad escape")
	}
	return text, err
}

// number returns the text of a number. field is for errors.
func (s *scanner) number(field string) (string, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		return "", s.notA(field, "a number")
	}
	return s.word(), nil
}

// word returns the text up to the next space or punctuation.
func (s *scanner) word() string {
	from := s.pos
	for s.pos < len(s.b) {
		switch s.b[s.pos] {
		case ' ', '\t', '\n', '\r', ',', '}', ']', ':', '"', '{', '[':
			return string(s.b[from:s.pos])
		}
		s.pos++
	}
	return string(s.b[from:])
}

// integer parses a cost, without an allocation if it is short.
func (s *scanner) integer(field string) (int64, error) {
	s.space()
	var n int64
	i := s.pos
	for ; i < len(s.b) && i < s.pos+15 && s.b[i] >= '0' && s.b[i] <= '9'; i++ {
		n = n*10 + int64(s.b[i]-'0')
	}
	if digits := i - s.pos; i < len(s.b) && digits > 0 && (digits == 1 || s.b[s.pos] != '0') {
		switch s.b[i] {
		case ',', '}', ']', ' ', '\n':
			s.pos = i
			return n, nil
		}
	}
	word, err := s.number(field)
	if err != nil {
		return 0, err
	}
	return parseCost(field, word)
}

// scalar returns a string, a number or a boolean as text.
func (s *scanner) scalar(field string) (string, error) {
	switch s.peek() {
	case '"':
		return s.str(field)
	case 't', 'f':
		if word := s.word(); word == "true" || word == "false" {
			return word, nil
		}
		return "", bad(field, "must be a string, a number or a boolean")
	}
	word, err := s.number(field)
	if err != nil {
		return "", bad(field, "must be a string, a number or a boolean")
	}
	if _, err = strconv.ParseFloat(word, 64); err != nil && !errors.Is(err, strconv.ErrRange) {
		return "", bad(field, fmt.Sprintf("%q is not a number", word))
	}
	return word, nil
}

// setting is scalar for a setting that set would set. If the value is of another kind and
// set does not know the name, the error is about the name.
func (s *scanner) setting(field, name string, set func(name, value string) error) (string, error) {
	value, err := s.scalar(field)
	if err != nil {
		if reason := texts.Unknown(set, name); reason != "" {
			err = bad(field, reason)
		}
	}
	return value, err
}
