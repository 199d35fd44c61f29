package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/store"
)

// This file keeps the rates of adaptive limits, each in a hash of its own: see rate.lua.
// A script that decides reads the rate in the same call. If the program knows another
// revision of the rate, the script's answer contains the rate. In a cluster the rate is
// usually in another slot than the bucket. There the program sends the rate that it
// knows, as it does with definitions, and learns of a new one by a message.

// A rate is what this program knows of the rate of an adaptive limit.
type rate struct {
	def  *store.Definition         // its Rule.Pace has the rate as read last
	used atomic.Pointer[fixedRate] // used by the last call

	mu       sync.Mutex
	revision int64 // of the rate in Rule.Pace
	learned  int   // how often the rate was set
}

// A fixedRate is a rate at one revision, by which a call is decided and answered.
type fixedRate struct {
	revision int64
	levels   []byte            // for scripts
	def      *store.Definition // the limit with this rate
}

// unknownRevision is the revision of no rate, so that a script answers with the rate that
// there is.
const unknownRevision = -1

func newRate(d *store.Definition) *rate {
	r := &rate{def: d}
	r.used.Store(r.at(unknownRevision, d.Rule.Pace.State()))
	return r
}

// at returns a fixed rate with the state s.
func (r *rate) at(revision int64, s adaptive.State) *fixedRate {
	d := *r.def
	c := d.Rule.Pace.Config()
	d.Rule.Pace = adaptive.NewPace(c)
	d.Rule.Pace.Set(s)
	return &fixedRate{revision, packLevels(c.Floor, s.History), &d}
}

// packLevels returns the levels of a rate for scripts.
func packLevels(floor int64, h adaptive.History) []byte {
	p := packed{b: make([]byte, arrayHead)}
	p.add(floor)
	for _, c := range h.Changes() {
		p.add(c.At, c.Level)
	}
	return p.array(&packed{})
}

// unobserved returns the levels of a limit that was never observed.
func (r *rate) unobserved() []byte {
	c := r.def.Rule.Pace.Config()
	return packLevels(c.Floor, c.Begin().History)
}

// moved takes over the rate with which a script has decided, from its reply. Other
// programs number the ticks of the rate differently, which makes no difference: a row is
// stepped by the difference of two ticks.
func (r *rate) moved(revision int64, levels []int64) *fixedRate {
	var changes []adaptive.Change
	for i := 1; i+1 < len(levels); i += 2 {
		c := adaptive.Change{At: levels[i], Level: levels[i+1]}
		if n := len(changes); n > 0 {
			last := changes[n-1]
			c.Ticks = last.Ticks + last.Level*(c.At-last.At)
		}
		changes = append(changes, c)
	}
	f := r.at(revision, adaptive.State{History: adaptive.Restore(levels[0], changes)})
	r.used.Store(f)
	return f
}

// learn takes over a rate that was read, unless a later one was taken over during the read.
// learned is r.learned as it was before the read.
func (r *rate) learn(revision int64, s adaptive.State, learned int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if revision < r.revision && learned != r.learned {
		return
	}
	r.revision = revision
	r.learned++
	r.def.Rule.Pace.Set(s)
	r.used.Store(r.at(revision, s))
}

// known returns the revision of the rate that this program knows, and a number that
// changes when it learns of another.
func (r *rate) known() (revision int64, learned int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision, r.learned
}

// parseRate decodes the fields "of" and "state" of a rate. A rate of another version of
// the limit counts as missing.
func parseRate(d *store.Definition, of, text string) (revision int64, s adaptive.State, err error) {
	number, rest, _ := strings.Cut(of, " ")
	c := d.Rule.Pace.Config()
	if number != strconv.FormatUint(uint64(d.Number), 10) {
		return 0, c.Begin(), nil
	}
	if revision, err = strconv.ParseInt(rest, 10, 64); err == nil {
		s, err = adaptive.Parse(c.Floor, text)
	}
	if err != nil {
		err = badRate(d, err)
	}
	return revision, s, err
}

func badRate(d *store.Definition, err error) error {
	return fmt.Errorf("%w: the rate of limit %s as it is stored: %w", store.ErrStore, d.Name, err)
}

// readRate sets the rate of a new definition, which is not in use yet, to the rate in
// Redis.
func (l *limits) readRate(ctx context.Context, d *store.Definition) error {
	if d == nil || d.Rule.Pace == nil {
		return nil
	}
	fields, err := l.s.db.HGetAll(ctx, l.s.names.rate(d.Name)).Result()
	if err != nil {
		return err
	}
	_, s, err := parseRate(d, fields["of"], fields["state"])
	if err == nil {
		d.Rule.Pace.Set(s)
	}
	return err
}

// refreshRates reads the rates of all adaptive limits.
func (l *limits) refreshRates(ctx context.Context) error {
	var rates []*rate
	var learned []int
	for _, e := range *l.entries.Load() {
		if e.rate != nil {
			_, n := e.rate.known()
			rates, learned = append(rates, e.rate), append(learned, n)
		}
	}
	if len(rates) == 0 {
		return nil
	}
	cmds, err := l.s.db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, r := range rates {
			p.HGetAll(ctx, l.s.names.rate(r.def.Name))
		}
		return nil
	})
	for i, r := range rates {
		if err != nil {
			return err
		}
		var s adaptive.State
		var revision int64
		fields := cmds[i].(*redis.MapStringStringCmd).Val()
		if revision, s, err = parseRate(r.def, fields["of"], fields["state"]); err == nil {
			r.learn(revision, s, learned[i])
		}
	}
	return err
}

// forgetRate deletes the rate of a limit that is no longer adaptive. It does so again
// after every program has learned of the change, because until then programs observe.
func (l *limits) forgetRate(ctx context.Context, limit string) error {
	remove := func(ctx context.Context) error { return l.s.db.Del(ctx, l.s.names.rate(limit)).Err() }
	l.s.cat.Go(func(ctx context.Context) {
		if await.Sleep(ctx, propagation) != nil {
			return
		}
		if e := l.entry(limit); e == nil || e.rate == nil {
			if err := remove(ctx); err != nil {
				l.config.OnError(storeError(err, true))
			}
		}
	})
	return remove(ctx)
}

// Codes of observe.lua.
const (
	sampleAdded = 0
	windowOver  = 1
	newerLimit  = 2
)

// observe adds an observation of the calls behind an adaptive limit, and sets the rate if
// a window is over. If several programs find the window over at the same time, one sets
// the rate, and the others' observations count in the next window.
func (s *Store) observe(ctx context.Context, d *store.Definition, o store.Observation) error {
	var sample adaptive.Sample
	sample.Add(adaptive.Sample(o))
	for range maxRounds {
		e, err := s.limits.named(ctx, &store.Op{Def: d.Base()})
		if err != nil || e.rate == nil {
			return err
		}
		if done, err := s.addSample(ctx, e.rate, sample); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: gave up after %d attempts, because others changed the rate of limit %s in between; nothing was added", store.ErrStore, maxRounds, d.Name)
}

func (s *Store) addSample(ctx context.Context, r *rate, sample adaptive.Sample) (done bool, err error) {
	known, learned := r.known()
	c, key := r.def.Rule.Pace.Config(), s.names.rate(r.def.Name)
	call, err := s.process(ctx, newCall(ctx, s.scripts.observe, true, s.withClock([]any{nil, nil, 1, key,
		r.def.Number, c.Window, sample.Count, sample.Slow, sample.Failed, sample.Taken})))
	if err != nil {
		return false, err
	}
	v := call.list()
	n := func(i int) int64 { x, _ := v[i].(int64); return x }
	switch n(0) {
	case sampleAdded:
		if n(2) == known {
			return true, nil
		}
		return true, storeError(s.limits.refreshRates(ctx), false)
	case newerLimit:
		return false, storeError(s.cat.Load(ctx), false)
	}
	now, revision, state := n(1), n(2), c.Begin()
	if text := textOf(v[8]); text != "" {
		if state, err = adaptive.Parse(c.Floor, text); err != nil {
			return false, badRate(r.def, err)
		}
	}
	state.Begun, state.Seen = n(3), adaptive.Sample{Count: n(4), Slow: n(5), Failed: n(6), Taken: n(7)}
	state = c.Add(state, now, sample)
	return s.setRate(ctx, r, revision, state, learned)
}

// setRate stores a rate, unless the rate has another revision by now.
func (s *Store) setRate(ctx context.Context, r *rate, revision int64, state adaptive.State, learned int) (done bool, err error) {
	channel := "" // without a cluster no message is needed: others learn the rate when they decide
	if s.names.cluster {
		channel = s.names.limits
	}
	seen := join([]int64{state.Begun, state.Seen.Count, state.Seen.Slow, state.Seen.Failed, state.Seen.Taken})
	v, err := s.run(ctx, newCall(ctx, s.scripts.rate, true, s.withClock([]any{nil, nil, 1, s.names.rate(r.def.Name),
		revision, r.def.Number, packLevels(r.def.Rule.Pace.Config().Floor, state.History), state.Text(), seen, channel})))
	if err != nil || v[0] == 0 {
		return false, err
	}
	r.learn(v[0], state, learned)
	return true, nil
}

// slowestFull returns the longest time until used units have come back. For an adaptive
// limit this is the time at the floor, to which the rate may fall at any time.
func slowestFull(r *store.Rule, used, t, now int64) int64 {
	if r.Pace == nil {
		return algebra.TimeToFull(r, used, t, now)
	}
	if used == 0 {
		return 0
	}
	return t - now + algebra.TicksFor(used, r.Add)/r.Pace.Config().Floor + 1
}
