package store_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sourceMutants are deliberate mistakes in this package: in file, old is replaced by
// wrong. The tests that run matches must notice.
var sourceMutants = []struct{ name, file, old, wrong, run string }{
	{"floor not subtracted", "choose.go", "lower.Cap -= units", "lower.Cap -= 0", "TestPlansReference"},
	{"an override decides at its end", "override.go", "o.Until == 0 || t < o.Until", "o.Until == 0 || t <= o.Until", "TestPlansReference"},
	{"plans convert at the end of a version", "carry.go", "move(d.placeOf(target), Keep, t)", "move(d.placeOf(target), StartOver, t)", "TestHoldsBesidePlans"},
	{"lows not converted", "carry.go", "s.Lows = s.Lows.carry(func(units int64) int64 { return v.policy.giveBack(units, v.from, v.to) })", "_ = v", "TestHoldsBesidePlans"},
	{"records not converted to an override", "table.go", "if records[i].Units = give(records[i].Units); records[i].Slack >= 0 {", "if records[i].Slack >= 0 {", "TestHoldsBesidePlans"},
	{"lows not converted to an override", "table.go", "row.Lows = row.Lows.carry(give)", "_ = give", "TestHoldsBesidePlans"},
	{"settle of an expired hold charges nothing", "settle.go", "counted, back = 0, p.Cost", "counted, back = p.Cost, p.Cost", "TestHoldsReference"},
	{"settle ignores the lows", "giveback.go", "units = lesser(units, e.Used)", "units = lesser(units, MaxInt)", "TestHoldsReference"},
	{"extend does not move the record", "settle.go", "if r.Expires, e.changed = h.Expires, true; p.Keep {", "if e.changed = true; p.Keep {", "TestHoldsReference|TestConcurrencyReference"},
}

// TestMutantsAreCaught checks that each mistake can be made. With DIPWELL_LONG=1 it
// makes each, and checks that the tests fail.
func TestMutantsAreCaught(t *testing.T) {
	for _, m := range sourceMutants {
		t.Run(m.name, func(t *testing.T) {
			source, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%s has %q %d times; want it once", m.file, m.old, n)
			}
			if os.Getenv("DIPWELL_LONG") == "" {
				return
			}
			dir := t.TempDir()
			path, err := filepath.Abs(m.file)
			if err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: filepath.Join(dir, m.file)}})
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, m.file), []byte(strings.Replace(string(source), m.old, m.wrong, 1)), 0o600)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-failfast", "-timeout=1m", "-overlay="+filepath.Join(dir, "overlay.json"), "-run", m.run, ".").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: Test") && !strings.Contains(string(out), "fatal error: ") {
				t.Errorf("%s noticed nothing: %v\n%s", m.run, err, out)
			}
		})
	}
}
