package dipwell

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A key of a limit with shards has several rows, and a store decides each row as it
// decides any other. The code here chooses the row from which a call takes.

func hasShards(g *store.Group) bool {
	for i := range g.Ops {
		if g.Ops[i].Def.Shards > 1 {
			return true
		}
	}
	return false
}

// applySharded passes a batch of one group to the store, in which limits have shards.
func (l *Limiter) applySharded(ctx context.Context, b *store.Batch, g *store.Group) error {
	if op := &g.Ops[0]; len(g.Ops) == 1 && (op.Cost == 0 || op.Verb == store.VerbReset) {
		return l.addRows(ctx, g, op)
	}
	var choices []*choice
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Def.Shards > 1 {
			rows := terms.RowKeys(op.Def.Shards, op.Key)
			rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
			choices = append(choices, &choice{op: op, def: op.Def, key: op.Key, rows: rows})
		}
	}
	defer func() {
		for _, c := range choices {
			c.op.Key = c.key
		}
	}()
	for {
		last, err := l.choose(ctx, g, choices)
		if err == nil && len(g.Ops) == 1 && (last || g.Ops[0].Verb == store.VerbCheck) {
			choices[0].answer(g)
			return nil
		}
		if err == nil {
			err = l.store.Apply(ctx, b)
		}
		if err != nil || last || !again(g, choices) {
			return err
		}
	}
}

// choose returns true if one of the ops has no further row to try.
func (l *Limiter) choose(ctx context.Context, g *store.Group, choices []*choice) (last bool, err error) {
	g.NoWait = true
	for _, c := range choices {
		if c.chosen == nil {
			if err := c.next(ctx, l.store); err != nil {
				return false, err
			}
		}
		c.op.Key = c.chosen.Key
		last = last || c.ended
		g.NoWait = g.NoWait && !c.waits && !c.ended
	}
	return last, nil
}

// again reports whether a group should be tried with other rows: another transaction has
// locked one, or a row has too few tokens after all.
func again(g *store.Group, choices []*choice) bool {
	locked := g.NoWait && errors.Is(g.Err, store.ErrLocked)
	if !locked && (g.Err != nil || g.Allowed) {
		return false
	}
	another := false
	for _, c := range choices {
		if locked {
			c.locked = append(c.locked, c.chosen)
		}
		if !locked && !c.op.Allowed {
			refusal := *c.op
			c.refused(&refusal)
		}
		if locked || !c.op.Allowed {
			c.chosen, another = nil, true
		}
	}
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Asked != nil {
			op.Def, op.Asked = op.Asked, nil
		}
	}
	return another
}

type choice struct {
	op  *store.Op
	def *store.Definition
	key string

	rows   []string    // rows not looked at yet, in random order
	fits   []*store.Op // checks of rows that have enough, the fullest first
	locked []*store.Op // checks of rows that another transaction has locked
	best   *store.Op   // the refusal of the row that will have enough first

	chosen *store.Op
	waits  bool // wait for locked rows
	ended  bool // no row has enough
}

// next chooses the next row: of two rows the one with more tokens; then the fullest of the
// others; then the locked ones. If no row has enough, next chooses the one that will have
// enough first.
func (c *choice) next(ctx context.Context, s store.Store) error {
	for n := 2; len(c.fits) == 0 && len(c.rows) > 0; n = len(c.rows) {
		if err := c.look(ctx, s, n); err != nil {
			return err
		}
	}
	if len(c.fits) == 0 && len(c.locked) > 0 {
		c.waits = true
		rand.Shuffle(len(c.locked), func(i, j int) { c.locked[i], c.locked[j] = c.locked[j], c.locked[i] })
		c.fits, c.locked = c.locked, nil
	}
	if len(c.fits) == 0 {
		c.chosen, c.ended = c.best, true
		return nil
	}
	c.chosen, c.fits = c.fits[0], c.fits[1:]
	return nil
}

func (c *choice) look(ctx context.Context, s store.Store, n int) error {
	cost := c.op.Cost
	if c.op.Verb == store.VerbTakeUpTo {
		cost = 1
	}
	ops, err := applyEach(ctx, s, store.Op{Def: c.def, Verb: store.VerbCheck, Cost: cost}, c.rows[:n])
	c.rows = c.rows[n:]
	for i := range ops {
		op := &ops[i]
		if op.Allowed && !op.Shadow {
			c.fits = append(c.fits, op)
		} else {
			c.refused(op)
		}
	}
	slices.SortStableFunc(c.fits, func(a, b *store.Op) int { return cmp.Compare(b.Remaining, a.Remaining) })
	return err
}

// refused notes that a row has too few tokens.
func (c *choice) refused(op *store.Op) {
	if b := c.best; b == nil || b.Never && !op.Never || b.Never == op.Never && op.Retry < b.Retry {
		c.best = op
	}
}

// answer answers a group of one op by the check of the row that was chosen.
func (c *choice) answer(g *store.Group) {
	c.op.Asked, c.op.Def, c.op.Answer = cmp.Or(c.op.Asked, c.op.Def), c.chosen.Def, c.chosen.Answer
	g.Allowed, g.Reserved, g.Err = c.op.Allowed, false, nil
}

// applyEach applies an op to several rows, each in a group of its own.
func applyEach(ctx context.Context, s store.Store, op store.Op, rows []string) ([]store.Op, error) {
	ops, b := make([]store.Op, len(rows)), store.Batch{Groups: make([]store.Group, len(rows))}
	for i, row := range rows {
		ops[i] = op
		ops[i].Key = row
		b.Groups[i].Ops = ops[i : i+1]
	}
	err := s.Apply(ctx, &b)
	for i := range b.Groups {
		err = cmp.Or(err, b.Groups[i].Err)
	}
	return ops, err
}

// addRows answers a check with the sum of all rows of a key, or resets them all.
func (l *Limiter) addRows(ctx context.Context, g *store.Group, op *store.Op) error {
	verb := op.Verb
	if verb != store.VerbReset {
		verb = store.VerbCheck
	}
	ops, err := applyEach(ctx, l.store, store.Op{Def: op.Def, Verb: verb}, terms.RowKeys(op.Def.Shards, op.Key))
	if err != nil {
		return err
	}
	sum := ops[0].Answer
	for i := range ops[1:] {
		a := &ops[i+1].Answer
		sum.Remaining, sum.Reset, sum.Source = min(sum.Remaining+a.Remaining, store.MaxInt), max(sum.Reset, a.Reset), max(sum.Source, a.Source)
	}
	sum.Used, sum.TS = 0, 0
	op.Asked, op.Def, op.Answer = op.Def, ops[0].Def.Together(), sum
	g.Allowed, g.Reserved, g.Err = sum.Allowed, false, nil
	return nil
}

const pageRows = 4096 // rows of keys with shards that are listed at a time

// eachRow calls f for the rows of a limit with shards that follow those of the key after,
// until f returns false. list returns n rows that follow a given row, and key returns the
// key of a row. f gets the row with the key that it belongs to, and its number.
func eachRow[T any](def *store.Definition, after string, n int, list func(after string, n int) ([]T, error), key func(*T) *string, f func(row *T, i int64) bool) error {
	n = min((n+1)*int(def.Shards), pageRows)
	if after == Shared {
		after = terms.AfterRows("")
	} else if after != "" {
		after = terms.AfterRows(after)
	}
	for {
		rows, err := list(after, n)
		for i := range rows {
			after = *key(&rows[i])
			of, number := terms.KeyOfRow(def.Shards, after)
			if *key(&rows[i]) = of; number >= 0 && !f(&rows[i], number) {
				return err
			}
		}
		if err != nil || len(rows) < n {
			return err
		}
	}
}

func (l *Limiter) shardedKeys(ctx context.Context, def *store.Definition, prefix, after string, n int) (keys []store.KeyState, err error) {
	err = eachRow(def, after, n, func(after string, n int) ([]store.KeyState, error) {
		return l.abilities.Keys(ctx, def, prefix, after, n)
	}, func(row *store.KeyState) *string { return &row.Key }, func(row *store.KeyState, _ int64) bool {
		if last := len(keys) - 1; last >= 0 && keys[last].Key == row.Key {
			keys[last].Others = append(keys[last].Others, row.State)
		} else {
			keys = append(keys, *row)
		}
		return len(keys) <= n
	})
	return keys[:min(n, len(keys))], err
}

// The override of a key with shards is stored with each of its rows.
func (l *Limiter) shardedOverrides(ctx context.Context, def *store.Definition, prefix, after string, n int) (out []Override, err error) {
	err = eachRow(def, after, n, func(after string, n int) ([]Override, error) {
		return l.abilities.Overrides.Overrides(ctx, def, prefix, after, n)
	}, func(o *Override) *string { return &o.Key }, func(o *Override, i int64) bool {
		if i == 0 {
			out = append(out, *o.WithKey(o.Key))
		}
		return len(out) < n
	})
	return out, err
}
