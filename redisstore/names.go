package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/store"
)

// names builds the names of keys in Redis:
//
//	dipwell:login:{user:7}              the bucket of key user:7 under limit login: see storedRow
//	dipwell.records:login:{user:7}      the records of its reservations and holds
//	dipwell.free:login:{user:7}         the live holds of which a part took nothing from it, by the times at which they expire
//	dipwell.override:login:{user:7}     its override, JSON
//	dipwell.lock:login:{user:7}         the program for whose write others wait
//	dipwell.reservation:0198c2f3-…      the parts of a reservation
//	dipwell.hold:req-81                 a hold, JSON; in a cluster dipwell.hold:{tag}req-81
//	dipwell.audit                       what people have changed, a sorted set: an entry's ID and its JSON
//	dipwell.top_hours                   the busiest keys of each hour, likewise
//	dipwell.minutes                     what each process decided in each minute, likewise
//	dipwell.usage:login:496728          what keys used in an hour since the Unix epoch, a hash: a, r or t and the key
//	dipwell.limits                      the limits, a hash; also the channel for notifications
//
// In the name of a limit % : { } are written as %25 %3A %7B %7D, so that it ends
// at the second colon. The key follows unescaped, between braces; the last brace
// ends the name. The shared bucket of a limit is {shared}. with a full stop,
// because empty braces are not a hash tag; a key that starts with a closing brace
// follows {shared} too. In a cluster, the keys of a limit with a parent are tagged by
// the part of them that is a key of the topmost limit, so that a tree lies in one slot:
// {acme}/user:7/ for the key acme/user:7. With HashTag "all" the prefix is in braces instead, and the key
// follows the second colon.
type names struct {
	base, records, free, overrides, locks, reservations, holds, usages, logs, limits string
	tagged                                                                           bool // keys are put in braces
	cluster                                                                          bool // buckets may be in different slots

	parts func(limit string) int // how many parts of a limit's keys are in braces, or wholeKey
}

func newNames(c Config, cluster bool) names {
	p, n := c.Prefix, names{tagged: true, cluster: cluster, parts: func(string) int { return wholeKey }}
	if c.HashTag == tagAll {
		p, n.tagged, n.cluster = "{"+p+"}", false, false
	}
	n.base, n.records, n.free, n.overrides, n.locks = p+":", p+".records:", p+".free:", p+".override:", p+".lock:"
	n.reservations, n.holds, n.usages, n.logs, n.limits = p+".reservation:", p+".hold:", p+".usage:", p+".", p+".limits"
	return n
}

var escapes = strings.NewReplacer("%", "%25", ":", "%3A", "{", "%7B", "}", "%7D")

// start returns the start of the names of one kind, such as n.records, for a limit.
func (n *names) start(kind, limit string) string { return kind + escapes.Replace(limit) + ":" }

// of returns the name of one kind for a key of a limit.
func (n *names) of(kind, limit, key string) string { return n.key(n.start(kind, limit), limit, key) }

func (n *names) bucket(limit, key string) string { return n.of(n.base, limit, key) }

// hold returns the name of a hold, in a slot of the cluster if tag is not empty.
func (n *names) hold(tag, id string) string {
	if tag != "" {
		id = "{" + tag + "}" + id
	}
	return n.holds + id
}

func (n *names) reservation(id store.Reservation) string { return n.reservations + id.String() }

// These are used around keys that cannot be in braces, or not as a whole.
const (
	shared    = "{shared}"
	sharedEnd = "."
	pathEnd   = "/"
)

// wholeKey stands for all parts of a key: the whole key is in braces.
const wholeKey = -1

// key appends a key of a limit to the start of a name.
func (n *names) key(begin, limit, key string) string { return n.keyWith(begin, key, n.parts(limit)) }

func (n *names) keyWith(begin, key string, parts int) string {
	switch at := endOfParts(key, parts); {
	case !n.tagged:
		return begin + key
	case key == "" || key[0] == '}' || parts == 0:
		return begin + shared + key + sharedEnd
	case at < len(key):
		return begin + "{" + key[:at] + "}" + key[at:] + pathEnd
	}
	return begin + "{" + key + "}"
}

// endOfParts returns the length of the first parts of a key.
func endOfParts(key string, parts int) int {
	if parts < 0 {
		return len(key)
	}
	for i := range len(key) {
		if key[i] == '/' {
			if parts--; parts <= 0 {
				return i
			}
		}
	}
	return len(key)
}

// keyOf returns the key of a limit in the rest of a name.
func (n *names) keyOf(limit, rest string) (key string, ok bool) {
	if !n.tagged {
		return rest, true
	}
	parts := n.parts(limit)
	if key, ok = strings.CutSuffix(rest, "}"); ok {
		key, ok = strings.CutPrefix(key, "{")
		return key, ok && endOfParts(key, parts) == len(key) && parts != 0
	}
	if key, ok = strings.CutSuffix(rest, pathEnd); ok && parts > 0 {
		key, ok = strings.CutPrefix(key, "{")
		if at := endOfParts(key, parts); ok && at < len(key) && at > 0 && key[at-1] == '}' {
			return key[:at-1] + key[at:], true
		}
		return "", false
	}
	if key, ok = strings.CutSuffix(rest, sharedEnd); ok {
		return strings.CutPrefix(key, shared)
	}
	return "", false
}

// pattern returns a SCAN pattern for the names that have begin and then a key of a
// limit that starts with prefix. The pattern may match other names too.
func (n *names) pattern(begin, limit, prefix string) string {
	switch parts := n.parts(limit); {
	case !n.tagged:
		begin += prefix
	case prefix == "":
	case prefix[0] == '}' || parts == 0:
		begin += shared + prefix
	case endOfParts(prefix, parts) < len(prefix):
		begin += "{" + prefix[:endOfParts(prefix, parts)] + "}" + prefix[endOfParts(prefix, parts):]
	default:
		begin += "{" + prefix
	}
	return globs.Replace(begin) + "*"
}

var globs = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)

// oneSlot returns an error if the buckets of a call are in different slots of a cluster.
func (n *names) oneSlot(g *store.Group, known []*entry) error {
	if !n.cluster || len(g.Ops) < 2 {
		return nil
	}
	a := &g.Ops[0]
	first := slot(known[0].row(a.Key))
	for i := range g.Ops[1:] {
		if b := &g.Ops[i+1]; slot(known[i+1].row(b.Key)) != first {
			return severalSlotsError(a, b)
		}
	}
	return nil
}

// severalSlotsError returns the error for two buckets of a call that are in different slots.
func severalSlotsError(a, b *store.Op) error {
	for _, d := range [...]*store.Definition{a.Def, b.Def} {
		if d.Shards > 1 {
			return &store.FieldError{Field: "takes", Reason: fmt.Sprintf("limit %s has shards, which lie in different slots of the cluster, so it cannot be decided together with other limits; "+
				"take from it in a call of its own, or keep all limits in one slot with hash_tag=all", d.Name)}
		}
	}
	return &store.FieldError{Field: "takes", Reason: fmt.Sprintf(
		"limit %s with key %q and limit %s with key %q lie in different slots of the cluster and cannot be decided at one instant; "+
			"use the same key, or keys that begin with the same tag in braces such as {acme}user:7 and {acme}, "+
			"or keep all limits in one slot with hash_tag=all", a.Def.Name, a.Key, b.Def.Name, b.Key)}
}

const slots = 16384

// slotTags returns, for each slot, a hash tag in that slot.
var slotTags = sync.OnceValue(func() *[slots]string {
	var tags [slots]string
	for i, found := 0, 0; found < slots; i++ {
		tag := strconv.Itoa(i)
		if at := slot(tag); tags[at] == "" {
			tags[at] = tag
			found++
		}
	}
	return &tags
})

// slot returns the cluster slot of a name: CRC16 (XMODEM) of the text in its
// first pair of braces, or of the whole name if there is none or it is empty.
func slot(key string) uint16 {
	if from := strings.IndexByte(key, '{'); from >= 0 {
		if n := strings.IndexByte(key[from+1:], '}'); n > 0 {
			key = key[from+1 : from+1+n]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}
