package rls

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// appendEntry appends an entry to a key: key=value, after a comma if it is not the
// first. Characters are escaped so that different descriptors have different keys.
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

// keepOfKey is how many bytes of a long key are kept.
const keepOfKey = 256

// keyOf returns the key of a bucket. A long key is cut, and ends in \# and the
// SHA-256 of the whole key. No short key has \#, since a backslash is escaped.
func keyOf(b []byte) string {
	if len(b) == 0 { // the key of a descriptor without entries; all others have a '='
		return "no entries"
	}
	if len(b) > store.MaxKey {
		sum := sha256.Sum256(b)
		cut := keepOfKey
		for cut > 0 && (!utf8.RuneStart(b[cut]) || b[cut-1] == '\\') { // do not cut a rune or an escape
			cut--
		}
		b = hex.AppendEncode(append(b[:cut:cut], `\#`...), sum[:])
	}
	return string(b)
}

// namePrefix tells the names of these limits from those of other files.
const namePrefix = "rls/"

// nameOf returns a limit's name for a rule's metric name: printable ASCII, at most
// 128 bytes. tail makes the names of rules with the same metric name different.
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
	if !changed && tail == "" && len(name) <= terms.MaxName {
		return name
	}
	sum := sha256.Sum256([]byte(metric + "\x00" + tail))
	mark := "~" + hex.EncodeToString(sum[:8])
	return name[:min(len(name), terms.MaxName-len(mark))] + mark
}
