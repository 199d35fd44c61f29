package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// This file decides in Go what the scripts alone cannot: read.lua reads the keys,
// Group.DecideIn decides, and write.lua writes what has changed unless one of the
// keys was changed in the meantime.

// A table is a store.Table of some rows, reservations and holds. If DecideIn asks for
// something that is missing, it is read before the next try.
type table struct {
	s      *Store
	limits *store.Registry // the limits of s, unless a limit is being changed: then they cannot be read
	token  string          // random token of the caller's locks

	rows  []*tableRow
	holds []*tableHold
	tag   string            // hash tag in the names of holds, in a cluster
	id    store.Reservation // id of the reservation to make or cancel
	parts []store.Part      // parts of the reservation to cancel

	now     int64
	digest  string
	missing bool // DecideIn asked for a value that was not read
	loaded  bool // the limits were read because of a limit that was not known
	drops   bool // a limit is being dropped: other parts of its holds stay as they are
	made    store.Pending
	text    string // text of the new reservation, as stored
	ended   bool   // the reservation must be deleted
}

// A tableRow is the row of a key with its records and its override.
type tableRow struct {
	limit, key string

	text     string // the row as read; "" if there is none
	records  map[string]string
	override string
	free     int   // number of live holds that took nothing from it
	freeTill int64 // when the last of these holds expires

	state   store.State // the row that DecideIn gets, and after SetRow the one that must be stored
	list    []store.Record
	ids     map[store.RecordID]string // by record: its field in the hash
	changed []store.RecordID

	set, setOverride bool
}

// A tableHold is a hold with its parts.
type tableHold struct {
	id   string
	text string // as read
	hold store.Hold
	set  bool
}

var errMissing = errors.New("not read yet")

var _ store.Table = (*table)(nil)

func (s *Store) newTable() *table {
	return &table{s: s, limits: &s.limits.reg, token: strconv.FormatUint(rand.Uint64(), 36)}
}

func (t *table) row(limit, key string) *tableRow {
	for _, r := range t.rows {
		if r.limit == limit && r.key == key {
			return r
		}
	}
	return nil
}

// want has a row read in the next round.
func (t *table) want(limit, key string) {
	if t.row(limit, key) == nil {
		t.rows = append(t.rows, &tableRow{limit: limit, key: key})
	}
}

func (t *table) hold(id string) *tableHold {
	for _, h := range t.holds {
		if h.id == id {
			return h
		}
	}
	return nil
}

// wantHold returns a hold. If the table has not read it, it is read in the next round.
func (t *table) wantHold(id string) *tableHold {
	h := t.hold(id)
	if h == nil {
		h = &tableHold{id: id}
		t.holds = append(t.holds, h)
	}
	return h
}

func (t *table) Row(limit, key string) (store.State, error) {
	r := t.row(limit, key)
	if r == nil && t.elsewhere(limit, key) {
		return store.State{}, nil // it belongs to a part that Hold has ended
	}
	if r == nil || t.missing {
		t.want(limit, key)
		t.missing = true
		return store.State{}, errMissing
	}
	return r.state, nil
}

func (t *table) SetRow(limit, key string, row store.State) error {
	r := t.row(limit, key)
	row.Override = r.state.Override
	r.state, r.set = row, true
	return nil
}

func (t *table) Record(limit, key string, id store.RecordID) (store.Record, error) {
	list, err := t.Records(limit, key)
	return store.FindRecord(list, id), err
}

func (t *table) Records(limit, key string) ([]store.Record, error) {
	if r := t.row(limit, key); r != nil {
		return r.list, nil
	}
	return nil, nil // elsewhere
}

func (t *table) SetRecord(limit, key string, id store.RecordID, record store.Record) error {
	r := t.row(limit, key)
	if record.Hold != "" {
		r.ids[id] = holdField + record.Hold
	}
	r.list, r.changed, r.set = store.ReplaceRecord(r.list, id, record), append(r.changed, id), true
	return nil
}

func (t *table) SetOverride(limit, key string, o *store.Override) error {
	r := t.row(limit, key)
	r.state.Override, r.setOverride = o, true
	return nil
}

func (t *table) Hold(id string) (store.Hold, error) {
	h := t.hold(id)
	if h == nil || t.missing {
		t.wantHold(id)
		t.missing = true
		return store.Hold{}, errMissing
	}
	for i := range h.hold.Parts {
		p := &h.hold.Parts[i]
		r := t.row(p.Limit, p.Key)
		if r != nil && !p.Free {
			if one, err := parseRecord(holdField+id, r.records[holdField+id]); err == nil {
				p.Number, p.Mark = one.Number, one.Mark
			}
		}
		if t.drops {
			continue
		}
		if err := t.find(p.Limit); err != nil {
			return store.Hold{}, err
		}
		if t.elsewhere(p.Limit, p.Key) {
			p.Reset = true // in its new slot the key has begun anew
		} else if r == nil {
			t.want(p.Limit, p.Key)
			t.missing = true
		}
	}
	if t.missing {
		return store.Hold{}, errMissing
	}
	return h.hold, nil
}

// elsewhere reports whether a row is in another slot of the cluster than the table's
// holds. Its limit had another parent when the hold was made, or was dropped.
func (t *table) elsewhere(limit, key string) bool {
	return t.s.names.cluster && t.tag != "" && slot(t.s.names.bucket(limit, key)) != slot(t.tag)
}

// find returns an error if a limit is not known, unless it was dropped. The limits are read
// first, because another program may have defined it just now.
func (t *table) find(limit string) error {
	reg := &t.s.limits.reg
	if reg.Lookup(limit) != nil {
		return nil
	}
	if !t.loaded {
		t.loaded = true
		return store.ErrStaleDefinition
	}
	return reg.Unreadable(limit)
}

func (t *table) Live(limit, key string, _ int64) (int, error) {
	r := t.row(limit, key)
	return len(r.list) + r.free, nil
}

func (t *table) SetHold(id string, hold store.Hold) error {
	h := t.wantHold(id)
	h.hold, h.set = hold, true
	return nil
}

// Pending returns the reservation to cancel, made from its record on each row. If one of
// the rows has no record of it, there is no such reservation any more: it was cancelled or
// has fallen due, or the key was reset.
func (t *table) Pending(id store.Reservation) (h store.Pending, err error) {
	for i := range t.parts {
		p := &t.parts[i]
		if _, err = t.Row(p.Limit, p.Key); err != nil {
			return h, err
		}
		text := t.row(p.Limit, p.Key).records[id.String()]
		if text == "" {
			return store.Pending{}, nil
		}
		one, err := parseRecord(id.String(), text)
		if err != nil {
			return h, err
		}
		if one.Rest {
			return store.Pending{}, nil
		}
		h.Due = one.Ends
		h.Parts = append(h.Parts, store.Part{Limit: p.Limit, Key: p.Key, Number: one.Number, Mark: one.Mark})
	}
	return h, nil
}

func (t *table) SetPending(id store.Reservation, h store.Pending) error {
	t.made, t.ended = h, len(h.Parts) == 0
	for _, p := range h.Parts {
		r := t.row(p.Limit, p.Key)
		r.ids[store.RecordID{Mark: p.Mark, Number: p.Number}] = id.String()
	}
	return nil
}

// keys returns the arguments of read.lua and write.lua up to the token.
func (t *table) keys() []any {
	n := &t.s.names
	args := make([]any, 3, 9+5*len(t.rows)+len(t.holds))
	var kinds strings.Builder
	for _, r := range t.rows {
		args = append(args, n.of(n.locks, r.limit, r.key))
	}
	for _, r := range t.rows {
		args = append(args, n.bucket(r.limit, r.key))
	}
	for _, r := range t.rows {
		args = append(args, n.of(n.overrides, r.limit, r.key), n.of(n.records, r.limit, r.key), n.of(n.free, r.limit, r.key))
	}
	for _, h := range t.holds {
		if n.cluster && t.tag == "" {
			t.tag = slotTags()[slot(n.bucket(t.rows[0].limit, t.rows[0].key))]
		}
		args = append(args, n.hold(t.tag, h.id))
	}
	kinds.WriteString(strings.Repeat("s", len(t.rows)) + strings.Repeat("shf", len(t.rows)) + strings.Repeat("s", len(t.holds)))
	if t.id != (store.Reservation{}) && !n.cluster {
		args = append(args, n.reservation(t.id))
		kinds.WriteByte('s')
	}
	args[2] = len(args) - 3
	return append(args, len(t.rows), kinds.String(), t.token)
}

// rowKey and those below return the number, from 1, of a key in the commands of write.lua.
func (t *table) rowKey(i int) int      { return 1 + i }
func (t *table) overrideKey(i int) int { return 1 + len(t.rows) + 3*i }
func (t *table) recordsKey(i int) int  { return t.overrideKey(i) + 1 }
func (t *table) freeKey(i int) int     { return t.overrideKey(i) + 2 }
func (t *table) holdKey(i int) int     { return t.overrideKey(len(t.rows)) + i }

// lockFor is how long others wait for a caller that has locked keys. If that caller dies,
// they go on after this time.
const lockFor = 250 * time.Millisecond

// read reads all keys, unless another caller has locked one of them.
func (t *table) read(ctx context.Context, lock bool) (ok bool, err error) {
	ms := int64(0)
	if lock {
		ms = lockFor.Milliseconds()
	}
	c, err := t.s.process(ctx, t.s.call(ctx, t.s.scripts.read, lock, append(t.keys(), ms)))
	if err != nil {
		return false, err
	}
	reply, _ := c.Slice()
	t.now, _ = reply[0].(int64)
	if len(reply) == 1 {
		return false, nil
	}
	t.digest, _ = reply[1].(string)
	values, _ := reply[2].([]any)
	for i, r := range t.rows {
		o := t.overrideKey(i) - 1
		r.text, r.override = textOf(values[t.rowKey(i)-1]), textOf(values[o])
		r.records = pairsOf(values[o+1])
		r.setFree(values[o+2])
		if err := r.decode(t); err != nil {
			return false, fmt.Errorf("%w: the key %s %w", store.ErrStore, t.s.names.bucket(r.limit, r.key), err)
		}
	}
	for i, h := range t.holds {
		h.text, h.set = textOf(values[t.holdKey(i)-1]), false
		if h.hold, err = decodeHold(h.text); err != nil {
			return false, fmt.Errorf("%w: the hold %s as it is stored: %w", store.ErrStore, h.id, err)
		}
	}
	t.missing, t.made, t.ended = false, store.Pending{}, false
	return true, nil
}

func textOf(v any) string {
	text, _ := v.(string)
	return text
}

func pairsOf(v any) map[string]string {
	list, _ := v.([]any)
	pairs := make(map[string]string, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		pairs[textOf(list[i])] = textOf(list[i+1])
	}
	return pairs
}

// setFree sets what the table knows of holds that took nothing from the row.
func (r *tableRow) setFree(v any) {
	pair, _ := v.([]any)
	if len(pair) == 2 {
		n, _ := pair[0].(int64)
		till, _ := strconv.ParseFloat(textOf(pair[1]), 64)
		r.free, r.freeTill = int(n), int64(till)
	}
}

var errNoBucket = errors.New("holds something that is not a bucket")

// decode sets the row, its records and its override from what was read.
func (r *tableRow) decode(t *table) (err error) {
	s := t.s
	r.set, r.setOverride, r.state, r.list = false, false, store.State{}, nil
	r.ids, r.changed = map[store.RecordID]string{}, nil
	row, ok := parseRow(r.text)
	if r.state = row.State; !ok {
		return errNoBucket
	}
	for field, text := range r.records {
		one, err := parseRecord(field, text)
		if err != nil {
			return fmt.Errorf("has records that cannot be read: %w", err)
		}
		r.list, r.ids[one.ID()] = append(r.list, one), field
	}
	slices.SortFunc(r.list, func(a, b store.Record) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Mark, b.Mark))
	})
	base := t.limits.Lookup(r.limit)
	if r.state.Used == 0 || len(r.list) == 0 && base != nil && base.Algorithm == store.Concurrency { // its holds have expired, and so has the key of their records
		r.state = store.State{} // it was kept for its holds or its override
	}
	if r.state.Lows != nil {
		r.state.Lows = r.state.Lows.Count(r.list)
	}
	r.state.Override, err = s.overrides.decode(r.limit, r.key, r.override)
	return err
}

// Bounds of a decision in Go.
const (
	maxWrites    = 100
	maxLockPause = 8 * time.Millisecond
	maxLockWait  = 10 * time.Second // longest wait for other programs
	maxTurnWait  = time.Minute      // longest wait for other calls of this program, each of which has a bound
)

// decideInGo decides a group by DecideIn.
func (s *Store) decideInGo(ctx context.Context, g *store.Group, parts []store.Part) error {
	t, asked := s.newTable(), make([]*store.Definition, len(g.Ops))
	t.parts, t.id = parts, g.ID
	for i := range g.Ops {
		asked[i] = g.Ops[i].Def
		t.want(g.Ops[i].Def.Name, g.Ops[i].Key)
	}
	for _, p := range parts {
		t.want(p.Limit, p.Key)
	}
	if g.Hold != nil {
		restore, err := t.openHold(g)
		if err != nil {
			return err
		}
		defer restore()
	}
	again := func() {
		if g.Hold != nil {
			g.Hold.Expires, g.Hold.Repeated = 0, false
		}
		g.Ops = g.Ops[:len(asked)] // settle and extend have set the other ops
		for i := range asked {
			g.Ops[i].Def, g.Ops[i].Answer = asked[i], store.Answer{}
		}
	}
	grows := !g.Cancel && !g.Settles() && !slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Verb == store.VerbReset })
	err := t.update(ctx, func() error {
		again()
		if err := g.DecideIn(t, &s.limits.reg, t.now); err != nil {
			return err
		}
		return t.register(ctx, g)
	}, grows)
	if err != nil {
		again() // the caller may call again
	}
	return err
}

// register prepares to store a reservation. In a cluster a reservation's key is in
// another slot than its rows. It is stored before any tokens are taken, so that the
// reservation can always be cancelled.
func (t *table) register(ctx context.Context, g *store.Group) error {
	if !g.Reserved {
		return nil
	}
	if t.text = texts.Marshal(t.made.Parts); !t.s.names.cluster {
		return nil
	}
	expire := time.Duration(t.made.Due-t.now)*time.Microsecond + time.Minute
	if t.s.clock != nil {
		expire = 0
	}
	return storeError(t.s.db.Set(ctx, t.s.names.reservation(g.ID), t.text, expire).Err(), false)
}

// update reads the keys, calls decide, and writes what decide has set. It repeats this
// until nothing has changed between the read and the write. grows tells whether the write
// may need memory.
//
// A caller that lost this race once waits for its turn among the callers in this program,
// in the order of arrival. In its turn it locks its keys, so that only other programs
// compete with it.
func (t *table) update(ctx context.Context, decide func() error, grows bool) (err error) {
	turn, locked, pause := background.Gate(nil), false, time.Millisecond
	var began time.Time // when the caller's turn began
	defer func() {
		if locked {
			_, _ = t.write(context.WithoutCancel(ctx), "") // if that fails, others go on after lockFor
		}
		if turn != nil {
			turn.Leave()
		}
	}()
	for writes := 0; writes < maxWrites; {
		ok, err := t.read(ctx, turn != nil)
		if err != nil {
			return err
		}
		if locked = turn != nil && ok; ok {
			switch err = decide(); {
			case t.missing:
				continue
			case errors.Is(err, store.ErrStaleDefinition) && t.limits == &t.s.limits.reg:
				if err = t.s.cat.Load(ctx); err != nil {
					return storeError(err, false)
				}
				writes++
				continue
			case err != nil:
				return err
			}
			commands := t.commands(grows)
			if commands == nil {
				return nil
			}
			if ok, err = t.write(ctx, texts.Marshal(commands)); ok || err != nil {
				locked = locked && !ok
				return err
			}
			writes++
		}
		if turn == nil {
			gate := t.s.turns.of(t.rows[0])
			waiting, stop := context.WithTimeout(ctx, maxTurnWait)
			err = gate.Enter(waiting)
			if stop(); err != nil {
				return t.tooLate(ctx, maxTurnWait)
			}
			turn, began = gate, time.Now()
			continue
		}
		if !ok && (time.Since(began) > maxLockWait || background.Sleep(ctx, rand.N(pause)) != nil) {
			return t.tooLate(ctx, maxLockWait)
		}
		pause = min(2*pause, maxLockPause)
	}
	return fmt.Errorf("%w: gave up, because limit %s with key %q was changed in between %d times; nothing was charged", store.ErrStore, t.rows[0].limit, t.rows[0].key, maxWrites)
}

// tooLate returns the error of a call that waited too long for others.
func (t *table) tooLate(ctx context.Context, wait time.Duration) error {
	if ctx.Err() != nil {
		return storeError(ctx.Err(), false)
	}
	return fmt.Errorf("%w: other calls kept limit %s with key %q locked for %v; nothing was charged", store.ErrStore, t.rows[0].limit, t.rows[0].key, wait)
}

// turns are the gates at which callers of the same key wait for their turn. Several keys
// may share a gate.
type turns [64]background.Gate

func newTurns() (g turns) {
	for i := range g {
		g[i] = make(background.Gate, 1)
	}
	return g
}

func (g *turns) of(r *tableRow) background.Gate {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.limit + " " + r.key))
	return g[h.Sum32()%uint32(len(g))]
}

// write writes commands, and removes the locks.
func (t *table) write(ctx context.Context, commands string) (bool, error) {
	v, err := t.s.run(ctx, t.s.call(ctx, t.s.scripts.write, commands != "", append(t.keys(), t.digest, commands, t.now)))
	return err == nil && v[0] == 1, err
}

// commands returns the commands for write.lua, or nil if nothing has changed. If the
// write needs no memory, the first command is one that a server never refuses for lack of
// memory: once it has run, the server does not refuse the commands after it either.
func (t *table) commands(grows bool) (list [][]any) {
	for i, r := range t.rows {
		if o := r.state.Override; r.setOverride && o != nil {
			list = append(list, []any{"SET", t.overrideKey(i), catalog.EncodeOverride(o)}) // rowCommands sets its expiry
		} else if r.setOverride {
			list = append(list, []any{"DEL", t.overrideKey(i)})
		}
		if r.set || r.setOverride {
			list = t.rowCommands(list, i, r, grows)
		}
	}
	for i, h := range t.holds {
		switch {
		case !h.set:
		case len(h.hold.Parts) == 0:
			list = append(list, []any{"DEL", t.holdKey(i)})
		default:
			list = t.freeCommands(list, h)
			list = append(list, t.expiring([]any{"SET", t.holdKey(i), encodeHold(&h.hold)}, h.hold.Forget))
		}
	}
	if !t.s.names.cluster && (len(t.made.Parts) > 0 || t.ended) {
		key := t.holdKey(len(t.holds))
		if t.ended {
			list = append(list, []any{"DEL", key})
		} else {
			list = append(list, t.expiring([]any{"SET", key, t.text}, t.made.Due))
		}
	}
	return list
}

// freeCommands appends the commands that count the parts of a hold that took nothing, as
// long as it lives.
func (t *table) freeCommands(list [][]any, h *tableHold) [][]any {
	for i, r := range t.rows {
		if !slices.ContainsFunc(h.hold.Parts, func(p store.Part) bool { return p.Free && p.Limit == r.limit && p.Key == r.key }) {
			continue
		}
		list = append(list, []any{"ZREM", t.freeKey(i), h.id}, []any{"ZREMRANGEBYSCORE", t.freeKey(i), "-inf", t.now})
		if at := h.hold.Expires; !h.hold.Settled && at > t.now {
			list = append(list, []any{"ZADD", t.freeKey(i), at, h.id})
			list = t.expire(list, t.freeKey(i), max(r.freeTill, at))
		}
	}
	return list
}

// expiring appends the time of expiry to a SET command, unless the key never expires.
func (t *table) expiring(command []any, at int64) []any {
	if at == math.MaxInt64 {
		return command
	}
	return append(command, "PXAT", t.milliseconds(at))
}

// expire appends the command PEXPIREAT.
func (t *table) expire(list [][]any, key int, at int64) [][]any {
	return append(list, []any{"PEXPIREAT", key, t.milliseconds(at)})
}

// milliseconds returns when Redis should expire a key. With a test's clock that is as
// much later as in clock_given.lua.
func (t *table) milliseconds(us int64) string {
	ms := us/1000 + 1
	if t.s.clock != nil {
		ms += 1 << 42
	}
	return strconv.FormatInt(ms, 10)
}

// leastLife is the shortest life of a row, in µs. After this time every program knows of
// a change of the row's limit, and rows that were written before have the longer expiry.
const leastLife = 2_000_000

// rowCommands appends the commands that store a row and its records.
func (t *table) rowCommands(list [][]any, i int, r *tableRow, grows bool) [][]any {
	base := t.limits.Lookup(r.limit)
	if base == nil { // the row's limit was dropped
		return append(list, []any{"DEL", t.rowKey(i)}, []any{"DEL", t.recordsKey(i)}, []any{"DEL", t.freeKey(i)})
	}
	lives := max(fullAt(base, r.state, r.key, t.now), t.now+leastLife)
	row, ends, held := r.encode(base, t.now)
	o, full := r.state.Override, lives
	if o != nil {
		lives = max(lives, fullAfter(base, o, r.key))
	}
	key := t.rowKey(i)
	if row == "" || !grows {
		list = append(list, []any{"DEL", key}) // DEL needs no memory
	}
	if row != "" {
		list = append(list, t.expiring([]any{"SET", key, row}, max(lives, held)))
	}
	var sets [][]any
	for _, id := range r.changed {
		if one := store.FindRecord(r.list, id); one != (store.Record{}) {
			sets = append(sets, []any{"HSET", t.recordsKey(i), r.ids[id], recordText(&one)})
		} else {
			list = append(list, []any{"HDEL", t.recordsKey(i), r.ids[id]})
		}
	}
	list = append(list, sets...)
	if len(r.list) > 0 {
		if held > 0 { // an expired hold is given back when somebody needs its tokens
			ends = max(ends, full, held+refill(base.Own(r.state, t.now)))
		}
		list = t.expire(list, t.recordsKey(i), max(ends, t.now))
	}
	if o != nil && o.Until != 0 && o.Under == nil {
		list = t.expire(list, t.overrideKey(i), max(lives, held))
	}
	return list
}

// refill returns how long a row lives at most after all of its bucket was taken: until the bucket
// is full again, or for leastLife. The records of holds live longer by this time than the last of
// them, because a script that takes from their bucket does not touch them.
func refill(d *store.Definition) int64 {
	if d.Algorithm == store.Concurrency {
		return 0
	}
	r := &d.Rule
	return max(r.TimeToFull(r.Cap, 0, 0)+r.Every, leastLife) // one tick more, because time 0 may be within a window
}

// encode returns the row as text, or "" if the row is full and no override needs it. ends is
// when the last record ends, and held when the last hold's record ends, or 0.
func (r *tableRow) encode(base *store.Definition, now int64) (text string, ends, held int64) {
	row := storedRow{State: r.state, due: store.MaxInt}
	concurrency := base.Algorithm == store.Concurrency
	row.recorded = row.Used > 0 && row.Lows != nil || concurrency && len(r.list) > 0
	for j := range r.list {
		one := &r.list[j]
		switch {
		case one.Hold != "":
			at := one.Expires
			if !one.Rest {
				at = one.Until()
			}
			row.due, held, ends = min(row.due, at), max(held, at), max(ends, at)
		case row.Lows != nil && one.Mark == row.Lows.Mark:
			row.due = 0
			fallthrough
		default:
			ends = max(ends, one.Ends)
		}
	}
	if row.till = held; row.Used > 0 || row.recorded {
		return row.String(), ends, held
	}
	o := row.Override
	if o == nil {
		return "", ends, held
	}
	// The row names its override. The scripts cannot read a row that uses 0: it came back long
	// ago, even if windows are longer than the time since the epoch.
	d := base.WithOverride(o)
	row = storedRow{State: store.State{Used: 1, TS: min(0, now-2*max(d.Rule.Every, base.Rule.Every)), Version: d.Number}}
	if concurrency {
		row.State = store.State{TS: now, Version: d.Number}
	}
	return row.String(), ends, held
}

// fullAfter returns the latest time at which a row that an override decides is full under the
// base after the override has ended, unless it was charged beyond its debt. The row names the
// override as long as it lives; without the row, calls would not look for the override.
func fullAfter(base *store.Definition, o *store.Override, key string) int64 {
	if o.Until == 0 || o.Under != nil {
		return math.MaxInt64
	}
	d, present := base.WithOverride(o), *o
	present.ID, present.Version = terms.OverrideOf(d.Number), base.Number
	if base.Algorithm == store.Concurrency {
		return o.Until
	}
	most := store.State{Used: min(d.Rule.Cap+d.Rule.Debt, d.Rule.MaxUsed), TS: o.Until, Version: d.Number, Override: &present}
	_, full := fullUnder(base, most, key, o.Until)
	return max(o.Until, full)
}

// fullAt returns the time at which a row will be full, or 0 if it is full. A row that an
// override decides continues under the base when the override ends.
func fullAt(base *store.Definition, row store.State, key string, now int64) int64 {
	if row.Used == 0 || base.Algorithm == store.Concurrency {
		return 0
	}
	own := base.Own(row, now)
	row, full := fullUnder(own, row, key, now)
	if o := row.Override; o != nil && terms.IsOverride(own.Number) && o.Until != 0 && o.Until < full {
		next := base
		if o.Under != nil {
			next = base.WithOverride(o.Under)
		}
		_, later := fullUnder(next, row, key, o.Until)
		full = max(full, later)
	}
	return full
}

// fullUnder returns a row under d, and the time at which it will be full if d decides it from
// now on, or 0 if it cannot be under d.
func fullUnder(d *store.Definition, row store.State, key string, now int64) (under store.State, full int64) {
	row, ok := d.Carry(row, key, now)
	if !ok {
		return row, 0
	}
	var scratch store.Rule
	return row, now + d.RuleFor(key, &scratch).TimeToFull(row.Used, max(now, row.TS), now)
}
