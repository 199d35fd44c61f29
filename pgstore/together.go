package pgstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// together takes the first steps of several limits in one trip each: it charges
// what may fit and reads what was refused lately, then reads what was not
// charged. The statements of a trip are one transaction, so they lock the rows
// in the one order that everybody keeps: by the limit's id, then by key. What is
// undecided afterwards is left to limitRows, and so is everything where a trip
// fails without effect: the limit whose statement failed is divided there, and
// the others are charged by themselves.
func (s *Store) together(ctx context.Context, parts []*part) {
	parts = slices.Clone(parts)
	slices.SortFunc(parts, func(a, b *part) int { return cmp.Compare(a.id, b.id) })
	steps := make([]step, 0, 2*len(parts))
	for _, p := range parts {
		steps = append(steps, step{part: p, rows: p.rest, charges: true})
	}
	for _, p := range parts {
		steps = append(steps, step{part: p, rows: p.refused})
	}
	err := s.trip(ctx, steps)
	if err != nil {
		if !nothingDone(err) || ctx.Err() != nil || !s.alone() {
			failParts(parts, storeError(err, true))
		}
		return
	}
	looks := make([]step, 0, len(parts))
	for i, p := range parts {
		charge, look := &steps[i], &steps[len(parts)+i]
		var unsure []*pending
		for j, row := range charge.rows {
			if charge.charged[j] {
				row.settle(nil)
			}
			if len(row.Groups) > 0 {
				unsure = append(unsure, row)
			}
		}
		p.rest, p.refused = look.rest, nil
		looks = append(looks, step{part: p, rows: unsure})
	}
	err = s.trip(ctx, looks)
	for i := range looks {
		p := looks[i].part
		switch {
		case err == nil:
			p.rest = append(p.rest, looks[i].rest...)
		case rowAtFault(err) && s.alone():
			p.rest = append(p.rest, looks[i].rows...)
		default:
			settleAll(looks[i].rows, storeError(err, false))
		}
		slices.SortFunc(p.rest, func(a, b *pending) int { return cmp.Compare(a.Key, b.Key) })
	}
}

// step is one limit's statement in a trip, and what it came to.
type step struct {
	*part
	rows    []*pending
	charges bool

	charged []bool     // of a charge, by row
	rest    []*pending // of a look: what is to be tried
}

// trip sends statements together and reads their answers.
func (s *Store) trip(ctx context.Context, steps []step) error {
	var asked []*step
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
				b.Queue(st.lookMany, s.lookArgs(st.rows)...)
			}
		}
		answers := s.db.SendBatch(ctx, &b)
		for _, st := range asked {
			if err := s.read(answers, st); err != nil {
				_ = answers.Close()
				if st.charges {
					st.failed = storeError(err, true)
				}
				return err
			}
		}
		return answers.Close()
	}
	return s.again(ctx, try(), try)
}

func (s *Store) read(answers pgx.BatchResults, st *step) error {
	found, err := answers.Query()
	if err != nil {
		return err
	}
	if st.charges {
		st.charged, err = st.part.charged(found, st.rows)
	} else {
		st.rest, err = s.looked(st.part, found, st.rows)
	}
	return err
}

func failParts(parts []*part, err error) {
	for _, p := range parts {
		settleAll(p.rest, err)
		settleAll(p.refused, err)
		p.rest, p.refused = nil, nil
	}
}
