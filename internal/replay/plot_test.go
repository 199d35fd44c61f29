package replay

import (
	"encoding/xml"
	"strings"
	"testing"
)

type element struct {
	Text string `xml:",chardata"`
}

// draw returns the elements of a plot.
func draw(t *testing.T, r *Report) []element {
	t.Helper()
	var b strings.Builder
	if err := r.WritePlot(&b); err != nil {
		t.Fatal(err)
	}
	var svg struct {
		Elements []element `xml:",any"`
	}
	if err := xml.Unmarshal([]byte(b.String()), &svg); err != nil {
		t.Fatal(err)
	}
	return svg.Elements
}

// Text is text, whatever is in it.
func TestTextIsEscaped(t *testing.T) {
	nasty := "</text><script>&\x1b\x00\xff\""
	elements := draw(t, &Report{Log: nasty, By: nasty, Limits: []Limit{{Limit: nasty}}})
	shown := 0
	for _, e := range elements {
		if strings.Contains(e.Text, "<script>") {
			shown++
		}
	}
	if shown != 3 { // the title twice
		t.Errorf("%d: %+v", shown, elements)
	}
}

func TestSteps(t *testing.T) {
	for most, want := range map[float64]string{1: "0|1", 5: "0|1|2|3|4|5", 17: "0|5|10|15", 120: "0|50|100", 1e6: "0|200k|400k|600k|800k|1M"} {
		var got []string
		for _, v := range steps(most) {
			got = append(got, axisText(v))
		}
		if strings.Join(got, "|") != want {
			t.Errorf("up to %v: %q, want %q", most, strings.Join(got, "|"), want)
		}
	}
}
