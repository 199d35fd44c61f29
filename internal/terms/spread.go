package terms

import (
	"crypto/sha256"
	"encoding/binary"
)

// PhaseOf returns the phase of a limit's key, which does not depend on the length
// of its windows: 1 + the first 48 bits of
// SHA-256(uint32be(len(name)) ‖ name ‖ key). It is never 0.
func PhaseOf(name, key string) int64 {
	var buf [768]byte // longer than any name and key
	b := binary.BigEndian.AppendUint32(buf[:0], uint32(len(name)))
	b = append(append(b, name...), key...)
	sum := sha256.Sum256(b)
	return 1 + int64(binary.BigEndian.Uint64(sum[:8])>>16)
}

// Origin returns the start of the first window at or after the Unix epoch, in µs,
// of a key with that phase and windows of period µs.
func Origin(phase, period int64) int64 { return (phase - 1) % period }
