package redisstore

import (
	"fmt"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// names makes the names of keys:
//
//	dipwell:login:{user:7}              the bucket of key user:7 under the limit login: "used ts version"
//	dipwell.due:login:{user:7}          its reservations by the instants they are due
//	dipwell.records:login:{user:7}      what of them can be given back: see lows.lua
//	dipwell.reservation:0198c2f3-…      what one reservation holds
//	dipwell.limits                      the limits, a hash; also the channel that tells of changes
//
// In the limit's name % : { } are written as %25 %3A %7B %7D, so that it ends
// at the second colon; what stands between the braces after it, the last of
// which ends the name, is the key as it is. A limit's shared bucket is
// {shared}. with a full stop, and so begins a key that itself begins with a
// brace that closes: empty braces would be no tag. With TagAll the prefix
// stands in braces instead, and the key as it is after the second colon.
type names struct {
	base, due, records, held, limits string
	tagged                           bool // keys stand in braces
	cluster                          bool // buckets may live in different slots
}

func newNames(c Config, cluster bool) names {
	p, n := c.Prefix, names{tagged: true, cluster: cluster}
	if c.HashTag == TagAll {
		p, n.tagged, n.cluster = "{"+p+"}", false, false
	}
	n.base, n.due, n.records, n.held, n.limits = p+":", p+".due:", p+".records:", p+".reservation:", p+".limits"
	return n
}

var escapes = strings.NewReplacer("%", "%25", ":", "%3A", "{", "%7B", "}", "%7D")

// of begins the names of a limit's buckets.
func (n *names) of(limit string) string { return n.base + escapes.Replace(limit) + ":" }

func (n *names) dueSet(limit, key string) string {
	return n.key(n.due+escapes.Replace(limit)+":", key)
}

func (n *names) recordsOf(limit, key string) string {
	return n.key(n.records+escapes.Replace(limit)+":", key)
}

// appendLists appends the sets of reservations of some buckets, and then the hashes of their records.
func (n *names) appendLists(args []any, buckets int, bucket func(i int) (limit, key string)) []any {
	for i := range buckets {
		args = append(args, n.dueSet(bucket(i)))
	}
	for i := range buckets {
		args = append(args, n.recordsOf(bucket(i)))
	}
	return args
}

func (n *names) reservation(id store.Reservation) string { return n.held + id.String() }

// Around keys that cannot stand in braces.
const (
	shared    = "{shared}"
	sharedEnd = "."
)

// key appends a key to what begins its name.
func (n *names) key(begin, key string) string {
	switch {
	case !n.tagged:
		return begin + key
	case key == "" || key[0] == '}':
		return begin + shared + key + sharedEnd
	}
	return begin + "{" + key + "}"
}

// keyOf is the key in what follows the beginning of a name.
func (n *names) keyOf(rest string) (key string, ok bool) {
	if !n.tagged {
		return rest, true
	}
	if key, ok = strings.CutSuffix(rest, "}"); ok {
		return strings.CutPrefix(key, "{")
	}
	if key, ok = strings.CutSuffix(rest, sharedEnd); ok {
		return strings.CutPrefix(key, shared)
	}
	return "", false
}

// pattern matches the buckets of a limit whose keys begin so, and perhaps
// others, for SCAN.
func (n *names) pattern(limit, prefix string) string {
	begin := n.of(limit)
	switch {
	case !n.tagged:
		begin += prefix
	case prefix == "":
	case prefix[0] == '}':
		begin += shared + prefix
	default:
		begin += "{" + prefix
	}
	return globs.Replace(begin) + "*"
}

var globs = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)

// oneSlot refuses a call whose buckets lie in different slots of a cluster.
func (n *names) oneSlot(g *store.Group, known []*entry) error {
	if !n.cluster || len(g.Ops) < 2 {
		return nil
	}
	a := &g.Ops[0]
	first := slot(known[0].row(a.Key))
	for i := range g.Ops[1:] {
		if b := &g.Ops[i+1]; slot(known[i+1].row(b.Key)) != first {
			return &store.FieldError{Field: "takes", Reason: fmt.Sprintf(
				"limit %s with key %q and limit %s with key %q lie in different slots of the cluster and cannot be decided at one instant; "+
					"use the same key, or keys that begin with the same tag in braces such as {acme}user:7 and {acme}, "+
					"or keep all limits in one slot with hash_tag=all", a.Def.Name, a.Key, b.Def.Name, b.Key)}
		}
	}
	return nil
}

const slots = 16384

// slot is the cluster's slot of a key: CRC16 (XMODEM) of what stands in its
// first braces, unless that is nothing, and else of the whole.
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
