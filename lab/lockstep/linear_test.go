package lockstep

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// Sizes of the concurrent histories. Each round has new keys and starts at a
// barrier, because a race without a barrier rarely finds a missing lock.
const (
	callers      = 16
	rounds       = 20
	callsEach    = 4           // of a caller in a round
	checkTimeout = time.Second // of one search, which takes milliseconds, and once in a long while for ever
	maxTries     = 20          // of a round whose search does not end
)

// instants are the clock's times in a round.
var instants = func() (list []int64) {
	for i := range 6 {
		list = append(list, epoch+int64(i)*400_000)
	}
	return list
}()

// concurrent are limits of each algorithm that a few calls drain.
var concurrent = []dipwell.Limit{
	{Name: "bucket", Rate: 3, Period: time.Second, Burst: 20},
	{Name: "second", Rate: 2, Period: time.Second, Burst: 12, MaxDebt: 4},
	{Name: "window", Algorithm: dipwell.FixedWindow, Rate: 9, Period: time.Second, Start: "0s"},
	{Name: "leaky", Algorithm: dipwell.LeakyBucket, Rate: 4, Period: time.Second, MaxDebt: 12},
}

// input is a call: the input of an operation.
type input struct {
	cancel  dipwell.Reservation // to give back; zero: ops are asked
	ops     []op
	several bool
	from    int // the clock's reading when it began, and when it ended
	to      int
}

// op is an operation on one of the buckets of a history.
type op struct {
	bucket int
	verb   store.Verb
	cost   int64
}

// output is the answer to a call: the output of an operation.
type output struct {
	unknown bool // an error: it happened, now or later, or it did not
	none    bool // there was no such reservation
	id      dipwell.Reservation
	answers []answer
}

func (in input) String() string {
	if in.cancel != (dipwell.Reservation{}) {
		return fmt.Sprintf("cancel %.8s at %d to %d", in.cancel, in.from, in.to)
	}
	text := ""
	for _, o := range in.ops {
		text += fmt.Sprintf("%s %d of %d, ", o.verb, o.cost, o.bucket)
	}
	return fmt.Sprintf("%sat %d to %d", text, in.from, in.to)
}

func (out output) String() string {
	switch {
	case out.unknown:
		return "nobody knows"
	case out.none:
		return "no such reservation"
	case out.id != dipwell.Reservation{}:
		return fmt.Sprintf("%v as %.8s", out.answers, out.id)
	}
	return fmt.Sprint(out.answers)
}

func (a answer) String() string {
	return fmt.Sprintf("(allowed %v never %v shadow %v granted %d left %d retry %d reset %d delay %d)", a.allowed, a.never, a.shadow, a.granted, a.remaining, a.retry, a.reset, a.delay)
}

// world is the model's state: the buckets and reservations of one history.
type world struct {
	rows     [2]store.State
	records  [2][]store.Record
	reserved []pendingReservation
}

// pendingReservation is a reservation that is not yet due; its parts are numbers and marks of records.
type pendingReservation struct {
	id    dipwell.Reservation
	due   int64
	parts [2]struct{ number, mark int64 }
}

// model is the algebra of package store. A call may read the clock at any time
// between its start and its end.
type model struct {
	defs [2]*store.Definition
	keys [2]string
}

func (m *model) porcupine() porcupine.Model {
	n := porcupine.NondeterministicModel{
		Init:  func() []any { return []any{world{}} },
		Step:  func(state, in, out any) []any { return m.step(state.(world), in.(input), out.(output)) },
		Equal: func(a, b any) bool { return a.(world).equal(b.(world)) },
		Hash:  func(state any) uint64 { return state.(world).hash() },
	}
	return n.ToModel()
}

func (w world) equal(o world) bool {
	for i, a := range w.rows {
		b := o.rows[i]
		if a.Used != b.Used || a.TS != b.TS || !reflect.DeepEqual(a.Lows, b.Lows) || !slices.Equal(w.records[i], o.records[i]) {
			return false
		}
	}
	return slices.Equal(w.reserved, o.reserved)
}

func (w world) hash() (h uint64) {
	for _, row := range w.rows {
		h = (h*31+uint64(row.Used))*1_000_003 + uint64(row.TS)
	}
	return h*31 + uint64(len(w.reserved))
}

// step returns every state in which the call has the given answer.
func (m *model) step(w world, in input, out output) (after []any) {
	to := in.to
	if out.unknown {
		after, to = append(after, w), len(instants)-1
	}
	for i := in.from; i <= to; i++ {
		if next, got := m.apply(w, in, out.id, instants[i]); out.unknown || got.none == out.none && slices.Equal(got.answers, out.answers) {
			after = append(after, next)
		}
	}
	return after
}

func (m *model) apply(w world, in input, id dipwell.Reservation, now int64) (world, output) {
	if in.cancel != (dipwell.Reservation{}) {
		return m.giveBack(w, in.cancel, now)
	}
	g := store.Group{Ops: make([]store.Op, len(in.ops)), ID: id}
	var rows [2]store.State
	var records [2][]store.Record
	var write [2]bool
	for i, o := range in.ops {
		op := &g.Ops[i]
		*op = store.Op{Def: m.defs[o.bucket], Key: m.keys[o.bucket], Verb: o.verb, Cost: o.cost}
		rows[i], records[i], _ = advanced(op.Def, op.Key, w.rows[o.bucket], w.records[o.bucket], now)
	}
	if err := g.Decide(now, rows[:len(in.ops)], write[:]); err != nil {
		panic(err) // there is one version
	}
	var t output
	h := pendingReservation{id: id, due: now + g.Due()}
	for i, o := range in.ops {
		op := &g.Ops[i]
		a := &op.Answer
		t.answers = append(t.answers, answer{a.Allowed, a.Never, a.Shadow, a.Granted, a.Remaining, a.Retry, a.Reset, a.Delay})
		if g.Reserved && a.Granted > 0 {
			n := op.Record(&rows[i], id, now, h.due)
			h.parts[o.bucket].number, h.parts[o.bucket].mark = n.Number, n.Mark
			records[i] = append(records[i], n)
		}
		if write[i] {
			w.rows[o.bucket], w.records[o.bucket] = rows[i], records[i]
		}
		if g.Allowed && o.verb == store.VerbReset {
			w.rows[o.bucket], w.records[o.bucket] = store.State{}, nil
			w.reserved = without(w.reserved, func(h pendingReservation) bool { return h.parts[o.bucket].number > 0 })
		}
	}
	if g.Reserved {
		w.reserved = append(slices.Clone(w.reserved), h)
		slices.SortFunc(w.reserved, func(a, b pendingReservation) int { return strings.Compare(string(a.id[:]), string(b.id[:])) })
	}
	return w, t
}

// advanced returns a row and its records, prepared for a write.
func advanced(def *store.Definition, key string, row store.State, records []store.Record, now int64) (store.State, []store.Record, error) {
	records = slices.Clone(records)
	if row.Lows == nil {
		return row, records, nil
	}
	return def.Advance(row, key, now, records)
}

func (m *model) giveBack(w world, id dipwell.Reservation, now int64) (world, output) {
	at := slices.IndexFunc(w.reserved, func(h pendingReservation) bool { return h.id == id })
	if at < 0 || w.reserved[at].due <= now {
		return w, output{none: true}
	}
	h := w.reserved[at]
	for i, p := range h.parts {
		if p.number > 0 {
			w.rows[i], w.records[i], _ = m.defs[i].GiveBack(w.rows[i], m.keys[i], now, slices.Clone(w.records[i]), p.number, p.mark)
		}
	}
	w.reserved = without(w.reserved, func(h pendingReservation) bool { return h.id == id })
	return w, output{}
}

func without(list []pendingReservation, drop func(pendingReservation) bool) (out []pendingReservation) {
	for _, h := range list {
		if !drop(h) {
			out = append(out, h)
		}
	}
	return out
}

// racing makes concurrent histories on one store.
type racing struct {
	*dipwell.Limiter
	reading       *atomic.Int64 // of instants
	yield         func()
	calls, beside int // calls, and how many of them began beside another
	undecided     int // rounds that were run again
}

func newRacing(t testing.TB, open func(t testing.TB, now func() int64) store.Store) *racing {
	t.Helper()
	r := &racing{reading: new(atomic.Int64), yield: runtime.Gosched}
	var err error
	r.Limiter, err = dipwell.New(open(t, r.now), concurrent...)
	ok(t, err)
	return r
}

// now is the stores' clock. It yields, so that calls of stores in memory, which
// take less than a time slice of the scheduler, run concurrently.
func (r *racing) now() int64 {
	now := instants[r.reading.Load()]
	r.yield()
	return now
}

// overlapping counts the calls that began while another one was running.
func overlapping(history []porcupine.Operation) (n int) {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var latest int64
	for _, o := range history {
		if o.Call < latest {
			n++
		}
		latest = max(latest, o.Return)
	}
	return n
}

// check runs rounds of concurrent calls and returns an error for the first
// round whose answers no order of the calls explains.
func (r *racing) check(ctx context.Context, seed uint64, rounds int) error {
	limits := concurrent
	if ctx.Value(noReservations{}) != nil {
		limits = concurrent[:3] // the leaky bucket reserves
	}
	for round := range rounds {
		for try := 0; ; try++ {
			decided, err := r.round(ctx, seed, round, try, limits)
			if err != nil {
				return err
			}
			if decided {
				break
			}
			if r.undecided++; try == maxTries {
				return fmt.Errorf("round %d could not be checked within %v, %d times", round, checkTimeout, try)
			}
		}
	}
	return nil
}

// round runs one round. It is undecided if the search for an order, which
// usually takes milliseconds, does not end in time; the round is then run again
// with other calls.
func (r *racing) round(ctx context.Context, seed uint64, round, try int, limits []dipwell.Limit) (decided bool, err error) {
	r.reading.Store(0)
	random := rand.New(rand.NewPCG(seed, uint64(round)+uint64(try)<<32))
	m, pair := r.model(random, round, limits)
	history := r.race(ctx, random, m, pair)
	r.calls += len(history)
	r.beside += overlapping(history)
	switch porcupine.CheckOperationsTimeout(m.porcupine(), history, checkTimeout) {
	case porcupine.Ok:
		return true, nil
	case porcupine.Illegal:
		return true, fmt.Errorf("round %d: no order of the calls explains these answers about %s %q and %s %q:\n%s", round,
			m.defs[0].Name, m.keys[0], m.defs[1].Name, m.keys[1], describe(history))
	}
	return false, nil
}

// model draws the buckets of a round: one, or in every other round a pair that
// calls may use in one group.
func (r *racing) model(random *rand.Rand, round int, limits []dipwell.Limit) (m *model, pair bool) {
	first, second := random.IntN(len(limits)), random.IntN(len(limits))
	m = &model{}
	for i, n := range []int{first, second} {
		m.defs[i], m.keys[i] = r.Limit(limits[n].Name), fmt.Sprintf("round %d of %x, %d", round, random.Uint64(), i)
	}
	return m, round%2 == 1
}

// race runs one round: all callers start at the same time, and the clock
// advances between calls. Some stores get the time with the call. For them, a
// call sent before the clock advanced and decided after a later one would be a
// step back of the clock, which a full row, possibly deleted, does not notice.
func (r *racing) race(ctx context.Context, random *rand.Rand, m *model, pair bool) (history []porcupine.Operation) {
	var mu sync.Mutex
	var clock sync.RWMutex
	var wg sync.WaitGroup
	start, began := make(chan struct{}), time.Now()
	for caller := range callers {
		mine := rand.New(rand.NewPCG(random.Uint64(), 0))
		wg.Go(func() {
			<-start
			var reserved []dipwell.Reservation
			for range callsEach {
				in := drawInput(mine, pair, &reserved)
				if ctx.Value(noReservations{}) != nil {
					in.withoutReservations()
				}
				clock.RLock()
				in.from = int(r.reading.Load())
				call := time.Since(began).Nanoseconds()
				out := r.ask(ctx, m, in)
				end := time.Since(began).Nanoseconds()
				if in.to = int(r.reading.Load()); out.unknown {
					end = 1<<63 - 1
				}
				clock.RUnlock()
				if !out.unknown && out.id != (dipwell.Reservation{}) {
					reserved = append(reserved, out.id)
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: caller, Input: in, Call: call, Output: out, Return: end})
				n := len(history)
				mu.Unlock()
				if n%(callers*callsEach/len(instants)+1) == 0 && mine.IntN(2) == 0 {
					clock.Lock()
					r.reading.Add(1) // bounded: so many calls there are not
					clock.Unlock()
				}
			}
		})
	}
	close(start)
	wg.Wait()
	return history
}

// drawInput draws a call on the first bucket, the second, or both.
func drawInput(random *rand.Rand, pair bool, reserved *[]dipwell.Reservation) input {
	if n := len(*reserved); n > 0 && random.IntN(3) == 0 {
		in := input{cancel: (*reserved)[n-1]}
		if random.IntN(4) > 0 { // else it is given back twice
			*reserved = (*reserved)[:n-1]
		}
		return in
	}
	one := op{verb: []store.Verb{
		store.VerbTake, store.VerbTake, store.VerbTake, store.VerbTake, store.VerbTakeUpTo, store.VerbCheck,
		store.VerbReserve, store.VerbReserve, store.VerbCharge, store.VerbRefund, store.VerbReset,
	}[random.IntN(11)], cost: 1 + random.Int64N(2)}
	if one.verb == store.VerbReset {
		if one.cost = 0; random.IntN(4) > 0 {
			one = op{verb: store.VerbTake, cost: 1}
		}
	}
	if !pair {
		return input{ops: []op{one}}
	}
	if random.IntN(3) == 0 {
		one.bucket = random.IntN(2)
		return input{ops: []op{one}}
	}
	verb := []store.Verb{store.VerbTake, store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbReserve}[random.IntN(5)]
	in := input{several: true, ops: []op{{0, verb, 1}, {1, verb, 1 + random.Int64N(2)}}}
	if random.IntN(2) == 0 { // the other way round: it must not deadlock
		slices.Reverse(in.ops)
	}
	return in
}

// noReservations is a context key for stores without reservations.
type noReservations struct{}

func withoutReservations(ctx context.Context) context.Context {
	return context.WithValue(ctx, noReservations{}, true)
}

func (in *input) withoutReservations() {
	for i := range in.ops {
		if in.ops[i].verb == store.VerbReserve {
			in.ops[i].verb = store.VerbTake
		}
	}
}

var numLost atomic.Uint64

// lostReservation returns an id for the reservation that a call of unknown outcome may
// have made. Each is another one: the id marks the list of lows that begins with the
// reservation, and with one mark for all of them a list that was made anew would be
// taken for the one before it.
func lostReservation() (id dipwell.Reservation) {
	binary.BigEndian.PutUint64(id[8:], numLost.Add(1))
	return id
}

func (r *racing) ask(ctx context.Context, m *model, in input) (out output) {
	if in.cancel != (dipwell.Reservation{}) {
		class := classOf(r.Cancel(ctx, in.cancel))
		return output{none: class == "reservation", unknown: class != "" && class != "reservation"}
	}
	var d dipwell.Decision
	var err error
	if in.several {
		var takes []dipwell.Take
		for _, o := range in.ops {
			takes = append(takes, dipwell.Take{Limit: m.defs[o.bucket].Name, Key: m.keys[o.bucket], Cost: o.cost})
		}
		err = r.DoAll(ctx, &d, in.ops[0].verb, takes)
	} else {
		o := in.ops[0]
		err = r.Do(ctx, &d, o.verb, dipwell.Take{Limit: m.defs[o.bucket].Name, Key: m.keys[o.bucket], Cost: o.cost})
		d.Limits = []dipwell.Decision{d}
	}
	if out.unknown = err != nil; out.unknown {
		out.id = lostReservation()
		return out
	}
	out.id = d.Reservation
	for _, l := range d.Limits {
		out.answers = append(out.answers, answer{l.Allowed, l.Never, l.Shadow, l.Granted, l.Remaining,
			l.RetryAfter.Microseconds(), l.ResetAfter.Microseconds(), l.Delay.Microseconds()})
	}
	return out
}

func describe(history []porcupine.Operation) string {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, o := range history {
		fmt.Fprintf(&b, "%8d µs to %8d µs  caller %2d  %v → %v\n", o.Call/1000, o.Return/1000, o.ClientId, o.Input, o.Output)
	}
	return b.String()
}

// TestLinearizable checks that the answers of any store to concurrent callers,
// also coalesced, are those of some order of the calls. It leaves out the deny
// cache, which may still refuse from the cached row while a refund is in
// flight.
func TestLinearizable(t *testing.T) {
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) { newRacing(t, s.open).linearizable(t) })
		t.Run(s.name+", coalesced", func(t *testing.T) {
			newRacing(t, func(t testing.TB, now func() int64) store.Store {
				return withFallback(t, coalesced(t, s.open(t, now), now), now)
			}).linearizable(t)
		})
	}
}

func (r *racing) linearizable(t *testing.T) {
	seed := limittest.NewSeed(t)
	if err := r.check(t.Context(), seed, rounds); err != nil {
		t.Errorf("with %s=%d, %v", limittest.SeedSetting, seed, err)
	}
	if t.Logf("%d of %d calls began beside another; %d rounds were undecided and run again", r.beside, r.calls, r.undecided); r.beside == 0 {
		t.Error("no two calls were in flight together")
	}
}
