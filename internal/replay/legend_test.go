package replay

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/recorder"
)

// manyKeys is a log in which each key is refused.
func manyKeys(keys int) []byte {
	var b bytes.Buffer
	for i := range 4000 {
		fmt.Fprintf(&b, "2001:0db8:85a3:0000:0000:8a2e:0370:%04x - - [14/Mar/2026:09:%02d:%02d +0000] \"GET /\"\n", i%keys, i/400, i/7%60)
	}
	return b.Bytes()
}

// The legend is above the lines and inside the page for any number of keys and any
// debt.
func TestLegendIsClear(t *testing.T) {
	const width, height = plotWidth, 2*panelHeight + 2*plotMargin
	for _, limit := range []string{"page=12/1m,burst=15", "queue=1/10s,algorithm=leaky_bucket,max_debt=90", "one=1/1d"} {
		for keys := 1; keys <= maxLevels; keys++ {
			rep, err := Run(context.Background(), inMemory(manyKeys(keys)), Options{Limits: limits(t, limit), Levels: keys})
			if err != nil {
				t.Fatal(err)
			}
			var page recorder.Canvas
			panels := rep.panels()
			drawPanels(draw.NewCanvas(&page, width, height), panels)
			style := panels[1][0].X.Tick.Label
			names, lowest, highest := 0, vg.Length(math.Inf(1)), vg.Length(0)
			for _, a := range page.Actions {
				switch a := a.(type) {
				case *recorder.FillString:
					if strings.HasPrefix(a.String, "2001:") {
						names, lowest = names+1, min(lowest, a.Point.Y)
						if right := a.Point.X + style.Width(a.String); right > width {
							t.Errorf("%s, %d keys: %s ends at %v, beyond the page's %v", limit, keys, a.String, right, width)
						}
					}
				case *recorder.Stroke:
					if len(a.Path) > 2 { // a bucket's level
						top := slices.MaxFunc(a.Path, func(a, b vg.PathComp) int { return int(a.Pos.Y*1e3 - b.Pos.Y*1e3) })
						highest = max(highest, top.Pos.Y)
					}
				}
			}
			if names != keys || highest == 0 || highest > lowest-2 {
				t.Errorf("%s, %d keys: %d names down to %v, lines up to %v", limit, keys, names, lowest, highest)
			}
			if n := len(panels[1][0].Y.Tick.Marker.Ticks(panels[1][0].Y.Min, panels[1][0].Y.Max)); n < 2 || n > 6 {
				t.Errorf("%s: %d ticks", limit, n)
			}
		}
	}
}
