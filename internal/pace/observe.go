package pace

import (
	"context"
	"time"

	"github.com/dipwell/dipwell"
)

// Adaptive returns the names of the adaptive limits that decided, also under a plan or an
// override.
func Adaptive(d *dipwell.Decision) (names []string) {
	add := func(d *dipwell.Decision) {
		if def := d.Definition; def != nil && def.Base().Rule.Pace != nil {
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

// Observe observes a call that limits have let through: how long it took, and whether it
// succeeded. It continues after ctx has ended. If the store does not answer, the rates
// stay as they are.
func Observe(ctx context.Context, l *dipwell.Limiter, limits []string, took time.Duration, ok bool) {
	ctx = context.WithoutCancel(ctx)
	for _, name := range limits {
		_ = l.Observe(ctx, name, took, ok, 1)
	}
}
