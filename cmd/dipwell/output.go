package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// output is standard output or standard error. It keeps the first error, so that no command
// ends as if its answer had been printed.
//
// Keys, notes and names come from others. Characters that control a terminal, or the order in
// which it shows a text, are written as \u and their number, except ends of lines and tabs.
// In JSON the escaped text means the same.
type output struct {
	to   io.Writer
	mu   sync.Mutex
	err  error
	rest []byte // the beginning of a character whose other bytes were not written yet
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.to.Write(o.escape(b))
	if err != nil {
		o.err = cmp.Or(o.err, err)
		return min(n, len(b)), err
	}
	return len(b), nil
}

// escape keeps an unfinished character for the next call.
func (o *output) escape(b []byte) []byte {
	b = append(o.rest, b...)
	out := make([]byte, 0, len(b))
	for len(b) > 0 && utf8.FullRune(b) {
		r, n := utf8.DecodeRune(b)
		if r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) { // C0, DEL, C1, and the direction of text
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = utf8.AppendRune(out, r) // U+FFFD stands for a byte that is not UTF-8
		}
		b = b[n:]
	}
	o.rest = b
	return out
}

// terminal returns the terminal that an output writes to, or nil.
func (o *output) terminal() *os.File {
	if f, ok := o.to.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}
