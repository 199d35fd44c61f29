package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/store"
)

// The portable tables have a row for the rate of each version of an adaptive limit. Calls
// read it together with the rows that they decide; observations lock it.
const (
	ratesSQL = "select number, state from dipwell.rates where limit_id = $1"

	// Only the present version gets a row. Otherwise a limit that was dropped meanwhile
	// would leave one behind.
	addRateSQL = `insert into dipwell.rates (limit_id, number, state, begun, count, slow, failed, taken)
select l.id, l.version, $3, 0, 0, 0, 0, 0 from dipwell.limits l where l.id = $1 and l.version = $2 on conflict (limit_id, number) do nothing`
	lockRateSQL = "select state, begun, count, slow, failed, taken from dipwell.rates where limit_id = $1 and number = $2 for update"
	setRateSQL  = "update dipwell.rates set state = $3, begun = $4, count = $5, slow = $6, failed = $7, taken = $8 where limit_id = $1 and number = $2"
)

// observe adds an observation of the calls behind an adaptive limit. If the limit has
// another version by now, it reads the limits and tries again.
func (s portable) observe(ctx context.Context, d *store.Definition, o store.Observation) error {
	for range maxTries {
		e := (*s.limits.entries.Load())[d.Name]
		if e == nil {
			return core.Missing(&s.limits.reg, d.Name)
		}
		if e.def.Rule.Pace == nil {
			return nil
		}
		var state adaptive.State
		err := s.transact(ctx, func(tx pgx.Tx) (err error) {
			state, err = s.addSample(ctx, tx, e, adaptive.Sample(o))
			return err
		})
		if err == nil {
			e.def.Rule.Pace.Set(state)
		}
		if !errors.Is(err, store.ErrStaleDefinition) {
			return err
		}
		if err = s.cat.Load(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: limit %s is being changed over and over; nothing was added", store.ErrStore, d.Name)
}

// addSample adds a sample under the lock of the rate's row, and sets the rate if the
// window is over.
func (s portable) addSample(ctx context.Context, tx pgx.Tx, e *entry, o adaptive.Sample) (state adaptive.State, err error) {
	c := e.def.Rule.Pace.Config()
	begin, number := c.Begin(), int32(e.def.Number)
	if _, err = tx.Exec(ctx, addRateSQL, e.id, number, begin.Text()); err != nil {
		return state, storeError(err, false)
	}
	var text string
	var begun int64
	var seen adaptive.Sample
	err = tx.QueryRow(ctx, lockRateSQL, e.id, number).Scan(&text, &begun, &seen.Count, &seen.Slow, &seen.Failed, &seen.Taken)
	if errors.Is(err, pgx.ErrNoRows) {
		return state, store.ErrStaleDefinition
	}
	if err != nil {
		return state, storeError(err, false)
	}
	if state, err = adaptive.Parse(c.Floor, text); err != nil {
		return state, badRate(e.def, err)
	}
	now, err := s.txClock(ctx, tx)
	if err != nil {
		return state, err
	}
	state.Begun, state.Seen = begun, seen
	state = c.Add(state, now, o)
	seen = state.Seen
	_, err = tx.Exec(ctx, setRateSQL, e.id, number, state.Text(), state.Begun, seen.Count, seen.Slow, seen.Failed, seen.Taken)
	return state, storeError(err, false)
}

func badRate(d *store.Definition, err error) error {
	return fmt.Errorf("%w: the rate of limit %s as it is stored: %w", store.ErrStore, d.Name, err)
}

// setRates sets the rates of a limit's versions from rows. If another transaction has set
// a rate meanwhile, the next call sees it.
func setRates(rows pgx.Rows, d *store.Definition) error {
	var number int32
	var text string
	_, err := pgx.ForEachRow(rows, []any{&number, &text}, func() error {
		pace := paceOf(d, uint32(number))
		if pace == nil {
			return nil // a version that was deleted, or that is not known yet
		}
		state, err := adaptive.Parse(pace.Config().Floor, text)
		if err != nil {
			return badRate(d, err)
		}
		pace.Set(state)
		return nil
	})
	return err
}

// wasAdaptive reports whether rows of a limit may have to be stepped by a rate.
func wasAdaptive(d *store.Definition) bool {
	if d == nil {
		return false
	}
	for i := range d.Past {
		if d.Past[i].Rule.Pace != nil {
			return true
		}
	}
	return d.Rule.Pace != nil
}

// readRates reads the rates of all limits, for the answers and metrics of programs that
// take nothing. Calls read the rates of their own limits.
func readRates(ctx context.Context, db querier, defs []*store.Definition, ids map[string]int32) error {
	for _, d := range defs {
		if !wasAdaptive(d) {
			continue
		}
		rows, err := db.Query(ctx, ratesSQL, ids[d.Name])
		if err == nil {
			err = setRates(rows, d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
