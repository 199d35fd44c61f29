package pace

import (
	"context"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/background"
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

// Observe observes, in the background, a call that limits have let through: how long it
// took, and whether it succeeded. Its caller, who has the response, does not wait for the
// store. If the store does not answer, the rates stay as they are.
func Observe(ctx context.Context, l *dipwell.Limiter, limits []string, took time.Duration, ok bool) {
	if len(limits) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		for _, name := range limits {
			_ = background.Call(func() error { return l.Observe(ctx, name, took, ok, 1) })
		}
	}()
}
