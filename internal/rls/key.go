package rls

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// appendEntry appends an entry to a key: key=value, after a comma where it is
// not the first. What would make two descriptors look alike is escaped.
func appendEntry(b []byte, key, value string) []byte {
	if len(b) > 0 {
		b = append(b, ',')
	}
	b = appendEscaped(b, key, "\\,=\x00")
	b = append(b, '=')
	return appendEscaped(b, value, "\\,\x00")
}

func appendEscaped(b []byte, s, special string) []byte {
	if strings.IndexByte(s, '\\') < 0 && strings.IndexByte(s, ',') < 0 && strings.IndexByte(s, 0) < 0 &&
		(len(special) == 3 || strings.IndexByte(s, '=') < 0) {
		return append(b, s...)
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c == 0:
			b = append(b, '\\', '0')
		case strings.IndexByte(special, c) >= 0:
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return b
}

// keepOfKey is how much of a long key stays readable.
const keepOfKey = 256

// keyOf makes the bucket's key. A long one is cut and goes on with \# and the
// SHA-256 of the whole, which no key without it can contain.
func keyOf(b []byte) string {
	if len(b) == 0 {
		return dipwell.Shared
	}
	if len(b) > store.MaxKey {
		sum := sha256.Sum256(b)
		cut := keepOfKey
		for cut > 0 && (!utf8.RuneStart(b[cut]) || b[cut-1] == '\\') { // neither a rune nor an escape is cut in two
			cut--
		}
		b = hex.AppendEncode(append(b[:cut:cut], `\#`...), sum[:])
	}
	return string(b)
}

// appendPath appends a descriptor's entries as they came.
func appendPath(b []byte, desc *common.RateLimitDescriptor) []byte {
	for _, e := range desc.GetEntries() {
		b = appendEntry(b, e.GetKey(), e.GetValue())
	}
	return b
}

// Names of limits begin with this, so that they cannot be those of other files.
const namePrefix = "rls/"

// nameOf makes a limit's name from a rule's metric name: printable ASCII, at
// most 128 bytes. tail tells apart what would be alike.
func nameOf(metric, tail string) string {
	var b strings.Builder
	b.WriteString(namePrefix)
	changed := false
	for i := range len(metric) {
		if c := metric[i]; c > ' ' && c <= '~' || c == ' ' && i > 0 && i < len(metric)-1 {
			b.WriteByte(c)
		} else {
			b.WriteByte('?')
			changed = true
		}
	}
	name := b.String()
	if !changed && tail == "" && len(name) <= store.MaxName {
		return name
	}
	sum := sha256.Sum256([]byte(metric + "\x00" + tail))
	mark := "~" + hex.EncodeToString(sum[:8])
	return name[:min(len(name), store.MaxName-len(mark))] + mark
}
