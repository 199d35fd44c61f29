package server

import (
	"strconv"
	"testing"
	"unsafe"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
)

// The last refusals take no more memory than the page for operators says.
func TestLastRefusalsAreBounded(t *testing.T) {
	const entry = unsafe.Sizeof(refusedKey{}) + unsafe.Sizeof([]oneRefusal{}) + refusedTimes*unsafe.Sizeof(oneRefusal{})
	most := 2 * refusedKeys * (int(entry) + bounded.MaxKey)
	if most > 1.5e6 {
		t.Errorf("at most %d bytes", most)
	}
}

// BenchmarkKeyCounts measures what CountKeys adds to a decision.
func BenchmarkKeyCounts(b *testing.B) {
	size := bounded.WindowConfig{Slices: topSlices}
	k := &keyCounts{all: bounded.NewWindow(size), refused: bounded.NewWindow(size)}
	k.last.keys.Most = refusedKeys
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	for name, allowed := range map[string]bool{"allowed": true, "refused": false} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				d := dipwell.Decision{Limit: "login", Key: keys[i%len(keys)], Cost: 1}
				d.Allowed = allowed
				k.add(&d, usesTokens, true)
				i++
			}
		})
	}
}
