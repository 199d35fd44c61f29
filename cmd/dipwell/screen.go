package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// What a terminal is told, in the words of ECMA-48 and xterm.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l\x1b[?7l" // another screen, no cursor, long lines are cut
	screenClose = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineClear   = "\x1b[2K" // before a line: after one of full width the cursor stands on its last column
	lineEnd     = "\r\n"
	restClear   = "\x1b[J"
	bold        = "\x1b[1m"
	notBold     = "\x1b[0m"
)

// sizeEvery is how soon a window that was resized is drawn anew.
const sizeEvery = 250 * time.Millisecond

// live shows report after report until q, Ctrl-C or a signal.
func (c *TopCmd) live(e *env, out *os.File, last *topAnswer) error {
	ctx, quit := context.WithCancel(e.ctx) // so that an answer that does not come keeps nobody
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
	var trouble error
	width, height := c.draw(e, out, report, trouble)
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
			if now, trouble = c.ask(ctx, e); trouble == nil {
				report, last = compare(last, now), now
			}
		}
		width, height = c.draw(e, out, report, trouble)
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

// size is that of the terminal, or what one is taken for that does not say.
func size(out *os.File) (width, height int) {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// draw writes a screen in one go, so that it does not flicker.
func (c *TopCmd) draw(e *env, out *os.File, r *topReport, trouble error) (width, height int) {
	width, height = size(out)
	lines := []topLine{{text: fit(fmt.Sprintf("dipwell top %s every %v, q ends", time.Now().Format(time.TimeOnly), c.Interval), width)}}
	switch {
	case trouble != nil && e.ctx.Err() == nil:
		lines = append(lines, topLine{fit("no answer: "+plain(trouble.Error()), width), true})
	case r == nil:
		lines = append(lines, topLine{text: "counting…"})
	}
	if r != nil {
		lines = append(lines, c.page(r, width)...)
	}
	fmt.Fprint(out, frame(lines, height, os.Getenv("NO_COLOR") == ""))
	return width, height
}

// frame is what a terminal is sent for the lines that fit its height.
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
