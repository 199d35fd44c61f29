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
	{"lows not converted", "giveback.go", "c.Entries[i].Used = algebra.MulDiv(c.Entries[i].Used, to, from, false)", "_ = i", "TestHoldsBesidePlans"},
	{"records not converted", "giveback.go", "return algebra.MulDiv(r.Units, unit, r.Unit, false)", "return r.Units", "TestHoldsBesidePlans"},
	{"a fraction beside live records", "giveback.go", "policy, s.Lows = Keep, s.Lows.convert(", "s.Lows = s.Lows.convert(", "TestGiveBackLiterally"},
	{"a change by reset leaves the records", "giveback.go", "s.Lows, b.reset, b.records = nil, append(b.reset, b.records...), nil", "s.Lows = nil", "TestGiveBackLiterally"},
	{"records outlive the version under which they ended", "carry.go", "used, s.Lows = b.end(s.Lows, used, min(v.at, now), v.from.Unit)", "_ = used", "TestGiveBackLiterally"},
	{"settle of an expired hold charges nothing", "settle.go", "counted = 0", "counted = p.Cost", "TestHoldsReference"},
	{"settle ignores the lows", "giveback.go", "units = min(units, e.Used)", "units = min(units, MaxInt)", "TestHoldsReference"},
	{"extend does not move the record", "settle.go", "r.Expires, r.Ends, e.changed = h.Expires, h.recordEnds(p.Keep), true", "r.Ends, e.changed = h.recordEnds(p.Keep), true", "TestHoldsReference|TestConcurrencyReference"},
	{"holds expire a microsecond late", "hold.go", `r.Ends == MaxInt && r.Expires <= now`, `r.Ends == MaxInt && r.Expires <= now-1`, "TestGolden$"},
	{"a hold lives a microsecond longer", "hold.go", "return !h.Settled && h.Expires > now &&", "return !h.Settled && h.Expires > now-1 &&", "TestGolden$"},
	{"expired holds are not given back by a call", "giveback.go", "switch old := expired(b.records, t); {", "switch old := expired(nil, t); {", "TestGolden$"},
	{"holds are forgotten after a minute", "hold.go", "return end + ForgetAfter(h.TTL)", "return end + minForget", "TestHold|TestGolden$"},
	{"another call with the same id is the same hold", "hold.go", "if !h.MadeBy(g) {", "if len(h.Parts) != len(g.Ops) {", "TestGolden$"},
	{"the last hold to expire counts first", "hold.go", "held, func(a, b Record) int { return cmp.Compare(a.Expires, b.Expires) }", "held, func(a, b Record) int { return cmp.Compare(b.Expires, a.Expires) }", "TestGolden$"},
	{"the retry of a concurrency limit is a microsecond early", "hold.go", "op.Never, op.Retry, op.Bound = at < 0, max(at-now, 0),", "op.Never, op.Retry, op.Bound = at < 0, max(at-now-1, 0),", "TestGolden$"},
	{"a floor does not hold for a concurrency limit's retry", "hold.go", "need := op.Cost + op.Floor", "need := op.Cost", "TestGolden$|TestConcurrency"},
	{"settle gives back twice", "settle.go", "if !h.Settled && !p.Reset && !p.Free {", "if !p.Reset && !p.Free {", "TestGolden$"},
	{"a settled hold takes other costs", "settle.go", "if err == nil && h.Settled && !h.settledTo(c.Costs, costs) {", "if err == nil && h.Settled && len(costs) == 0 {", "TestGolden$"},
	{"settle of a concurrency limit charges", "settle.go", "if cost <= counted || e.own(now).Algorithm == Concurrency {", "if cost <= counted {", "TestGolden$"},
	{"the record of a kept hold goes when the hold expires", "hold.go", "return h.Forget", "return h.Expires", "TestGolden$"},
	{"an expired hold is extended", "settle.go", "if !h.live(now) {\n\t\treturn ErrHoldConflict\n\t}\n\th.Expires", "if h.Settled {\n\t\treturn ErrHoldConflict\n\t}\n\th.Expires", "TestGolden$"},
	{"levels take their own in a TakeUpTo", "store.go", "if op.Granted > least {", "if op.Granted < least {", "TestGolden$"},
	{"five levels", "parents.go", "case levels == terms.MaxLevels:", "case levels > terms.MaxLevels:", "Parent"},
	{"a limit is above itself", "parents.go", "case child.Parent == l.Name:", "case child.Parent == l.Name && levels > terms.MaxLevels:", "Parent"},
	{"a parent is dropped", "parents.go", "if d.Parent == name {", "if d.Parent == name && d.Parts > 0 {", "Parent|Drop"},
	{"ending no override converts the row", "table.go", "top == nil && was == nil {", "top == nil && was == nil && now < 0 {", "TestGolden$"},
	{"an override stays after its end", "table.go", "e.override.At(now)", "e.override.At(0)", "TestGolden$|TestPlans|TestOverride"},
	{"an unlimited plan is charged by settle", "table.go", "if part.Free = took == 0; !part.Free {", "if part.Free = op.Cost == 0; took > 0 {", "TestGolden$"},
	{"blocked refuses a settle", "store.go", "op.Def.Mode > Shadow && op.Verb < VerbCharge", "op.Def.Mode > Shadow && op.Verb <= VerbCharge", "TestGolden$|TestPlans"},
	{"blocked without an end is refused until a time", "choose.go", "op.Def.Override != nil && op.Def.Override.Until != 0", "op.Def.Override != nil", "TestGolden$|TestPlans"},
	{"a plan decides before the override", "choose.go", "case o != nil:", "case op.Def.Plan == \"\" && o != nil:", "TestPlansReference|TestGolden$"},
	{"an override that ends refuses for ever", "choose.go", "op.Never, op.Retry = false, end", "_ = end", "TestPlansReference"},
	{"the retry is beyond the end of the override", "choose.go", "op.Retry, op.Bound = min(op.Retry, end), true", "op.Bound = true", "TestPlansReference"},
	{"the standing override is lost at the end of the other", "carry.go", "move(place{override: at.override.Under, i: at.i}, Keep, at.override.Until)\n\t}\n\tif target", "move(place{i: at.i}, Keep, at.override.Until)\n\t}\n\tif target", "TestPlansReference|TestGolden$"},
	{"numbers over the base instead of the standing override", "override.go", "if o.Under != nil {\n\t\tp =", "if o.Under == nil && o.Until < 0 {\n\t\tp =", "TestPlansReference"},
	{"a later call moves the window that the first one began", "rule.go", "t -= (t - s.TS) % r.Every", "_ = t", "TestGolden$"},
	{"a change begins a window that the first call began", "carry.go", "return v.at - (v.at-s.TS)%v.from.Every", "return v.at", "TestFirstCall"},
	{"a wait for a full bucket that changes nothing", "store.go", "if tries > 0 && op.Def.Rule.BeginsWithCall() {", "if tries > 20 {", "TestFirstCall"},
	{"a charge of a sliding window does not stop", "compile.go", "most, c.MaxCharge = algebra.MaxHalf, c.charge", "c.MaxCharge = c.charge", "TestSliding"},
	{"a sliding window is reset but for the window before", "step.go", "if verb == VerbReset {\n\t\t\tprev = 0\n\t\t}", "", "TestSliding"},
	{"a sliding window is full one window early", "rule.go", "return r.boundary(r.tick(t)+2) - now", "return r.boundary(r.tick(t)+1) - now", "TestSliding"},
	{"plans move the row of a sliding window", "choose.go", "if d.Rule.Sliding && d.Override == nil {", "if d.Rule.Sliding && d.Override != nil {", "TestSliding"},
	{"a refusal by a plan of a sliding window is a bound", "store.go", "o.Before > 0 && !rule.Sliding", "o.Before > 0", "TestSliding"},
	{"the same windows of another rate count from the change on", "definition.go", "if to.Sliding && from.Every == to.Every", "if to.Sliding && from.Cap == to.Cap && from.Every == to.Every", "TestSliding"},
	{"what counts of a sliding window is rounded down by a change", "definition.go", "algebra.Weight(t, from.Origin, from.Every), true)", "algebra.Weight(t, from.Origin, from.Every), false)", "TestSliding"},
	{"a hold gives back to a sliding window", "giveback.go", "case v.to.Sliding:", "case false:", "TestSliding"},
	{"a reservation of a sliding window", "hold.go", "case d.Rule.Sliding && (hold || v == VerbReserve):", "case d.Rule.Sliding && hold:", "TestSliding"},
	{"a check begins a block", "block.go", "op.Verb != VerbTake && op.Verb != VerbTakeUpTo && op.Verb != VerbReserve, ", "op.Verb > VerbReserve, ", "TestGolden$"},
	{"a call that never succeeds begins a block", "block.go", "op.Allowed || op.Never || op.Cost == 0", "op.Allowed || op.Cost == 0", "TestGolden$"},
	{"a call of nothing begins a block", "block.go", "op.Never || op.Cost == 0 ||", "op.Never ||", "TestGolden$"},
	{"shadow mode begins a block", "block.go", "op.Allowed || op.Never || op.Cost == 0 || op.Bounded, d.Mode != Enforce", "op.Allowed && !op.Shadow || op.Never || op.Cost == 0 || op.Bounded, d.Mode > Shadow", "TestGolden$"},
	{"a block in place of a temporary override", "block.go", "d.Override.Until != 0:", "d.Override.Until < 0:", "TestGolden$"},
	{"the attempt of a wait begins a block", "block.go", "op.Cost == 0 || op.Bounded,", "op.Cost == 0,", "TestBlock"},
	{"the refusal of another limit begins a block", "block.go", "if !op.ranOut() {", "if g.Allowed || op.Def.Block == 0 || op.Verb > VerbReserve || op.Verb == VerbCheck || op.Never {", "TestGolden$"},
	{"a floor begins a block", "block.go", "return !allowed //", "return !allowed || op.Floor > 0 //", "TestGolden$"},
	{"a block ends a microsecond early", "block.go", "now+op.Def.Block.Microseconds()", "now+op.Def.Block.Microseconds()-1", "TestGolden$"},
	{"a block ends a microsecond late", "block.go", "now+op.Def.Block.Microseconds()", "now+op.Def.Block.Microseconds()+1", "TestGolden$"},
	{"a block ends the standing override", "block.go", "Under: was.Of(StandingOverride)", "Under: nil", "TestGolden$"},
	{"the call that begins a block is not told of it", "block.go", "if err == nil {\n\t\t\t_, _, err = op.Step(", "if err == nil && op.Allowed {\n\t\t\t_, _, err = op.Step(", "TestGolden$"},
	{"the end of a block fills the bucket", "carry.go", "\tif ends() {\n\t\tmove(", "\tif ends() {\n\t\tif at.override.Kind() == AutomaticOverride {\n\t\t\ts.Used = 0\n\t\t}\n\t\tmove(", "TestGolden$"},
	{"a reset leaves a block", "table.go", "if e.override.unblocked() != e.override {", "if e.override == nil && now < 0 {", "TestGolden$"},
	{"a reset is answered as of a blocked key", "choose.go", "\t\to = o.unblocked()", "\t\t_ = o", "TestGolden$"},
	{"a block is over the base instead of the standing override", "override.go", "case o.Plan == \"\" && o.Rate == 0 && o.Period == 0 && o.Burst == 0:\n\t\treturn AutomaticOverride", "case o.Plan == \"\" && o.Rate == 0 && o.Period == 0 && o.Burst == 0 && o.Under == nil:\n\t\treturn AutomaticOverride", "TestGolden$"},
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
			out, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-failfast", "-timeout=10m", "-overlay="+filepath.Join(dir, "overlay.json"), "-run", m.run, ".").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: Test") && !strings.Contains(string(out), "fatal error: ") {
				t.Errorf("%s noticed nothing: %v\n%s", m.run, err, out)
			}
		})
	}
}
