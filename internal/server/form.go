package server

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// eachParam calls f for each parameter of a query or form. Malformed ones are errors.
func eachParam(s string, f func(name, value string) error) error {
	for s != "" {
		var pair string
		if pair, s, _ = strings.Cut(s, "&"); pair == "" {
			continue
		}
		n, v, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(n)
		if err != nil || !utf8.ValidString(name) {
			return bad("query", "a parameter's name is not percent-encoded UTF-8")
		}
		value, err := url.QueryUnescape(v)
		if err != nil || !utf8.ValidString(value) {
			return bad(name, "is not percent-encoded UTF-8")
		}
		if err = f(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (q *request) param(name, value string) error {
	known := q.allowed &^ (hasTakes | hasKeys)
	m := known.member(name)
	if m == 0 {
		return bad(name, "unknown parameter; known are "+known.String())
	}
	if q.has(m) {
		return bad(name, "is given twice")
	}
	q.seen |= m
	if m != hasCosts {
		return q.setValue(formValue(m, value), &q.take, m, name)
	}
	for text := range strings.SplitSeq(value, ",") {
		if err := q.addCost(formValue(hasCost, text)); err != nil {
			return err
		}
	}
	return nil
}

// formValue returns the value of a parameter as JSON has it.
func formValue(m members, value string) gjson.Result {
	switch {
	case m&ofNumber != 0:
		return gjson.Result{Type: gjson.Number, Raw: value}
	case m == hasOK && value == "true":
		return gjson.Result{Type: gjson.True}
	case m == hasOK && value == "false":
		return gjson.Result{Type: gjson.False}
	}
	return gjson.Result{Type: gjson.String, Str: value}
}
