package replay

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
)

type element struct {
	XMLName xml.Name
	X       float64 `xml:"x,attr"`
	Y       float64 `xml:"y,attr"`
	Points  string  `xml:"points,attr"`
	Text    string  `xml:",chardata"`
}

// draw returns the elements of a chart.
func draw(t *testing.T, c *chart) []element {
	t.Helper()
	var b strings.Builder
	if err := c.writeSVG(&b); err != nil {
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

// The legend is above the lines and inside the page for any number of keys and any debt.
func TestLegendIsClear(t *testing.T) {
	for _, low := range []float64{0, -90} {
		for keys := 1; keys <= 8; keys++ {
			p := panel{Unit: "tokens", Low: low, High: 15}
			for i := range keys {
				p.Series = append(p.Series, series{Name: fmt.Sprintf("2001:0db8:85a3:0000:0000:8a2e:0370:%04x", i), Color: blue, Line: []dot{{0, 15}, {1, low}}})
			}
			names, lowest, highest := 0, 0.0, math.Inf(1)
			for _, e := range draw(t, &chart{To: 1, Panels: []panel{p}}) {
				if strings.HasPrefix(e.Text, "2001:") {
					names, lowest = names+1, max(lowest, e.Y)
					if e.X+char*float64(len(e.Text)) > width {
						t.Errorf("%d keys: %s begins at %v", keys, e.Text, e.X)
					}
				}
				for point := range strings.FieldsSeq(e.Points) {
					_, text, _ := strings.Cut(point, ",")
					y, err := strconv.ParseFloat(text, 64)
					if err != nil {
						t.Fatal(err)
					}
					highest = min(highest, y)
				}
			}
			if names != keys || highest < lowest+2 {
				t.Errorf("%d keys: %d names down to %v, lines up to %v", keys, names, lowest, highest)
			}
		}
	}
}

// Text is text, whatever is in it.
func TestTextIsEscaped(t *testing.T) {
	nasty := "</text><script>&\x1b\x00\xff\""
	elements := draw(t, &chart{Title: nasty, To: 1, Ticks: []tick{{0, nasty}}, Panels: []panel{{Title: nasty, Unit: nasty, High: 1, Series: []series{{Name: nasty}}}}})
	shown := 0
	for _, e := range elements {
		if strings.Contains(e.Text, "<script>") {
			shown++
		}
	}
	if shown != 6 { // the title twice
		t.Errorf("%d: %+v", shown, elements)
	}
}

func TestSteps(t *testing.T) {
	for most, want := range map[float64]string{1: "0|1", 5: "0|1|2|3|4|5", 17: "0|5|10|15", 120: "0|50|100", 1e6: "0|200k|400k|600k|800k|1M"} {
		var got []string
		for _, v := range steps(0, most) {
			got = append(got, axisText(v))
		}
		if strings.Join(got, "|") != want {
			t.Errorf("up to %v: %q, want %q", most, strings.Join(got, "|"), want)
		}
	}
}
