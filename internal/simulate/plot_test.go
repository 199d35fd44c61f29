package simulate

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestPlot checks that a picture is well-formed, shows each limit and the faults, and is
// the same each time.
func TestPlot(t *testing.T) {
	var pictures [2]string
	for i := range pictures {
		var b strings.Builder
		if err := Run(19, Options{Steps: 60}).Plot(&b, Options{Steps: 60}); err != nil {
			t.Fatal(err)
		}
		pictures[i] = b.String()
	}
	if pictures[0] != pictures[1] {
		t.Error("two pictures of one history differ")
	}
	for d := xml.NewDecoder(strings.NewReader(pictures[0])); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	h := Options{Steps: 60}.history(19)
	for _, l := range h.limits {
		if !strings.Contains(pictures[0], l.Name+" &#34;") {
			t.Errorf("limit %s is not in the picture", l.Name)
		}
	}
	for i := range h.steps {
		if s := &h.steps[i]; s.kind > holds && !strings.Contains(pictures[0], s.kind.String()) {
			t.Errorf("no %q in the picture", s.kind)
		}
	}
	if !strings.Contains(pictures[0], "promised: at most") {
		t.Error("no promise in the picture")
	}
}
