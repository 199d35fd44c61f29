package filestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/dipwell/dipwell/internal/jsontext"

	"github.com/dipwell/dipwell/store"
)

// limits are the definitions as the file has them, which may be a moment ahead
// of those that calls see: a definition is on the disk before it is used, for
// rows that name it may be written at any time after.
type limits struct {
	mu  sync.Mutex
	reg store.Registry
	ids sync.Map // name → id, int64
}

func (l *limits) id(name string) (int64, bool) {
	id, ok := l.ids.Load(name)
	if !ok {
		return 0, false
	}
	return id.(int64), true
}

// manyPast is the number of versions of a limit after which those that no row
// names any more are looked for.
const manyPast = 512

// Define adds a limit or changes it, on the disk first.
func (s *Store) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
	if state := s.state.Load(); state&stateClosed != 0 {
		return nil, s.why()
	}
	p := &s.plan
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.reg.All()
	old := p.reg.Lookup(l.Name)
	d, err := p.reg.Define(s.now(), l, owner)
	if err != nil || d == old {
		return d, err
	}
	if len(d.Past) > manyPast {
		if err = s.retire(d); err == nil {
			d = p.reg.Lookup(l.Name)
		}
	}
	if err == nil {
		err = s.putLimit(d, old)
	}
	if err != nil {
		p.reg.Install(before)
		return nil, s.failure1(err)
	}
	return d, s.mem.Install(p.reg.All())
}

// failure1 is an error of one change of the limits.
func (s *Store) failure1(err error) error {
	if errors.Is(err, store.ErrStore) {
		return err
	}
	return fmt.Errorf("%w: file %s: %w", store.ErrStore, s.path, err)
}

func (s *Store) putLimit(d, old *store.Definition) error {
	text, err := settingsOf(&d.Limit)
	if err != nil {
		return err
	}
	id, known := s.plan.id(d.Name)
	err = s.disk.tx(func() error {
		if known {
			err = s.disk.exec("update limits set definition = ?, owner = ?, version = ? where id = ?", text, d.Owner, int64(d.Number), id)
		} else {
			err = s.disk.conn.QueryRowContext(background, "insert into limits (name, definition, owner, version) values (?, ?, ?, ?) returning id",
				d.Name, text, d.Owner, int64(d.Number)).Scan(&id)
		}
		if err != nil || known && old.Number == d.Number {
			return err
		}
		return s.disk.putVersion(id, d.Version(), &d.Limit)
	})
	if err == nil {
		s.plan.ids.Store(d.Name, id)
	}
	return err
}

func (d *disk) putVersion(id int64, v store.Version, l *store.Limit) error {
	r := &v.Rule
	return d.exec(`insert into versions (limit_id, number, since, policy, unit, every, "add", cap, origin, burst, debt, most, max_charge, max_used, leaky, spread, per, start)
		values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, id, int64(v.Number), v.Since, v.Policy.String(),
		r.Unit, r.Every, r.Add, r.Cap, r.Origin, r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed, r.Leaky, r.Spread,
		store.FormatPeriod(l.Period), l.Start)
}

// retire forgets the versions that no row and no reservation names any more.
// All rows are written first: what memory holds is not older than the file then.
func (s *Store) retire(d *store.Definition) error {
	if err := s.keep.flush(); err != nil {
		return err
	}
	id, _ := s.plan.id(d.Name)
	var oldest int64
	err := s.disk.tx(func() error {
		row := s.disk.conn.QueryRowContext(background, `select min(coalesce((select min(version) from buckets where limit_id = ?1), ?2),
			coalesce((select min(version) from records where limit_id = ?1), ?2))`, id, int64(d.Number)-1)
		if err := row.Scan(&oldest); err != nil {
			return err
		}
		return s.disk.exec("delete from versions where limit_id = ? and number < ?", id, oldest)
	})
	if err == nil {
		s.plan.reg.Retire(d.Name, uint32(oldest))
	}
	return err
}

// Drop ends a limit. Its rows are void at once, and go with the next sweeps.
func (s *Store) Drop(_ context.Context, name, owner string) error {
	if state := s.state.Load(); state&stateClosed != 0 {
		return s.why()
	}
	p := &s.plan
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.reg.All()
	if err := p.reg.Drop(name, owner); err != nil {
		return err
	}
	id, _ := p.id(name)
	err := s.disk.tx(func() error {
		return errors.Join(s.disk.exec("delete from limits where id = ?", id), s.disk.exec("delete from versions where limit_id = ?", id),
			s.disk.exec("update records set id = null where id in (select id from records where limit_id = ?)", id),
			s.disk.exec("delete from records where limit_id = ?", id), s.disk.exec("delete from lows where limit_id = ?", id),
			s.disk.exec("delete from reservations where id in (select id from reserved where limit_id = ?)", id),
			s.disk.exec("delete from reserved where id not in (select id from reservations)"))
	})
	if err != nil {
		p.reg.Install(before)
		return s.failure1(err)
	}
	p.ids.Delete(name)
	return s.mem.Install(p.reg.All())
}

// settingsOf writes a limit as a JSON object, spelled as in a configuration.
func settingsOf(l *store.Limit) (string, error) {
	b := []byte{'{'}
	for i, s := range l.Explicit() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(jsontext.AppendString(b, s[0]), ':')
		b = jsontext.AppendString(b, s[1])
	}
	text := string(append(b, '}'))
	back, err := limitOf(text)
	if err == nil && back != *l {
		err = fmt.Errorf("they come back as %s", back)
	}
	if err != nil {
		return "", fmt.Errorf("limit %s: its settings do not survive being written (%w)", l.Name, err) // a bug of ours
	}
	return text, nil
}

func limitOf(text string) (l store.Limit, err error) {
	var settings map[string]string
	if err = json.Unmarshal([]byte(text), &settings); err != nil {
		return l, err
	}
	for name, value := range settings {
		if err = l.Set(name, value); err != nil {
			return l, err
		}
	}
	return l, nil
}
