package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A storedHold is the JSON of a hold, a public format. The scripts write the first fields.
type storedHold struct {
	Forget  int64        `json:"forget_us"`
	Expires int64        `json:"expires_us"`
	Call    string       `json:"call"`
	TTL     int64        `json:"ttl_us"`
	Settled bool         `json:"settled,omitempty"`
	Costs   []int64      `json:"costs,omitempty"`
	Parts   []storedPart `json:"parts"`
}

type storedPart struct {
	Limit  string `json:"limit"`
	Key    string `json:"key,omitempty"`
	Plan   string `json:"plan,omitempty"`
	Number int64  `json:"-"` // the record of the part has them
	Mark   int64  `json:"-"`
	Cost   int64  `json:"cost"`
	Takes  uint16 `json:"takes,omitempty"`
	Free   bool   `json:"free,omitempty"`
	Keep   bool   `json:"keep,omitempty"`
	Reset  bool   `json:"reset,omitempty"`
}

func encodeHold(h *store.Hold) string {
	v := storedHold{h.Forget, h.Expires, h.Call, h.TTL, h.Settled, h.Costs, make([]storedPart, len(h.Parts))}
	for i := range h.Parts {
		v.Parts[i] = storedPart(h.Parts[i])
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen with strings and numbers
	}
	return string(b)
}

func decodeHold(text string) (h store.Hold, err error) {
	if text == "" {
		return h, nil
	}
	var v storedHold
	if err = json.Unmarshal([]byte(text), &v); err != nil {
		return h, err
	}
	h = store.Hold{Call: v.Call, TTL: v.TTL, Expires: v.Expires, Forget: v.Forget, Settled: v.Settled, Costs: v.Costs, Parts: make([]store.Part, len(v.Parts))}
	for i := range v.Parts {
		h.Parts[i] = store.Part(v.Parts[i])
	}
	return h, nil
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
			if e == nil { // dropped since the op was resolved
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
			if at, tagged = t.s.holds.slot(id); !tagged {
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
	}, func() error { return nil }, false)
	for i := range list {
		if s.names.cluster {
			list[i].ID = handle(list[i].ID, slot(e.row(key)))
		}
	}
	return list, err
}
