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
	{"lows not converted", "carry.go", "s.Lows = s.Lows.carry(give)", "_ = give", "TestHoldsBesidePlans"},
	{"records not converted to an override", "table.go", "if records[i].Units = give(records[i].Units); records[i].Slack >= 0 {", "if records[i].Slack >= 0 {", "TestHoldsBesidePlans"},
	{"lows not converted to an override", "table.go", "row.Lows = row.Lows.carry(give)", "_ = give", "TestHoldsBesidePlans"},
	{"settle of an expired hold charges nothing", "settle.go", "counted = 0", "counted = p.Cost", "TestHoldsReference"},
	{"settle ignores the lows", "giveback.go", "units = min(units, e.Used)", "units = min(units, MaxInt)", "TestHoldsReference"},
	{"extend does not move the record", "settle.go", "if r.Expires, e.changed = h.Expires, true; p.Keep {", "if e.changed = true; p.Keep {", "TestHoldsReference|TestConcurrencyReference"},
	{"holds expire a microsecond late", "hold.go", `return r.Hold != "" && !r.Rest && r.Expires <= now`, `return r.Hold != "" && !r.Rest && r.Expires <= now-1`, "TestGolden$"},
	{"a hold lives a microsecond longer", "hold.go", "return !h.Settled && h.Expires > now &&", "return !h.Settled && h.Expires > now-1 &&", "TestGolden$"},
	{"expired holds are not given back by a call", "table.go", "e.row, e.records, err = e.own(now).expire(e.row, e.key, now, e.records)", "_ = err", "TestGolden$"},
	{"holds are forgotten after a minute", "hold.go", "return end + ForgetAfter(h.TTL)", "return end + minForget", "TestHold|TestGolden$"},
	{"another call with the same id is the same hold", "hold.go", "if h.Call != g.call() || !h.live(now) {", "if !h.live(now) {", "TestGolden$"},
	{"the last hold to expire counts first", "hold.go", "held, func(a, b Record) int { return cmp.Compare(a.Expires, b.Expires) }", "held, func(a, b Record) int { return cmp.Compare(b.Expires, a.Expires) }", "TestGolden$"},
	{"the retry of a concurrency limit is a microsecond early", "hold.go", "op.Never, op.Retry, op.Bound = at < 0, max(at-now, 0),", "op.Never, op.Retry, op.Bound = at < 0, max(at-now-1, 0),", "TestGolden$"},
	{"a floor does not hold for a concurrency limit's retry", "hold.go", "need := op.Cost + op.Floor", "need := op.Cost", "TestGolden$|TestConcurrency"},
	{"settle gives back twice", "settle.go", "if !h.Settled && !p.Reset && !p.Free {", "if !p.Reset && !p.Free {", "TestGolden$"},
	{"a settled hold takes other costs", "settle.go", "if h.Settled && !slices.Equal(costs, h.Costs) {", "if h.Settled && len(costs) == 0 {", "TestGolden$"},
	{"settle of a concurrency limit charges", "settle.go", "if cost <= counted || e.own(now).Algorithm == Concurrency {", "if cost <= counted {", "TestGolden$"},
	{"a kept hold gives back when it is settled late", "settle.go", "if i < 0 && !p.Keep {", "if i < 0 {", "TestGolden$"},
	{"an expired hold is extended", "settle.go", "if !h.live(now) {\n\t\treturn ErrHoldConflict\n\t}\n\th.Expires", "if h.Settled {\n\t\treturn ErrHoldConflict\n\t}\n\th.Expires", "TestGolden$"},
	{"levels take their own in a TakeUpTo", "store.go", "if op.Granted > least {", "if op.Granted < least {", "TestGolden$"},
	{"five levels", "parents.go", "case levels == terms.MaxLevels:", "case levels > terms.MaxLevels:", "Parent"},
	{"a limit is above itself", "parents.go", "case child.Parent == l.Name:", "case child.Parent == l.Name && levels > terms.MaxLevels:", "Parent"},
	{"a parent is dropped", "parents.go", "if d.Parent == name {", "if d.Parent == name && d.Parts > 0 {", "Parent|Drop"},
	{"ending no override converts the row", "table.go", "top == nil && was == nil {", "top == nil && was == nil && now < 0 {", "TestGolden$"},
	{"an override stays after its end", "table.go", "e.override.At(max(now, e.row.TS))", "e.override.At(0)", "TestGolden$|TestPlans|TestOverride"},
	{"an unlimited plan is charged by settle", "table.go", "Free: took == 0,", "Free: op.Cost == 0,", "TestGolden$"},
	{"blocked refuses a settle", "store.go", "op.Def.Mode > Shadow && op.Verb < VerbCharge", "op.Def.Mode > Shadow && op.Verb <= VerbCharge", "TestGolden$|TestPlans"},
	{"blocked without an end is refused until a time", "choose.go", "op.Def.Override != nil && op.Def.Override.Until != 0", "op.Def.Override != nil", "TestGolden$|TestPlans"},
	{"a plan decides before the override", "choose.go", "case o != nil:", "case op.Def.Plan == \"\" && o != nil:", "TestPlansReference|TestGolden$"},
	{"an override that ends refuses for ever", "choose.go", "op.Never, op.Retry = false, end", "_ = end", "TestPlansReference"},
	{"the retry is beyond the end of the override", "choose.go", "op.Retry, op.Bound = min(op.Retry, end), true", "op.Bound = true", "TestPlansReference"},
	{"the standing override is lost at the end of the other", "carry.go", "move(place{override: at.override.Under, i: at.i}, Keep, at.override.Until)\n\t}\n\tif target", "move(place{i: at.i}, Keep, at.override.Until)\n\t}\n\tif target", "TestPlansReference|TestGolden$"},
	{"numbers over the base instead of the standing override", "override.go", "if o.Under != nil {\n\t\tp =", "if o.Under == nil && o.Until < 0 {\n\t\tp =", "TestPlansReference"},
	{"a floor in place of the cost", "choose.go", "if units > r.Cap {", "if units >= r.Cap {", "TestPlansReference|TestGolden$"},
	{"each level of a hold is settled to the first cost", "settle.go", "case p.Takes&(1<<j) == 0:", "case j > 0:", "TestGolden$"},
	{"the parts of a hold are settled to the first cost", "settle.go", "entries[i].settle(t, op.Def, p, g.Hold.ID, costs[i], now)", "entries[i].settle(t, op.Def, p, g.Hold.ID, costs[0], now)", "TestGolden$"},
	{"a hold of a concurrency limit is not counted", "table.go", "if op.Verb == VerbCharge || op.Def.Mode == Unlimited && op.Def.Algorithm != Concurrency {", "if op.Verb == VerbCharge || op.Def.Mode == Unlimited {", "TestGolden$"},
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
