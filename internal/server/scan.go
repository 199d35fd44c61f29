package server

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/texts"
)

var (
	pairs    = regexp.MustCompile(`(?i)\\\\|\\ud[89ab]..\\ud[c-f]..`) // matches an escaped backslash, or both halves of a surrogate pair
	halfPair = regexp.MustCompile(`(?i)\\ud[89a-f]`)
)

// parseObject calls member for each member of a body that is an object. Texts with invalid
// UTF-8 are errors. Callers reject repeated members.
func parseObject(b []byte, member func(name string, v gjson.Result) error) error {
	if !json.Valid(b) {
		return bad("body", "is not JSON: "+json.Unmarshal(b, new(any)).Error())
	}
	return eachMember("body", gjson.ParseBytes(b), member)
}

// eachMember calls f for each member of an object, called field in errors.
func eachMember(field string, v gjson.Result, f func(name string, v gjson.Result) error) (err error) {
	if !v.IsObject() {
		return bad(field, "must be an object")
	}
	v.ForEach(func(name, value gjson.Result) bool {
		var text string
		if text, err = textOf(field, name); err == nil {
			err = f(text, value)
		}
		return err == nil
	})
	return err
}

// eachValue calls f for each value of an array.
func eachValue(field string, v gjson.Result, f func(v gjson.Result) error) (err error) {
	if !v.IsArray() {
		return bad(field, "must be an array")
	}
	v.ForEach(func(_, value gjson.Result) bool {
		err = f(value)
		return err == nil
	})
	return err
}

// keyOfJSON returns a key: a string, or an array with the parts of a path.
func keyOfJSON(field string, v gjson.Result) (string, error) {
	if !v.IsArray() {
		return textOf(field, v)
	}
	var parts []string
	err := eachValue(field, v, func(v gjson.Result) error {
		part, err := textOf(field, v)
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

func textOf(field string, v gjson.Result) (string, error) {
	switch {
	case v.Type != gjson.String:
		return "", bad(field, "must be a string")
	case !utf8.ValidString(v.Raw):
		return "", bad(field, "is not valid UTF-8")
	case halfPair.MatchString(v.Raw) && halfPair.MatchString(pairs.ReplaceAllString(v.Raw, "")):
		return "", bad(field, "has half of a surrogate pair")
	}
	return v.Str, nil
}

func costOf(field string, v gjson.Result) (int64, error) {
	if v.Type != gjson.Number {
		return 0, bad(field, "must be a number")
	}
	return parseCost(field, v.Raw)
}

func spanOf(field string, v gjson.Result) (time.Duration, error) {
	text, err := textOf(field, v)
	if err != nil {
		return 0, err
	}
	return parseSpan(field, text)
}

// scalarOf returns a string, a number or a boolean as text.
func scalarOf(field string, v gjson.Result) (string, error) {
	switch v.Type {
	case gjson.String:
		return textOf(field, v)
	case gjson.Number, gjson.True, gjson.False:
		return v.Raw, nil
	}
	return "", bad(field, "must be a string, a number or a boolean")
}

// setSetting sets a setting whose value is a scalar. If it is not and set does not know the
// name, the error is about the name.
func setSetting(field, name string, v gjson.Result, set func(name, value string) error) error {
	value, err := scalarOf(field, v)
	if err == nil {
		return set(name, value)
	}
	if reason := texts.Unknown(set, name); reason != "" {
		return bad(field, reason)
	}
	return err
}
