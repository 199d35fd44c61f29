package redisstore

import (
	"context"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// Slot returns the cluster slot of a key.
var Slot = slot

// InstallDefinition makes a definition the current one in this process only,
// and returns the name of one of its buckets.
func (s *Store) InstallDefinition(d *store.Definition, key string) (row string) {
	entries := map[string]*entry{}
	for name, e := range *s.limits.entries.Load() {
		entries[name] = e
	}
	e := s.limits.newEntry(d)
	entries[d.Name] = e
	var defs []*store.Definition
	for _, e := range entries {
		defs = append(defs, e.def)
	}
	s.limits.reg.Install(defs)
	s.limits.entries.Store(&entries)
	return e.row(key)
}

// CountCallsAcrossChange returns the number of calls in a batch of a group for
// a bucket and a group for that bucket and another one, if change runs between
// the two.
func (s *Store) CountCallsAcrossChange(ctx context.Context, one, two *store.Group, change func()) int {
	p := pipeline{s: s, ctx: ctx}
	p.addRow(&store.RowGroups{Limit: one.Ops[0].Def.Name, Key: one.Ops[0].Key, Groups: []*store.Group{one}})
	change()
	p.addGroup(two)
	return len(p.open) + len(p.full)
}

// ScriptName returns the name of a script that decides takes of several
// buckets, by its hash.
func ScriptName(sha any) string {
	return map[any]string{serverClockScripts.set.sha: "set", serverClockScripts.takeOne.sha: "take_one"}[sha]
}

// Propagation is the time by which every program knows of a change of a limit.
const Propagation = propagation

// IsWrite reports whether a hash is that of write.lua.
func IsWrite(sha any) bool { return sha == serverClockScripts.write.sha }

// IsHold reports whether a hash is that of hold.lua.
func IsHold(sha any) bool { return sha == serverClockScripts.hold.sha }

// IsSettle reports whether a hash is that of settle.lua.
func IsSettle(sha any) bool { return sha == serverClockScripts.settle.sha }

// GetAll is getAll for tests.
func (s *Store) GetAll(ctx context.Context, names ...string) ([]string, error) {
	return s.getAll(ctx, names)
}

// Refresh reads the limits if they have changed.
func (s *Store) Refresh(ctx context.Context) error { return s.cat.Refresh(ctx) }

// Registry, Define and Drop are those of the store's limits, for tests.
func (s *Store) Registry() *store.Registry { return s.cat.Registry() }

func (s *Store) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	return s.cat.Define(ctx, l, owner)
}

func (s *Store) Drop(ctx context.Context, name, owner string) error {
	return s.cat.Drop(ctx, name, owner)
}

// Forget makes the store believe that it has heard nothing of the limits for longer than it
// may decide without.
func (s *Store) Forget() { s.cat.Started = s.cat.Started.Add(-2 * catalog.MaxUnheard) }

// StopAfterTime makes scripts believe that the server stopped for half a second after they
// read its clock.
func (s *Store) StopAfterTime() {
	s.scripts = newScripts(lua("clock_server") + "real = real - 500000\n")
}
