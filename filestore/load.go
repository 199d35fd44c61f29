package filestore

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
)

// load brings memory to what the file keeps.
func (s *Store) load(c Config) error {
	var now int64
	if err := s.disk.conn.QueryRowContext(background, "select now from clock").Scan(&now); err != nil {
		return s.disk.wrong(err)
	}
	if now < 0 || now > store.MaxInt {
		return s.disk.wrong(fmt.Errorf("its clock says %d", now))
	}
	mem, err := memory.New(memory.Config{MaxKeys: c.MaxKeys, MaxReservations: c.MaxReservations, Clock: c.Clock, NotBefore: now})
	if err != nil {
		return fmt.Errorf("filestore: %w", err)
	}
	s.mem = mem
	defs, err := s.loadLimits()
	if err != nil {
		return s.disk.wrong(err)
	}
	s.plan.reg.Install(slices.Collect(maps.Values(defs)))
	if err = s.mem.Install(s.plan.reg.All()); err != nil {
		return err
	}
	if err = s.loadRows(defs); err != nil {
		return err
	}
	return s.loadReservations(defs)
}

// loadLimits reads the definitions, by the ids of their limits.
func (s *Store) loadLimits() (map[int64]*store.Definition, error) {
	versions, err := s.loadVersions()
	if err != nil {
		return nil, err
	}
	rows, err := s.disk.conn.QueryContext(background, "select id, name, definition, owner, version from limits")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	defs := map[int64]*store.Definition{}
	for rows.Next() {
		var id, number int64
		var name, text, owner string
		if err = rows.Scan(&id, &name, &text, &owner, &number); err != nil {
			return nil, err
		}
		l, err := limitOf(text)
		if err == nil && l.Name != name {
			err = fmt.Errorf("its settings are those of %s", l.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("limit %s: %w", name, err)
		}
		if defs[id], err = definition(l, owner, uint32(number), versions[id]); err != nil {
			return nil, err
		}
		s.plan.ids.Store(name, id)
	}
	return defs, rows.Err()
}

// definition puts a limit together from its versions. The numbers are as they
// were stored, so that rows keep their meaning whatever a newer program would
// compile.
func definition(l store.Limit, owner string, number uint32, versions []store.Version) (*store.Definition, error) {
	n := len(versions)
	if n == 0 || versions[n-1].Number != number {
		return nil, fmt.Errorf("limit %s: its version %d is not there", l.Name, number)
	}
	r, warning, err := l.Compile()
	if err != nil {
		return nil, err
	}
	v := versions[n-1]
	if plainRule(&r) != plainRule(&v.Rule) {
		r = v.Rule
	}
	return &store.Definition{Limit: l, Owner: owner, Warning: warning, Number: number, Since: v.Since, Rule: r, Policy: v.Policy, Past: versions[:n-1]}, nil
}

// plainRule is a rule's numbers alone.
func plainRule(r *store.Rule) store.Rule {
	return store.Rule{Unit: r.Unit, Every: r.Every, Add: r.Add, Cap: r.Cap, Origin: r.Origin, Burst: r.Burst, Debt: r.Debt, Most: r.Most,
		MaxCharge: r.MaxCharge, MaxUsed: r.MaxUsed, Leaky: r.Leaky, Spread: r.Spread}
}

func (s *Store) loadVersions() (map[int64][]store.Version, error) {
	rows, err := s.disk.conn.QueryContext(background, `select limit_id, number, since, policy, unit, every, "add", cap, origin, burst, debt, most, max_charge, max_used,
		leaky, spread, per, start from versions order by limit_id, number`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	out := map[int64][]store.Version{}
	for rows.Next() {
		var limit, number int64
		var v store.Version
		var policy, per, start string
		r := &v.Rule
		if err = rows.Scan(&limit, &number, &v.Since, &policy, &r.Unit, &r.Every, &r.Add, &r.Cap, &r.Origin, &r.Burst, &r.Debt, &r.Most, &r.MaxCharge, &r.MaxUsed,
			&r.Leaky, &r.Spread, &per, &start); err != nil {
			return nil, err
		}
		v.Number = uint32(number)
		var l store.Limit
		if err = l.Set("on_change", policy); err == nil {
			v.Policy = l.OnChange
			err = checkRule(r, per, start)
		}
		if err != nil {
			return nil, fmt.Errorf("version %d of limit %d: %w", number, limit, err)
		}
		out[limit] = append(out[limit], v)
	}
	return out, rows.Err()
}

// checkRule refuses numbers that no limit compiles to, and gives a calendar's
// rule its calendar.
func checkRule(r *store.Rule, per, start string) error {
	for _, n := range []int64{r.Every, r.Cap, r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed} {
		if n < 0 || n > store.MaxInt {
			return fmt.Errorf("%d is not between 0 and 2^53-1", n)
		}
	}
	if r.Unit < 1 || r.Unit > store.MaxInt || r.Add < 1 || r.Add > store.MaxInt {
		return fmt.Errorf("a unit of %d, of which %d come back", r.Unit, r.Add)
	}
	if r.Every != 0 {
		r.Ready()
		return nil
	}
	shape := store.Limit{Name: "calendar", Algorithm: store.FixedWindow, Rate: 1, Start: start}
	var err error
	if shape.Period, err = store.ParsePeriod(per); err != nil {
		return err
	}
	c, _, err := shape.Compile()
	if err != nil {
		return err
	}
	if c.Every != 0 {
		return fmt.Errorf("windows of %s are no calendar's", per)
	}
	n := *r
	*r = c
	r.Unit, r.Every, r.Add, r.Cap, r.Origin, r.Burst, r.Debt, r.Most = n.Unit, n.Every, n.Add, n.Cap, n.Origin, n.Burst, n.Debt, n.Most
	r.MaxCharge, r.MaxUsed, r.Leaky, r.Spread = n.MaxCharge, n.MaxUsed, n.Leaky, n.Spread
	r.Ready()
	return nil
}

// loadChunk is the number of rows that are handed on together.
const loadChunk = 1024

// loadRows puts all rows that are not full into memory. One goroutine reads and
// one puts: with a million keys that is where the time of a start goes.
func (s *Store) loadRows(defs map[int64]*store.Definition) error {
	chunks, failed := make(chan []rec, 4), make(chan error, 1)
	var wrong error
	go func() {
		for recs := range chunks {
			if wrong == nil {
				wrong = s.putRows(defs, recs)
			}
		}
		failed <- wrong
	}()
	err := s.disk.conn.Raw(func(conn any) error { return readRows(conn, chunks) })
	close(chunks)
	if wrong := <-failed; wrong != nil {
		return wrong
	}
	if err != nil {
		return s.disk.wrong(err)
	}
	return nil
}

// readRows reads past database/sql, which would convert each number by reflection.
func readRows(conn any, chunks chan<- []rec) error {
	stmt, err := conn.(driver.ConnPrepareContext).PrepareContext(background, "select limit_id, key, used, ts, version from buckets")
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	rows, err := stmt.(driver.StmtQueryContext).QueryContext(background, nil)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	values := make([]driver.Value, 5)
	recs := make([]rec, 0, loadChunk)
	for {
		switch err = rows.Next(values); {
		case errors.Is(err, io.EOF):
			chunks <- recs
			return nil
		case err != nil:
			return err
		}
		limit, ok0 := values[0].(int64)
		key, ok1 := values[1].(string)
		used, ok2 := values[2].(int64)
		ts, ok3 := values[3].(int64)
		version, ok4 := values[4].(int64)
		if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 || version < 1 || version > 1<<32-1 {
			return fmt.Errorf("a row of buckets has %v", values)
		}
		recs = append(recs, rec{limit: limit, key: key, row: store.State{Used: used, TS: ts, Version: uint32(version)}})
		if len(recs) == loadChunk {
			chunks <- recs
			recs = make([]rec, 0, loadChunk)
		}
	}
}

func (s *Store) putRows(defs map[int64]*store.Definition, recs []rec) error {
	now := s.now()
	for i := range recs {
		r := &recs[i]
		d := defs[r.limit]
		if d == nil {
			continue // of a limit that was dropped; a sweep will find it
		}
		if err := checkRow(d, r.key, r.row); err != nil {
			return s.disk.wrong(fmt.Errorf("limit %s, key %q: %w", d.Name, r.key, err))
		}
		if d.Full(r.row, now) {
			continue
		}
		if err := s.mem.Put(d, r.key, r.row); errors.Is(err, store.ErrFull) {
			return fmt.Errorf("file %s holds more than %d keys in use: MaxKeys (max_keys) must be larger", s.path, s.mem.Stats().Keys)
		} else if err != nil {
			return s.disk.wrong(err)
		}
	}
	return nil
}

func checkRow(d *store.Definition, key string, row store.State) error {
	switch {
	case row.Used < 0 || row.Used > store.MaxInt || row.TS < 0 || row.TS > store.MaxInt:
		return fmt.Errorf("%d units used at %d cannot be", row.Used, row.TS)
	case row.Version > d.Number:
		return fmt.Errorf("version %d of the limit is not there", row.Version)
	case len(key) > store.MaxKey || !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0:
		return errors.New("no such key can be")
	}
	return nil
}

func (s *Store) loadReservations(defs map[int64]*store.Definition) error {
	records, held, err := s.readRecords(defs)
	if err != nil {
		return s.disk.wrong(err)
	}
	if err = s.loadRecords(defs, records); errors.Is(err, store.ErrFull) {
		return fmt.Errorf("file %s holds more reservations than MaxReservations", s.path)
	} else if err != nil {
		return s.disk.wrong(err)
	}
	if err = s.readOldReservations(defs, held); err != nil {
		return s.disk.wrong(err)
	}
	now := s.now()
	for _, h := range held {
		if h.Due <= now {
			continue
		}
		if err = s.mem.Hold(*h); errors.Is(err, store.ErrFull) {
			return fmt.Errorf("file %s holds more reservations than MaxReservations", s.path)
		} else if err != nil {
			return s.disk.wrong(err)
		}
	}
	return nil
}

// readOldReservations reads those of a program that kept no records. How much of
// what they took is still there is not known: they can be cancelled, and give
// nothing back.
func (s *Store) readOldReservations(defs map[int64]*store.Definition, held map[string]*memory.Held) error {
	rows, err := s.disk.conn.QueryContext(background, "select r.id, r.due, p.limit_id, p.key from reservations r join reserved p on p.id = r.id")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // read to its end, or given up
	for rows.Next() {
		var text string
		var due, limit int64
		var p memory.HeldPart
		if err = rows.Scan(&text, &due, &limit, &p.Key); err != nil {
			return err
		}
		id, err := store.ParseReservation(text)
		d := defs[limit]
		if err != nil || d == nil {
			continue
		}
		p.Limit = d.Name
		if held[text] == nil {
			held[text] = &memory.Held{ID: id, Due: due}
		}
		held[text].Parts = append(held[text].Parts, p)
	}
	return rows.Err()
}
