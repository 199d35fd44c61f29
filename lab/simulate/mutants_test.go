package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A mutant is a mistake made on purpose. Its file is relative to the module.
type mutant struct{ name, file, from, to string }

var mutants = []mutant{
	{"clock read after sending", "internal/denycache/denycache.go", "latest := e.at + (now - e.sent)", "latest := e.at + (now - e.sent) - int64(e.roundTrip)"},
	{"row's time runs back", "store/rule.go", "o.TS = r.stepped(s, max(now, s.TS))", "o.TS = r.stepped(s, now)"},
	{"a sliding window forgets half of what it has granted", "store/step.go", "r.Cap-r.Counted(o.Before, o.TS)", "r.Cap-r.Counted(o.Before, o.TS)/2"},
	{"a sliding window's retry is early", "internal/algebra/sliding.go", "return begin + after", "return begin + after - 1"},
	{"charged although another limit refuses", "store/store.go", "write[i] = write[i] && g.Ops[i].Granted == 0", "write[i] = write[i] && (i == 0 || g.Ops[i].Granted == 0)"},
	{"give-back beyond what others left", "store/giveback.go", "units = min(units, e.Used)", "_ = e"},
	{"double return", "store/settle.go", "if i >= 0 {\n\t\te.giveBack", "if i >= 0 {\n\t\te.row.Used = max(0, e.row.Used-back)\n\t\te.giveBack"},
	{"retry one tick early", "internal/algebra/algebra.go", "return t - now + QuoUp(units, add)", "return t - now + QuoUp(units, add) - 1"},
	{"refusal kept after a give-back", "internal/denycache/denycache.go", "\tif !kept {\n\t\ts.table.forget(m)", "\tif !kept {\n\t\t_ = m"},
	{"late give-back before a later reservation", "store/giveback.go", "free = min(free, w.Slack)\n\t\t}\n\t}\n\tunits := l.give", "_ = w\n\t\t}\n\t}\n\tunits := l.give"},
	{"a second settle charges again", "store/settle.go", "if !h.Settled && !p.Reset && !p.Free {", "if !p.Reset && !p.Free {"},
	{"override beyond its end", "store/choose.go", "o := row.Override.At(now)\n", "o := row.Override.At(now - 50_000)\n"},
	{"override's end counted when it is seen", "store/carry.go", "move(place{override: at.override.Under, i: at.i}, Keep, at.override.Until)\n\t}\n\tif target", "move(place{override: at.override.Under, i: at.i}, Keep, t)\n\t}\n\tif target"},
	{"version counted when it is seen", "store/carry.go", "move(to, policy, since)", "move(to, policy, t)"},
	{"an expired hold costs nothing", "store/settle.go", "if i < 0 && !p.Keep {", "if i < 0 && cost < 0 {"},
	{"give-back from another list", "store/giveback.go", "if row.Lows == nil || row.Lows.Mark != rs[i].Mark {", "if row.Lows == nil {"},
	{"sweep of rows that are not full", "store/table.go", "usedAt(&e.row, max(now, e.row.TS))", "usedAt(&e.row, max(now, e.row.TS)+100_000)"},
	{"one mark for all lists of a reservation", "store/giveback.go", "binary.BigEndian.Uint64(r[8:]) + uint64(now)", "binary.BigEndian.Uint64(r[8:]) + uint64(now*0)"},
	{"lease's clock read after sending", "internal/lease/key.go", "k.turn = nil\n\tswitch {", "k.turn = nil\n\tt.sent = mono\n\tswitch {"},
	{"lease given back late", "internal/lease/key.go", "float64(passed+int64(d.Lease))", "float64(passed-int64(d.Lease))"},
	{"lease given back twice", "internal/lease/key.go", "\t*op = g.Ops[0]\n\treturn err == nil", "\t*op = g.Ops[0]\n\tif o.Verb == store.VerbRefund {\n\t\terr = s.inner.Apply(ctx, &b)\n\t}\n\treturn err == nil"},
	{"chunk of a lease reserved without an id", "internal/lease/key.go", "s.id(&g.ID)", "_ = g"},
	{"chunk of a lease used before it is due", "internal/lease/key.go", "from: mono + op.Delay*1000", "from: mono + op.Delay*0"},
	{"request of a lease that is never answered", "internal/lease/key.go", "defer t.gate.Open()", "_ = t.gate"},
	{"refusal of a request that was sent before the call came", "internal/lease/flight.go", "return k.turn.gate, nil, true", "return k.turn.gate, k.turn, true"},
	{"breaker stays open after an answer", "internal/away/probe.go", "if s.open.Swap(false) {", "if s.open.Load() && s.noSpace.Load() != nil {"},
	{"breaker opens at the first failures", "internal/away/probe.go", "s.target = t\n\ts.done.Add(1)", "s.target = t\n\ts.open.Store(true)\n\ts.notify(errUnanswered)\n\ts.done.Add(1)"},
	{"an answer to a call does not end a probe's wait", "internal/away/probe.go", "s.failures.Store(0)\n\ts.target = nil", "s.failures.Store(0)"},
	{"decisions without the store begin with a full bucket", "internal/away/fallback.go", "_ = s.local.Put(op.Def, op.Key, store.State{Used: op.Used,", "_ = s.local.Put(op.Def, op.Key, store.State{Used: op.Used / 2,"},
	{"a region keeps what the world refused", "lab/simulate/regions.go", "\tp.take(s, p.own, \"customer\", store.VerbRefund)", "\t_ = t"},
	{"a region takes back what the world granted", "lab/simulate/regions.go", "|| p.take(s, p.home, \"hot\", store.VerbTake) {", "|| p.take(s, p.home, \"hot\", store.VerbTake) && s.gap%50 > 0 {"},
	{"tokens of one region given back to the other", "lab/simulate/regions.go", "\tp.take(s, p.own, \"customer\", store.VerbRefund)", "\tp.take(s, p.home, \"customer\", store.VerbRefund)"},
	{"a lease's time by the wall clock alone", "internal/lease/chunk.go", "return mono < c.dies && wall >= c.early", "return wall >= c.early"},
	{"a batch fails for its first caller only", "internal/coalesce/lane.go", "\tfor i := range groups {\n\t\tgroups[i].Err = err\n\t}", "\tgroups[0].Err = err"},
	{"a caller who leaves a batch is told that nothing was charged", "internal/coalesce/lane.go", "return fmt.Errorf(\"%w: %w\", store.ErrOutcomeUnknown, why)", "return fmt.Errorf(\"%w: %w\", store.ErrStore, why)"},
	{"a caller whose time is over is told that nothing was charged", "internal/coalesce/lane.go", "g.Err = fmt.Errorf(\"%w: %w\", store.ErrOutcomeUnknown, context.DeadlineExceeded)", "g.Err = fmt.Errorf(\"%w: %w\", store.ErrStore, context.DeadlineExceeded)"},
	{"a caller who leaves stays in the queue", "internal/coalesce/lane.go", "\tif inQueue {\n\t\tl.queue.unlink(w)", "\tif inQueue && l.closed.Load() {\n\t\tl.queue.unlink(w)"},
	{"a reservation cannot be cancelled shortly before it is due", "store/table.go", "if len(h.Parts) == 0 || h.Due <= now {\n\t\treturn ErrReservation", "if len(h.Parts) == 0 || h.Due <= now+1000 {\n\t\treturn ErrReservation"},
	{"a cancel gives back its first key only", "store/table.go", "\tfor i := range entries {\n\t\tif err := entries[i].write(t, now); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\tg.Allowed = true", "\tif err := entries[0].write(t, now); err != nil {\n\t\treturn err\n\t}\n\tg.Allowed = true"},
	{"a settled hold lives on", "store/hold.go", "return !h.Settled && h.Expires > now", "return h.Expires > now"},
	{"a settled hold is made again", "store/hold.go", "if !h.MadeBy(g) {", "if h.Settled {\n\t\treturn false, nil\n\t}\n\tif !h.MadeBy(g) {"},
	{"a settle to other costs is a repeat", "store/settle.go", "if err == nil && h.Settled && !h.settledTo(c.Costs, costs) {", "if err == nil && h.Settled && len(c.Costs) != len(h.Costs) {"},
	{"a settle charges beside the hold's tokens", "store/settle.go", "Verb: VerbCharge, Cost: cost - counted}", "Verb: VerbCharge, Cost: cost}"},
	{"a reservation's delay without the debt before it", "store/step.go", "ahead = max(used-(r.Cap-units), 0)", "ahead = max(min(used, r.Cap)-(r.Cap-units), 0)"},
	{"a lease of an older version", "internal/lease/lease.go", "if c.def.Number < d.Number || !c.alive(mono, wall) {", "if !c.alive(mono, wall) {"},
	{"a lease under an override", "internal/lease/key.go", "case overridden(op):", "case overridden(op) && op.Granted < 0:"},
	{"a parent grants more than its child", "store/store.go", "if op.Granted > least {", "if op.Granted > least && i == 0 {"},
	{"a cost is settled at one level", "store/settle.go", "case p.Takes&(1<<j) == 0:", "case p.Takes&(1<<j) == 0 || i != j && p.Takes == h.Parts[0].Takes:"},
	{"leases with twice the carve", "store/compile.go", "c.burst -= c.carved", "c.burst -= 2 * c.carved"},
	{"a concurrency limit's retry by its last hold", "store/hold.go", "for i := 0; i < len(held) && used > d.Rule.Cap-need; i++ {", "for i := range held {"},
	{"a settle gives back part of a concurrency limit's hold", "store/giveback.go", "row.Used -= min(rs[i].Units, row.Used)", "row.Used -= min(algebra.MulDiv(rs[i].Units, num, den, false), row.Used)"},
	{"half of a floor", "store/choose.go", "lower.Cap -= units", "lower.Cap -= units / 2"},
	{"a refusal moves a row to a slower plan", "store/store.go", "if moves && !op.Def.moves(from) {", "if moves && op.Def.moves(from) {"},
	{"a refusal moves no row", "store/store.go", "moves && op.Verb != VerbCheck)", "false)"},
	{"a check begins a block", "store/block.go", "op.Verb != VerbTake && op.Verb != VerbTakeUpTo && op.Verb != VerbReserve, ", "op.Verb > VerbReserve, "},
	{"a block in place of a temporary override", "store/block.go", "d.Override.Until != 0:", "d.Override.Until < 0:"},
	{"the refusal of another limit begins a block", "store/block.go", "if !op.ranOut() {", "if g.Allowed || op.Def.Block == 0 || op.Verb > VerbReserve || op.Verb == VerbCheck || op.Never {"},
	{"a floor begins a block", "store/block.go", "return !allowed //", "return !allowed || op.Floor > 0 //"},
	{"a block ends a microsecond early", "store/block.go", "now+op.Def.Block.Microseconds()", "now+op.Def.Block.Microseconds()-1"},
	{"a block ends the standing override", "store/block.go", "Under: was.Of(StandingOverride)", "Under: nil"},
	{"the end of a block fills the bucket", "store/carry.go", "\tif ends() {\n\t\tmove(", "\tif ends() {\n\t\tif at.override.Kind() == AutomaticOverride {\n\t\t\ts.Used = 0\n\t\t}\n\t\tmove("},
	{"a reset leaves a block", "store/table.go", "if e.override.unblocked() != e.override {", "if e.override == nil && now < 0 {"},
	{"a later call moves the window that the first one began", "store/rule.go", "t -= (t - s.TS) % r.Every", "_ = t"},
	{"a floor is taken from a lease", "internal/lease/lease.go", "op.Cost < 1 || op.Floor != 0 || op.Fraction", "op.Cost < 1 || op.Fraction"},
	{"leases without the carve", "store/compile.go", "c.burst -= c.carved", "c.carved = 0"},
}

// TestMutants checks that each mutant can be put into the source as it is now. With
// DIPWELL_LONG=1 it also builds the package with each mutant, and checks that 1,000
// histories find it, which takes minutes.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(root, m.file))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.from); n != 1 {
				t.Fatalf("%q is %d times in %s", m.from, n, m.file)
			}
			if os.Getenv("DIPWELL_LONG") == "" {
				return
			}
			dir := t.TempDir()
			changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
			write(t, changed, []byte(strings.Replace(string(source), m.from, m.to, 1)))
			text, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, m.file): changed}})
			if err != nil {
				t.Fatal(err)
			}
			write(t, overlay, text)
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-overlay", overlay, "-run", "^TestSeeds$", ".")
			cmd.Env = append(os.Environ(), "DIPWELL_LONG=", "DIPWELL_SEEDS=1000")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Error("1,000 histories did not find it")
				return
			}
			found := regexp.MustCompile(`(?m)(seed \d+: |panic: ).*`).FindString(string(out)) // the mistake may make a panic of a history
			if t.Log(found); found == "" {
				t.Errorf("%s", out)
			}
		})
	}
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
