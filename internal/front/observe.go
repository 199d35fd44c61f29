package front

import (
	"time"

	"github.com/dipwell/dipwell"
)

// Adaptive returns the adaptive limits that decided, also under a plan or an override.
func Adaptive(d *dipwell.Decision) (names []string) {
	add := func(d *dipwell.Decision) {
		if def := d.Definition; def != nil && def.Adaptive.Floor > 0 {
			names = append(names, def.Name)
		}
	}
	if d.Limits == nil {
		add(d)
	}
	for i := range d.Limits {
		add(&d.Limits[i])
	}
	return names
}

// Observe observes how long a call that limits have let through took, and its success.
func Observe(l *dipwell.Limiter, limits []string, took time.Duration, ok bool) {
	for _, name := range limits {
		_ = l.Observe(name, max(took, 0), ok, 1) // the only possible error is that the limit was changed meanwhile
	}
}
