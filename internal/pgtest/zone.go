//go:build unix

package pgtest

import (
	"encoding/binary"
	"os"
	"path/filepath"
)

// MovedZone is a time zone for which, after MoveZone(dir, MovedZone), a program
// with ZONEINFO=dir has other data than any database.
const MovedZone = "Pacific/Niue"

// MoveZone writes time zone data below dir in which the zone is always an
// hour ahead of UTC.
func MoveZone(dir, zone string) error {
	file := append([]byte("TZif"), make([]byte, 16)...) // version 1
	for _, n := range []uint32{0, 0, 0, 0, 1, 4} {      // counts in the header: one offset, and four bytes of its name
		file = binary.BigEndian.AppendUint32(file, n)
	}
	file = append(binary.BigEndian.AppendUint32(file, 3600), 0, 0, 'N', 'U', 'T', 0)
	path := filepath.Join(dir, zone)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, file, 0o600)
}
