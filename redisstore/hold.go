package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// encodeHold returns the JSON of a hold, which is a public format. The scripts write the first
// two fields. A part's record has a number and a mark too, which the scripts do not write
// here.
func encodeHold(h *store.Hold) string { return texts.Marshal(h) }

func decodeHold(text string) (h store.Hold, err error) {
	if text != "" {
		err = json.Unmarshal([]byte(text), &h)
	}
	return h, err
}

// openHold arranges for the hold of a group to be read. In a cluster the key of a hold is
// in the slot of its rows, and callers see the id as id@slot. openHold removes the slot,
// and restore adds it again. A caller that lost the answer to its hold knows only the id
// that it sent; openHold then takes the slot from what this program remembers.
func (t *table) openHold(g *store.Group) (restore func(), err error) {
	h, n := g.Hold, &t.s.names
	if n.cluster {
		id, at, tagged := cutSlot(h.ID)
		if h.Verb == store.MakeHold {
			op := &g.Ops[0]
			e := t.s.limits.entry(op.Def.Name)
			if e == nil { // the limit was dropped since the op was resolved
				return nil, t.s.limits.reg.Missing(op.Def.Name)
			}
			if here := slot(e.row(op.Key)); !tagged || here != at {
				id, at = h.ID, here
			}
			if most := terms.MaxHoldID - len("@16383"); len(id) > most {
				return nil, &store.FieldError{Field: "id", Reason: fmt.Sprintf("has %d bytes; at most %d in a Redis Cluster, where the slot of the keys is added", len(id), most)}
			}
			t.s.holds.setSlot(id, at)
		} else if !tagged {
			if at, tagged = t.s.holds.slots.Get(id); !tagged || at == severalSlots {
				return nil, store.ErrUnknownHold
			}
		}
		t.tag, h.ID = slotTags()[at], id
		restore = func() { h.ID = handle(id, at) }
	} else {
		restore = func() {}
	}
	t.wantHold(h.ID)
	return restore, nil
}

// handle returns the id that callers in a cluster see for a hold.
func handle(id string, slot uint16) string { return id + "@" + strconv.Itoa(int(slot)) }

// cutSlot splits a handle into the id and the slot.
func cutSlot(text string) (id string, at uint16, ok bool) {
	i := strings.LastIndexByte(text, '@')
	if i < 0 {
		return text, 0, false
	}
	n, err := strconv.ParseUint(text[i+1:], 10, 16)
	if err != nil || n >= slots || text[i+1:] != strconv.FormatUint(n, 10) {
		return text, 0, false
	}
	return text[:i], uint16(n), true
}

// keyHolds returns the live holds of a key.
func (s *Store) keyHolds(ctx context.Context, d *store.Definition, key string) (list []store.KeyHold, err error) {
	e := s.limits.entry(d.Name)
	if e == nil {
		return nil, s.limits.reg.Missing(d.Name)
	}
	t := s.newTable()
	t.want(d.Name, key)
	err = t.update(ctx, func() error {
		list = store.KeyHolds(t.rows[0].list, t.now)
		return nil
	}, false)
	for i := range list {
		if s.names.cluster {
			list[i].ID = handle(list[i].ID, slot(e.row(key)))
		}
	}
	return list, err
}
