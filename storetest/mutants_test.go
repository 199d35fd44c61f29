package storetest_test

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// bug has the hooks and flags that make a mutant of the reference store.
type bug struct {
	group  func(s *refStore, g *store.Group) error
	read   func(s *refStore, op *store.Op, row *store.State, now int64)
	write  func(s *refStore, g *store.Group, op *store.Op, old store.State, row *store.State, write bool, now int64) bool
	answer func(s *refStore, g *store.Group, op *store.Op, now int64)
	key    func(refKey) refKey
	sweep  func(s *refStore) int

	advance func(def *store.Definition, row *store.State, recs []store.Record, now int64)
	record  func(row *store.State, r *store.Record)
	cancels func(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record)

	keepsReservations, cancelsTwice, cancelsDue, cancelsNothing, cancelsFirst, forgetsWhole, unsorted bool
}

// mutants are deliberate mistakes, each with the cases that must fail.
var mutants = map[string]struct {
	bug    bug
	caught string // names of the cases, separated by spaces
}{
	"stamp not stored": {bug{write: func(_ *refStore, _ *store.Group, _ *store.Op, old store.State, row *store.State, w bool, _ int64) bool {
		if old.TS > 0 {
			row.TS = old.TS
		}
		return w
	}}, "worked-1-sixty-a-second worked-3-ten-then-one fast-rate-truncation model"},
	"charge on denial":           {bug{write: chargeOnDenial}, "denial-starves false-local-denial model"},
	"refusal moves the clock":    {bug{write: refusalMovesClock}, "denial-starves take model"},
	"clock runs back":            {bug{write: stampNow}, "clock-back caller-clock model"},
	"stamp by a second clock":    {bug{write: stampTwice}, "two-clocks"},
	"clock read before lock":     {bug{group: clockBeforeLock, write: stampNow}, "lock-wait-double-credit"},
	"ceil for floor":             {bug{write: wholeTokens}, "round-up-grants worked-1-sixty-a-second model"},
	"no lock":                    {bug{group: noLock}, "first-insert cas-collapse race-take race-group peek-consumes race-take-up-to"},
	"gives up on contention":     {bug{group: tryLock}, "cas-collapse"},
	"expiry too early":           {bug{read: expires}, "early-expiry stale-after-change model"},
	"group not atomic":           {bug{group: oneByOne}, "worked-5-user-and-tenant group-all-or-nothing model"},
	"group takes the lock twice": {bug{group: checkThenTake}, "race-group"},
	"first retry instead of latest": {bug{answer: func(_ *refStore, g *store.Group, op *store.Op, _ int64) {
		if !g.Allowed && op != &g.Ops[0] {
			op.Retry = g.Ops[0].Retry
		}
	}}, "group-latest-retry"},
	"cancel twice":                   {bug{cancelsTwice: true}, "double-cancel-mints race-reserve-cancel model"},
	"cancel when due":                {bug{cancelsDue: true}, "cancel-until-due"},
	"cancel gives nothing back":      {bug{cancelsNothing: true}, "cancelled-wait-leaks"},
	"cancel gives back one key only": {bug{cancelsFirst: true}, "cancel-group"},
	"cancel does not step the row":   {bug{cancels: cancelsUnstepped}, "cancel-clock-back"},
	"reset keeps reservations":       {bug{keepsReservations: true}, "double-cancel-mints cancel-after-reset reset"},
	"debt without bound":             {bug{read: noBound}, "zero-means-unlimited never-finite-retry worked-7-perfectly-spaced"},
	"retry never given":              {bug{answer: func(_ *refStore, _ *store.Group, op *store.Op, _ int64) { op.Retry = 0 }}, "take retry-exact early-expiry"},
	"retry in whole ms, down":        {bug{answer: func(_ *refStore, _ *store.Group, op *store.Op, _ int64) { op.Retry -= op.Retry % 1000 }}, "retry-exact golden-apply"},
	"retry for never": {bug{answer: func(_ *refStore, _ *store.Group, op *store.Op, _ int64) {
		if op.Never {
			op.Never, op.Retry = false, 1
		}
	}}, "never-finite-retry group-never"},
	"allowed read off remaining": {bug{answer: func(_ *refStore, g *store.Group, op *store.Op, _ int64) {
		op.Allowed = op.Remaining > 0
		g.Allowed = g.Allowed && op.Allowed
	}}, "ambiguous-zero"},
	"key joined to the limit":        {bug{key: func(k refKey) refKey { return refKey{"", k.limit + ":" + k.key} }}, "keys-apart"},
	"key joined without a separator": {bug{key: func(k refKey) refKey { return refKey{"", k.limit + k.key} }}, "keys-apart"},
	"key folded":                     {bug{key: func(k refKey) refKey { return refKey{k.limit, strings.ToLower(k.key)} }}, "keys-apart keys-unusual"},
	"key trimmed":                    {bug{key: func(k refKey) refKey { return refKey{k.limit, strings.TrimSpace(k.key)} }}, "keys-apart"},
	"key cut short":                  {bug{key: func(k refKey) refKey { return refKey{k.limit, k.key[:min(511, len(k.key))]} }}, "keys-unusual"},
	"version ignored": {bug{read: func(_ *refStore, op *store.Op, row *store.State, _ int64) { row.Version = op.Def.Number }},
		"stale-after-change change-proportional change-several-versions drop-and-redefine"},
	"change at the new rate from the start": {bug{read: newRateFromStart}, "stale-after-change change-several-versions model"},
	"change forgets the key": {bug{read: func(_ *refStore, op *store.Op, row *store.State, _ int64) {
		if row.Version != op.Def.Number {
			*row = store.State{}
		}
	}}, "stale-after-change change-keep golden-carry"},
	"refund above full": {bug{write: refundUnclamped}, "negative-mints refund"},
	"sweep deletes keys in use": {bug{sweep: func(s *refStore) int {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := len(s.rows)
		clear(s.rows)
		return n
	}}, "sweep early-expiry sweep-race"},
	"sweep lists and deletes in two steps": {bug{group: afterList, sweep: listThenDelete}, "sweep-race"},
	"peek charges": {bug{read: func(_ *refStore, op *store.Op, _ *store.State, _ int64) {
		if op.Verb == store.VerbCheck {
			op.Verb = store.VerbTake
		}
	}}, "peek-consumes check"},
	"shadow charges": {bug{write: shadowCharges}, "shadow group-shadow"},
	"shadow refuses": {bug{answer: func(_ *refStore, g *store.Group, op *store.Op, _ int64) {
		if op.Shadow {
			op.Allowed, g.Allowed = false, false
		}
	}}, "shadow group-shadow"},
	"window begins at the row":    {bug{read: windowFromRow}, "lost-partial-interval worked-2-grid"},
	"window begins at a refund":   {bug{read: windowFromRefund, write: noteRefund}, "window-restart"},
	"window not spread":           {bug{read: notSpread}, "window-spread golden-origin model"},
	"window of an earlier length": {bug{read: keepsOrigin}, "window-remembered"},
	"window of another limit":     {bug{read: phaseBy(func(op *store.Op) string { return op.Key })}, "window-remembered"},
	"window of another key": {bug{read: phaseBy(func(op *store.Op) string { return op.Key[:min(len(op.Key), 6)] })},
		"window-remembered golden-origin"},
	"late writer wipes":              {bug{read: wipes}, "late-writer-wipes golden-apply"},
	"refusals remembered":            {bug{group: remembersRefusals}, "false-local-denial"},
	"cost compared twice":            {bug{group: comparesTwice}, "cost-tested-twice"},
	"cost in 32 bits":                {bug{read: func(_ *refStore, op *store.Op, _ *store.State, _ int64) { op.Cost = int64(int32(op.Cost)) }}, "overflow-bypass"},
	"emission interval truncated":    {bug{read: truncates}, "fast-rate-truncation"},
	"first call free":                {bug{write: firstFree}, "worked-1-sixty-a-second ambiguous-zero"},
	"bound of a wait ignored":        {bug{read: func(_ *refStore, op *store.Op, _ *store.State, _ int64) { op.Bounded = false }}, "wait-bounded wait-bounded-window"},
	"costs of one key do not add up": {bug{read: func(_ *refStore, op *store.Op, _ *store.State, _ int64) { op.Cost = min(op.Cost, 3) }}, "group-same-key-adds-up"},
	"keys in no order":               {bug{unsorted: true}, "keys-list"},

	"cancel gives back what time returned": {bug{cancels: givesAll}, "group-cancel-mints cancel-of-passed-debt cancel-before-later held-before-later remade-row giving-back"},
	"no touch on a take":                   {bug{write: noTouch}, "group-cancel-mints cancel-refund-charge giving-back"},
	"low not lowered by a cancel":          {bug{cancels: keepsLows}, "cancel-after-cancel cancel-of-forty"},
	"slack ignored":                        {bug{record: func(_ *store.State, r *store.Record) { r.Slack = -1 }}, "cancel-before-later held-before-later cancel-beside-neighbours-reset"},
	"slack counts the reservation itself":  {bug{record: slackTooLarge}, "cancel-before-later held-before-later"},
	"slack not lowered by a cancel":        {bug{cancels: keepsSlack}, "giving-back"},
	"due slack does not lower the low":     {bug{advance: forgetsDue}, "cancel-due-limits-for-good"},
	"slacks end in order of numbers":       {bug{advance: endsByNumber}, "cancel-due-order"},
	"cancelled waits still count":          {bug{cancels: staysWaiting}, "cancelled-wait-leaks cancelled-waits-in-any-order giving-back"},
	"withheld tokens are forgotten":        {bug{cancels: forgetsWithheld}, "cancel-before-later cancelled-waits-in-any-order giving-back"},
	"mark of the list ignored":             {bug{cancels: ignoresMark}, "remade-row cancel-rests-of-another-list"},
	"number used again":                    {bug{record: func(row *store.State, r *store.Record) { row.Lows.Next = r.Number }}, "giving-back"},
	"merge with the later low":             {bug{read: mergesLater}, "cancel-of-forty"},
	"merge of the latest two":              {bug{read: mergesLatest}, "cancel-of-forty"},
	"refusal stores advanced records":      {bug{answer: storesRefusals}, "cancel-after-refusal"},
	"clipped charge keeps lows":            {bug{write: keepsLowsOnCharge}, "cancel-beside-clipped-charge"},
	"lows not converted":                   {bug{advance: lowsUnconverted}, "cancel-after-change"},
	"records not converted": {bug{advance: func(d *store.Definition, _ *store.State, recs []store.Record, _ int64) {
		for i := range recs {
			recs[i].Unit = d.Rule.Unit
		}
	}}, "cancel-after-change"},
	"reset ends records of other keys": {bug{forgetsWhole: true}, "cancel-beside-neighbours-reset cancel-beside-neighbours-drop"},
}

const mutantEnv = "STORETEST_MUTANT"

// TestMutant runs the suite, as short as Quick makes it, on the mutant named in the environment. It is run in
// child processes of TestMutantsAreCaught.
func TestMutant(t *testing.T) {
	m, ok := mutants[os.Getenv(mutantEnv)]
	if !ok {
		return
	}
	storetest.Run(t, openRef(m.bug), storetest.Options{Quick: true, Lacks: []string{"overrides", "holds", "concurrency"}})
}

// TestMutantsAreCaught runs the cases of each mutant in child processes and
// checks that every case fails.
func TestMutantsAreCaught(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mutantIsCaught(t, "TestMutant", mutantEnv+"="+name, m.caught)
		})
	}
}

// mutantIsCaught runs cases in child processes, and checks that each fails. Their histories
// are always the same, because few histories miss some mutants.
func mutantIsCaught(t *testing.T, test, env, caught string) {
	for _, c := range strings.Fields(caught) {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$/^"+c+"$", "-test.timeout=5m")
		child.Env = append(os.Environ(), env, "DIPWELL_SEED=20261123")
		out, err := child.CombinedOutput()
		if err == nil {
			t.Errorf("%s passed, want a failure", c)
		} else if !strings.Contains(string(out), "--- FAIL: "+test+"/"+c) {
			t.Errorf("%s did not run to a failure: %v\n%s", c, err, out)
		}
	}
}

func units(op *store.Op) int64 { return op.Cost * op.Def.Rule.Unit }

func chargeOnDenial(_ *refStore, g *store.Group, op *store.Op, old store.State, row *store.State, w bool, now int64) bool {
	if g.Allowed || op.Never || op.Verb != store.VerbTake {
		return w
	}
	row.Used += units(op)
	return true
}

func refusalMovesClock(_ *refStore, g *store.Group, _ *store.Op, old store.State, row *store.State, w bool, now int64) bool {
	if g.Allowed || old.Used == 0 {
		return w
	}
	row.Used, row.TS = old.Used, now
	return true
}

func stampNow(_ *refStore, _ *store.Group, _ *store.Op, _ store.State, row *store.State, w bool, now int64) bool {
	row.TS = now
	return w
}

func stampTwice(s *refStore, _ *store.Group, _ *store.Op, _ store.State, row *store.State, w bool, _ int64) bool {
	row.TS = s.now()
	return w
}

func clockBeforeLock(s *refStore, g *store.Group) error {
	now := s.now()
	runtime.Gosched()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decide(g, now)
}

func wholeTokens(_ *refStore, _ *store.Group, op *store.Op, _ store.State, row *store.State, w bool, _ int64) bool {
	row.Used -= row.Used % op.Def.Rule.Unit
	return w
}

// noLock releases the lock between reading and writing.
func noLock(s *refStore, g *store.Group) error {
	var rows, old [store.MaxTakes]store.State
	var recs [store.MaxTakes][]store.Record
	var write [store.MaxTakes]bool
	s.mu.Lock()
	for i := range g.Ops {
		rows[i] = s.rows[s.keyOf(&g.Ops[i])]
	}
	s.mu.Unlock()
	runtime.Gosched()
	now := s.now()
	if err := g.Decide(now, rows[:len(g.Ops)], write[:]); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(g, now, &old, &rows, &recs, &write)
	return nil
}

// listThenDelete lists full rows and deletes them later, without checking them
// again. It waits until one of them was written in between, and afterList delays
// calls on a full row until the sweep has listed it, so that the take is lost.
func listThenDelete(s *refStore) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var full []refKey
	for k, row := range s.rows {
		if def := s.reg.Lookup(k.limit); s.usedNow(def, k, row, s.now()) == 0 {
			full = append(full, k)
			s.extra[k] = listed
		}
	}
	s.waitFor(func() bool {
		return len(full) == 0 || slices.ContainsFunc(full, func(k refKey) bool { return s.extra[k] != listed })
	})
	for _, k := range full {
		delete(s.rows, k)
		delete(s.extra, k)
	}
	return len(full)
}

func afterList(s *refStore, g *store.Group) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keyOf(&g.Ops[0])
	s.waitFor(func() bool {
		row, ok := s.rows[k]
		return !ok || s.extra[k] == listed || s.usedNow(g.Ops[0].Def, k, row, s.now()) > 0
	})
	err := s.decide(g, s.now())
	s.extra[k] = written
	return err
}

const listed, written = 1, 2

// waitFor returns when ok returns true, or after two seconds, because a mutant
// must fail and not hang. It releases the store's lock between calls of ok.
func (s *refStore) waitFor(ok func() bool) {
	for late := time.Now().Add(2 * time.Second); !ok() && time.Now().Before(late); {
		s.mu.Unlock()
		runtime.Gosched()
		s.mu.Lock()
	}
}

func tryLock(s *refStore, g *store.Group) error {
	if !s.mu.TryLock() {
		return store.ErrStore
	}
	defer s.mu.Unlock()
	runtime.Gosched()
	return s.decide(g, s.now())
}

func expires(_ *refStore, _ *store.Op, row *store.State, now int64) {
	if now-row.TS > 60e6 {
		*row = store.State{}
	}
}

func oneByOne(s *refStore, g *store.Group) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	allowed := true
	for i := range g.Ops {
		one := store.Group{Ops: g.Ops[i : i+1], ID: g.ID}
		if err := s.decide(&one, s.now()); err != nil {
			return err
		}
		allowed = allowed && one.Allowed
	}
	g.Allowed = allowed
	return nil
}

// checkThenTake releases the lock between the check of all ops and each take.
func checkThenTake(s *refStore, g *store.Group) error {
	if len(g.Ops) == 1 || g.Ops[0].Verb != store.VerbTake {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.decide(g, s.now())
	}
	for i := range g.Ops {
		g.Ops[i].Verb = store.VerbCheck
	}
	s.mu.Lock()
	err := s.decide(g, s.now())
	s.mu.Unlock()
	if err != nil || !g.Allowed {
		return err
	}
	for i := range g.Ops {
		runtime.Gosched()
		g.Ops[i].Verb = store.VerbTake
		s.mu.Lock()
		err = s.decide(&store.Group{Ops: g.Ops[i : i+1]}, s.now())
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// with changes the rule by which an op is decided.
func with(op *store.Op, change func(*store.Rule)) {
	def := *op.Def
	change(&def.Rule)
	op.Def = &def
}

func noBound(_ *refStore, op *store.Op, _ *store.State, _ int64) {
	with(op, func(r *store.Rule) { r.Debt = r.MaxUsed - r.Cap; r.Most = r.MaxUsed / r.Unit })
}

func newRateFromStart(_ *refStore, op *store.Op, row *store.State, now int64) {
	if row.Version == op.Def.Number || row.Used == 0 {
		return
	}
	for i := range op.Def.Past {
		if op.Def.Past[i].Number == row.Version {
			row.Used = row.Used / op.Def.Past[i].Rule.Unit * op.Def.Rule.Unit
		}
	}
	row.Version = op.Def.Number
}

func refundUnclamped(s *refStore, _ *store.Group, op *store.Op, old store.State, row *store.State, w bool, _ int64) bool {
	if op.Verb != store.VerbRefund || op.Cost > 1<<20 {
		return w
	}
	if row.Used = old.Used - units(op); row.Used < 0 {
		s.rows[s.keyOf(op)] = *row
		return false
	}
	return true
}

func shadowCharges(_ *refStore, _ *store.Group, op *store.Op, _ store.State, row *store.State, w bool, _ int64) bool {
	if op.Shadow && op.Verb == store.VerbTake && !op.Never {
		row.Used += units(op)
		return true
	}
	return w
}

func windowFromRow(_ *refStore, op *store.Op, row *store.State, _ int64) {
	if op.Def.Rule.Every > 1e6 && row.Used > 0 {
		with(op, func(r *store.Rule) { r.Spread, r.Origin = false, row.TS%r.Every })
	}
}

func windowFromRefund(s *refStore, op *store.Op, _ *store.State, _ int64) {
	if at, ok := s.extra[s.keyOf(op)]; ok && op.Def.Rule.Every > 1e6 {
		with(op, func(r *store.Rule) { r.Spread, r.Origin = false, at%r.Every })
	}
}

func noteRefund(s *refStore, _ *store.Group, op *store.Op, _ store.State, row *store.State, w bool, now int64) bool {
	if op.Verb == store.VerbRefund && row.Used == 0 {
		s.extra[s.keyOf(op)] = now
	}
	return w
}

func notSpread(_ *refStore, op *store.Op, _ *store.State, _ int64) {
	with(op, func(r *store.Rule) { r.Spread = false })
}

// keepsOrigin caches the origin of a key's windows when the period changes.
func keepsOrigin(s *refStore, op *store.Op, _ *store.State, _ int64) {
	if !op.Def.Rule.Spread || op.Def.Rule.Every <= 1 {
		return
	}
	k, every := s.keyOf(op), op.Def.Rule.Every
	if _, ok := s.extra[k]; !ok {
		s.extra[k] = terms.Origin(terms.PhaseOf(op.Def.Name, op.Key), every)
	}
	op.Phase = s.extra[k]%every + 1
}

// phaseBy caches the phase of an op by a name that is not unique.
func phaseBy(name func(*store.Op) string) func(*refStore, *store.Op, *store.State, int64) {
	return func(s *refStore, op *store.Op, _ *store.State, _ int64) {
		k := refKey{"", name(op)}
		if _, ok := s.extra[k]; !ok {
			s.extra[k] = terms.PhaseOf(op.Def.Name, op.Key)
		}
		op.Phase = s.extra[k]
	}
}

func wipes(_ *refStore, op *store.Op, row *store.State, now int64) {
	if op.Def.Rule.Every > 1e6 && now/op.Def.Rule.Every != row.TS/op.Def.Rule.Every {
		*row = store.State{}
	}
}

func remembersRefusals(s *refStore, g *store.Group) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, now := s.keyOf(&g.Ops[0]), s.now()
	if until := s.extra[k]; now < until && g.Ops[0].Verb == store.VerbTake {
		g.Ops[0].Answer = store.Answer{Retry: until - now}
		return nil
	}
	err := s.decide(g, now)
	if g.Ops[0].Retry > 0 {
		s.extra[k] = now + g.Ops[0].Retry
	}
	return err
}

func comparesTwice(s *refStore, g *store.Group) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op := &g.Ops[0]; op.Verb == store.VerbTake {
		twice := store.Group{Ops: []store.Op{*op}}
		twice.Ops[0].Verb, twice.Ops[0].Cost = store.VerbCheck, 2*op.Cost
		if err := s.decide(&twice, s.now()); err != nil || !twice.Allowed {
			op.Answer = twice.Ops[0].Answer
			return err
		}
	}
	return s.decide(g, s.now())
}

func truncates(_ *refStore, op *store.Op, _ *store.State, _ int64) {
	with(op, func(r *store.Rule) {
		if r.Every == 1 && r.Unit > r.Add {
			r.Unit, r.Add = r.Unit/r.Add, 1
			r.Cap = r.Burst * r.Unit
		}
	})
}

func firstFree(_ *refStore, _ *store.Group, op *store.Op, old store.State, row *store.State, w bool, _ int64) bool {
	if old.TS == 0 && op.Verb == store.VerbTake && w {
		row.Used = 1
	}
	return w
}

func cancelsUnstepped(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record) {
	ts, used := row.TS, row.Used
	stepped := def.Rule.Used(row, now)
	row, recs, _ = def.GiveBack(row, p.key, now, recs, p.number, p.mark)
	row.Used, row.TS = max(0, used-(stepped-row.Used)), ts
	return row, recs
}

func givesAll(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record) {
	i := slices.IndexFunc(recs, p.is)
	_, converted, _ := def.Advance(row, p.key, now, slices.Clone(recs))
	r := converted[slices.IndexFunc(converted, p.is)]
	back := r.Units * def.Rule.Unit / r.Unit
	row, _ = def.Carry(row, p.key, now)
	row.Used, row.TS = max(0, def.Rule.Used(row, now)-back), max(now, row.TS)
	return row, slices.Delete(recs, i, i+1)
}

func noTouch(s *refStore, _ *store.Group, op *store.Op, old store.State, row *store.State, w bool, _ int64) bool {
	if row.Lows != nil && old.Lows != nil {
		row.Lows = old.Lows
	}
	return w
}

// cancelsWith calls GiveBack and ignores its error.
func cancelsWith(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record) {
	row, recs, _ = def.GiveBack(row, p.key, now, recs, p.number, p.mark)
	return row, recs
}

func keepsLows(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record) {
	lows := row.Lows
	if row, recs = cancelsWith(def, p, row, recs, now); row.Lows != nil {
		row.Lows = lows
	}
	return row, recs
}

func keepsSlack(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record) {
	before := slices.Clone(recs)
	row, recs = cancelsWith(def, p, row, recs, now)
	for i := range recs {
		for _, r := range before {
			if r.Number == recs[i].Number && r.Mark == recs[i].Mark && recs[i].Slack >= 0 {
				recs[i].Slack = r.Slack
			}
		}
	}
	return row, recs
}

func slackTooLarge(row *store.State, r *store.Record) {
	if r.Slack >= 0 {
		r.Slack += r.Units
	}
}

// endsByNumber makes all reservations that are due fall due at once.
func endsByNumber(_ *store.Definition, _ *store.State, recs []store.Record, now int64) {
	for i := range recs {
		if r := &recs[i]; r.Due <= now {
			r.Due = 0
		}
	}
}

func forgetsDue(_ *store.Definition, _ *store.State, recs []store.Record, now int64) {
	for i := range recs {
		if recs[i].Slack >= 0 && recs[i].Due <= now {
			recs[i].Slack = -1
		}
	}
}

func staysWaiting(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record) {
	i := slices.IndexFunc(recs, p.is)
	if r := recs[i]; r.Slack >= 0 {
		recs = slices.Insert(recs, i+1, r)
	}
	return cancelsWith(def, p, row, recs, now)
}

func forgetsWithheld(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record) {
	row, recs = cancelsWith(def, p, row, recs, now)
	return row, slices.DeleteFunc(recs, func(r store.Record) bool { return r.Rest })
}

func ignoresMark(def *store.Definition, p pendingPart, row store.State, recs []store.Record, now int64) (store.State, []store.Record) {
	if row.Lows != nil && row.Lows.Mark != p.mark {
		i := slices.IndexFunc(recs, p.is)
		recs[i].Mark, p.mark = row.Lows.Mark, row.Lows.Mark
	}
	return cancelsWith(def, p, row, recs, now)
}

// merges shortens a full list of lows by a rule that differs from the contract.
func merges(row *store.State, merge func(e []store.Low) []store.Low) {
	if row.Lows == nil || len(row.Lows.Entries) < store.MaxLows {
		return
	}
	l := *row.Lows
	l.Entries = merge(slices.Clone(l.Entries))
	row.Lows = &l
}

func mergesLater(_ *refStore, _ *store.Op, row *store.State, _ int64) {
	merges(row, func(e []store.Low) []store.Low {
		e[0].Used = e[1].Used
		return slices.Delete(e, 1, 2)
	})
}

func mergesLatest(_ *refStore, _ *store.Op, row *store.State, _ int64) {
	merges(row, func(e []store.Low) []store.Low { return e[:len(e)-1] })
}

func storesRefusals(s *refStore, g *store.Group, op *store.Op, now int64) {
	k := s.keyOf(op)
	if row, recs, err := s.advance(op.Def, k, s.rows[k], now); err == nil && !g.Allowed && s.rows[k].Lows != nil {
		s.put(k, row)
		s.recs[k] = recs
	}
}

func keepsLowsOnCharge(_ *refStore, _ *store.Group, op *store.Op, old store.State, row *store.State, w bool, _ int64) bool {
	if op.Verb == store.VerbCharge && old.Lows != nil {
		row.Lows = old.Lows
	}
	return w
}

func lowsUnconverted(def *store.Definition, row *store.State, _ []store.Record, now int64) {
	lows := row.Lows
	row.Lows = nil
	*row, _ = def.Carry(*row, "", now)
	row.Lows = lows
}
