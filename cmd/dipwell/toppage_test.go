package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rivo/uniseg"
)

// screen is a terminal that does not wrap lines: what screenOpen makes of one.
// It knows only what frame sends, and fails on anything else.
type screen struct {
	t        *testing.T
	cells    [][]string // of a row; the right half of a wide character is ""
	row, col int
}

func newScreen(t *testing.T, width, height int) *screen {
	s := &screen{t: t}
	for range height {
		s.cells = append(s.cells, slices.Repeat([]string{" "}, width))
	}
	return s
}

// clear erases from the cursor, or from the row's start, to the row's end.
func (s *screen) clear(row, from int) {
	for i := from; i < len(s.cells[row]); i++ {
		s.cells[row][i] = " "
	}
}

func (s *screen) write(text string) {
	for text != "" {
		switch {
		case strings.HasPrefix(text, "\x1b["):
			end := strings.IndexAny(text, "HJKm") + 1
			s.control(text[2:end])
			text = text[end:]
		case text[0] == '\r':
			s.col, text = 0, text[1:]
		case text[0] == '\n':
			s.row, text = s.row+1, text[1:]
			if s.row == len(s.cells) {
				s.t.Fatal("the screen scrolls")
			}
		default:
			c, rest, width, _ := uniseg.FirstGraphemeClusterInString(text, -1)
			s.put(c, width)
			text = rest
		}
	}
}

// put writes a character. Beyond the last column it overwrites what is there.
func (s *screen) put(c string, width int) {
	last := len(s.cells[s.row]) - width
	s.col = min(s.col, last)
	s.cells[s.row][s.col] = c
	for i := 1; i < width; i++ {
		s.cells[s.row][s.col+i] = ""
	}
	s.col += width
}

func (s *screen) control(seq string) {
	col := min(s.col, len(s.cells[0])-1) // after the last character the cursor stays on it
	switch seq {
	case "H":
		s.row, s.col = 0, 0
	case "K":
		s.clear(s.row, col)
	case "2K":
		s.clear(s.row, 0)
	case "J":
		s.clear(s.row, col)
		for i := s.row + 1; i < len(s.cells); i++ {
			s.clear(i, 0)
		}
	case "1m", "0m":
	default:
		s.t.Fatalf("unknown sequence %q", seq)
	}
}

func (s *screen) rows() (out []string) {
	for _, r := range s.cells {
		out = append(out, strings.TrimRight(strings.Join(r, ""), " "))
	}
	return out
}

func someReport(keys ...string) *topReport {
	r := &topReport{topAnswer: topAnswer{Window: 60e6, Shed: 12345}, PerSecond: topRate{Decisions: 1234567, Refused: 23456}}
	for i := range 12 {
		r.ByLimit = append(r.ByLimit, topRate{fmt.Sprintf("limit-%d-of-a-long-name", i), 123456, 123455, 9, 987})
	}
	for i, list := range []*topList{&r.Busiest, &r.Refused} {
		list.Counted, list.Unlisted = 200e6, 17
		for j, k := range keys {
			list.Keys = append(list.Keys, topKey{"login", &k, uint64(98765432 + i + j), 1234567})
		}
	}
	return r
}

// At every usual width what a terminal shows is the page, with no number cut.
func TestTopAtEveryWidth(t *testing.T) {
	c := &TopCmd{N: 10}
	r := someReport("user:7", strings.Repeat("a long key ", 40), "鍵は二つの幅を持つ文字で書かれているので長い場合があります", "e\u0301 👩‍👩‍👧 combined")
	for width := 72; width <= 200; width++ {
		const height = 60
		page := c.page(r, width)
		s := newScreen(t, width, height)
		for range 2 { // the second is drawn over the first
			s.write(frame(page, height, true))
		}
		rows := s.rows()
		for i, l := range page {
			if n := columns(l.text); n > width {
				t.Fatalf("width %d: line %d takes %d columns: %s", width, i, n, l.text)
			}
			if rows[i] != strings.TrimRight(l.text, " ") {
				t.Fatalf("width %d: the terminal shows\n%q, not\n%q", width, rows[i], l.text)
			}
		}
		text := strings.Join(rows, "\n")
		for _, want := range []string{"FALLBACK", "OF ALL", "AT LEAST", " 49.4 %", " 123456 ", " 987", "each other key at most 17", "and 2 more limits",
			"12345 calls turned", "BUSIEST KEYS, 1m0s", "MOST REFUSED KEYS, 1m0s", "(1.9 %)", "were in flight"} {
			if !strings.Contains(strings.ReplaceAll(text, "\n", " "), want) {
				t.Fatalf("width %d: %q is not in\n%s", width, want, text)
			}
		}
		if strings.Contains(text, "FALLBACK…") || !strings.Contains(text, strconv.Itoa(98765432-1234567)) {
			t.Fatalf("width %d: a number is cut\n%s", width, text)
		}
	}
}

// A screen that is shorter than the page, or just as high, shows its beginning.
func TestTopIsCutBelow(t *testing.T) {
	page := (&TopCmd{N: 10}).page(someReport("user:7"), 80)
	for _, height := range []int{1, 3, len(page) - 1, len(page), len(page) + 1, len(page) + 9} {
		s := newScreen(t, 80, height)
		for i := range height {
			s.row, s.col = i, 0
			s.write(strings.Repeat("x", 80))
		}
		s.write(frame(page, height, false))
		rows := s.rows()
		for i, got := range rows {
			if want := ""; i < len(page) {
				if want = page[i].text; got != want {
					t.Errorf("height %d, line %d: %q, want %q", height, i, got, want)
				}
			} else if got != "" {
				t.Errorf("height %d: line %d is left from before: %q", height, i, got)
			}
		}
	}
}
