package main

import (
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
)

// Each line of dipwell limits is a limit that ParseLimit reads as it was defined.
func TestLimitsAreSettings(t *testing.T) {
	var want []dipwell.Limit
	texts := []string{
		"a=60/1m,burst=100,max_debt=unlimited,on_store_error=open,plans=banned:mode=blocked|pro:rate=600;burst=1000",
		"b=500/1s,adaptive=floor=50;latency=200ms;errors=2%",
		"c=10,algorithm=concurrency,ttl=1m",
		"d=5/1d,algorithm=fixed_window,start=06:00 Europe/Rome,mode=shadow,keys=list",
	}
	for _, text := range texts {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, l)
	}
	code, out, stderr := program(t, "limits", "--server", startAPI(t, server.Config{}, texts...))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != len(want) {
		t.Fatalf("%d\n%s%s", code, out, stderr)
	}
	for i, line := range lines {
		text, owner, _ := strings.Cut(line, "  (")
		if got, err := dipwell.ParseLimit(text); err != nil || got.String() != want[i].String() || owner != "code)" && owner != "code; 500 per period at present in that process: defined)" {
			t.Errorf("%s\n%v, %v; want %v", line, got, err, want[i])
		}
	}
}
