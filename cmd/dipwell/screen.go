package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Control sequences of ECMA-48 and xterm.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l\x1b[?7l" // alternate screen, no cursor, no line wrap
	screenClose = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineClear   = "\x1b[2K" // sent before a line, since after a full line the cursor is still on its last column
	lineEnd     = "\r\n"
	restClear   = "\x1b[J"
	bold        = "\x1b[1m"
	notBold     = "\x1b[0m"
)

// sizeEvery is how often the size of the terminal is checked.
const sizeEvery = 250 * time.Millisecond

// live shows reports until q, Ctrl-C or a signal.
func (c *TopCmd) live(e *env, out *os.File, last *topAnswer) error {
	ctx, quit := context.WithCancel(e.ctx) // quitting cancels a call in flight
	defer quit()
	if in, ok := e.stdin.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		if state, err := term.MakeRaw(int(in.Fd())); err == nil {
			defer func() { _ = term.Restore(int(in.Fd()), state) }()
			go func() { waitForQuit(in); quit() }()
		}
	}
	fmt.Fprint(out, screenOpen)
	defer fmt.Fprint(out, screenClose)
	next, resized := time.NewTicker(c.Interval), time.NewTicker(sizeEvery)
	defer next.Stop()
	defer resized.Stop()
	var report *topReport
	var callErr error
	width, height := c.draw(e, out, report, callErr)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-resized.C:
			if w, h := size(out); w == width && h == height {
				continue
			}
		case <-next.C:
			var now *topAnswer
			if now, callErr = c.ask(ctx, e); callErr == nil {
				report, last = compare(last, now), now
			}
		}
		width, height = c.draw(e, out, report, callErr)
	}
}

// waitForQuit returns on q, Ctrl-C, Ctrl-D and the end of the input.
func waitForQuit(in *os.File) {
	b := make([]byte, 16)
	for {
		n, err := in.Read(b)
		if err != nil || strings.ContainsAny(string(b[:n]), "qQ\x03\x04") {
			return
		}
	}
}

// size returns the size of the terminal, or 80 × 24 if it is not known.
func size(out *os.File) (width, height int) {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// draw writes a screen at once, so that it does not flicker. It returns the size of
// the terminal.
func (c *TopCmd) draw(e *env, out *os.File, r *topReport, callErr error) (width, height int) {
	width, height = size(out)
	lines := []topLine{{text: fit(fmt.Sprintf("dipwell top %s every %v, q ends", time.Now().Format(time.TimeOnly), c.Interval), width)}}
	switch {
	case callErr != nil && e.ctx.Err() == nil:
		lines = append(lines, topLine{fit("no answer: "+plain(callErr.Error()), width), true})
	case r == nil:
		lines = append(lines, topLine{text: "counting…"})
	}
	if r != nil {
		lines = append(lines, c.page(r, width)...)
	}
	fmt.Fprint(out, frame(lines, height, os.Getenv("NO_COLOR") == ""))
	return width, height
}

// frame returns the text that draws the lines that fit height.
func frame(lines []topLine, height int, color bool) string {
	var b strings.Builder
	b.WriteString(screenHome)
	for i, l := range lines[:min(len(lines), height)] {
		if i > 0 {
			b.WriteString(lineEnd)
		}
		b.WriteString(lineClear)
		if l.title && color {
			b.WriteString(bold + l.text + notBold)
		} else {
			b.WriteString(l.text)
		}
	}
	if len(lines) < height {
		b.WriteString(lineEnd + restClear)
	}
	return b.String()
}
