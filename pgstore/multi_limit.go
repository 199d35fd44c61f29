package pgstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// chargeLimits makes the first attempt for several limits in two round trips:
// one charges the rows that may have room and reads those refused recently, the
// other reads the rows that were not charged. The statements of a round trip
// are one transaction, so they lock rows in the order of limit id and key, as
// everywhere. Undecided rows are left to decideLimit. So is everything if a
// round trip fails without effect: the rows of the statement that failed are
// divided there, and the other limits are charged separately.
func (s *Store) chargeLimits(ctx context.Context, parts []*limitBatch) {
	parts = slices.Clone(parts)
	slices.SortFunc(parts, func(a, b *limitBatch) int { return cmp.Compare(a.id, b.id) })
	steps := make([]tripStep, 0, 2*len(parts))
	for _, p := range parts {
		steps = append(steps, tripStep{limitBatch: p, rows: p.toCharge, charges: true})
	}
	for _, p := range parts {
		steps = append(steps, tripStep{limitBatch: p, rows: p.toRead})
	}
	err := s.roundTrip(ctx, steps)
	if err != nil {
		if !hadNoEffect(err) || ctx.Err() != nil || !s.autocommit() {
			failParts(parts, storeError(err, true))
		}
		return
	}
	looks := make([]tripStep, 0, len(parts))
	for i, p := range parts {
		charge, look := &steps[i], &steps[len(parts)+i]
		var unsure []*pendingRow
		for j, row := range charge.rows {
			if charge.charged[j] {
				row.advance()
			}
			if len(row.Groups) > 0 {
				unsure = append(unsure, row)
			}
		}
		p.toCharge, p.toRead = look.rest, nil
		looks = append(looks, tripStep{limitBatch: p, rows: unsure})
	}
	err = s.roundTrip(ctx, looks)
	for i := range looks {
		p := looks[i].limitBatch
		switch {
		case err == nil:
			p.toCharge = append(p.toCharge, looks[i].rest...)
		case rowAtFault(err) && s.autocommit():
			p.toCharge = append(p.toCharge, looks[i].rows...)
		default:
			failRows(looks[i].rows, storeError(err, false))
		}
		slices.SortFunc(p.toCharge, func(a, b *pendingRow) int { return cmp.Compare(a.Key, b.Key) })
	}
}

// A tripStep is the statement of one limit in a round trip, and its result.
type tripStep struct {
	*limitBatch
	rows    []*pendingRow
	charges bool

	charged []bool        // by row, if charges
	rest    []*pendingRow // rows still to be tried, if not charges
}

// roundTrip sends the statements of steps together and reads the answers.
func (s *Store) roundTrip(ctx context.Context, steps []tripStep) error {
	var asked []*tripStep
	for i := range steps {
		if len(steps[i].rows) > 0 {
			asked = append(asked, &steps[i])
		}
	}
	if len(asked) == 0 {
		return nil
	}
	try := func() error {
		var b pgx.Batch
		for _, st := range asked {
			st.failed = nil
			if st.charges {
				b.Queue(st.chargeSQL(), s.chargeArgs(st.entry, st.rows)...)
			} else {
				b.Queue(st.readMany, s.readManyArgs(st.rows)...)
			}
		}
		answers := s.db.SendBatch(ctx, &b)
		for _, st := range asked {
			if err := s.readStep(answers, st); err != nil {
				_ = answers.Close()
				if st.charges {
					st.failed = storeError(err, true)
				}
				return err
			}
		}
		return answers.Close()
	}
	return s.retry(ctx, try(), try)
}

func (s *Store) readStep(answers pgx.BatchResults, st *tripStep) error {
	found, err := answers.Query()
	if err != nil {
		return err
	}
	if st.charges {
		st.charged, err = st.limitBatch.charged(found, st.rows)
	} else {
		st.rest, err = s.answerRead(st.limitBatch, found, st.rows)
	}
	return err
}

func failParts(parts []*limitBatch, err error) {
	for _, p := range parts {
		failRows(p.toCharge, err)
		failRows(p.toRead, err)
		p.toCharge, p.toRead = nil, nil
	}
}
