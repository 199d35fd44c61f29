package store

import "context"

// An enter begins a verb other than Apply, and returns its context and a function to call
// at its end, or the error of the verb. long is true for a list, which may take far longer
// than a verb about one key.
type enter func(ctx context.Context, long bool) (context.Context, context.CancelFunc, error)

// Guard makes the verbs of ab call f first. Limits and Sweep are not guarded, because
// they may have work to do for many keys, nor is Ready, which would answer what f says.
func (ab *Abilities) Guard(f enter) {
	if keys := ab.Keys; keys != nil {
		ab.Keys = func(ctx context.Context, d *Definition, prefix, after string, n int) ([]KeyState, error) {
			return guarded(ctx, f, true, func(ctx context.Context) ([]KeyState, error) { return keys(ctx, d, prefix, after, n) })
		}
	}
	if holds := ab.Holds; holds != nil {
		ab.Holds = func(ctx context.Context, d *Definition, key string) ([]KeyHold, error) {
			return guarded(ctx, f, false, func(ctx context.Context) ([]KeyHold, error) { return holds(ctx, d, key) })
		}
	}
	if ab.Overrides != nil {
		ab.Overrides = guardedOverrides{ab.Overrides, f}
	}
	for _, log := range []*Auditor{&ab.Audit, &ab.TopKeys, &ab.Minutes} {
		if *log != nil {
			*log = guardedAudit{*log, f}
		}
	}
	if ab.Usage != nil {
		ab.Usage = guardedUsage{ab.Usage, f}
	}
	now := ab.Now
	ab.Now = func(ctx context.Context) (int64, error) { return guarded(ctx, f, false, now) }
}

func guarded[T any](ctx context.Context, f enter, long bool, verb func(context.Context) (T, error)) (out T, err error) {
	ctx, done, err := f(ctx, long)
	if err != nil {
		return out, err
	}
	defer done()
	return verb(ctx)
}

func guardedError(ctx context.Context, f enter, verb func(context.Context) error) error {
	_, err := guarded(ctx, f, false, func(ctx context.Context) (struct{}, error) { return struct{}{}, verb(ctx) })
	return err
}

type guardedOverrides struct {
	inner Overrider
	enter enter
}

func (g guardedOverrides) SetOverride(ctx context.Context, d *Definition, o Override) (Override, error) {
	return guarded(ctx, g.enter, false, func(ctx context.Context) (Override, error) { return g.inner.SetOverride(ctx, d, o) })
}

func (g guardedOverrides) EndOverride(ctx context.Context, d *Definition, key string, kind OverrideKind) (*Override, error) {
	return guarded(ctx, g.enter, false, func(ctx context.Context) (*Override, error) { return g.inner.EndOverride(ctx, d, key, kind) })
}

func (g guardedOverrides) Overrides(ctx context.Context, d *Definition, prefix, after string, n int) ([]Override, error) {
	return guarded(ctx, g.enter, true, func(ctx context.Context) ([]Override, error) { return g.inner.Overrides(ctx, d, prefix, after, n) })
}

type guardedAudit struct {
	inner Auditor
	enter enter
}

func (g guardedAudit) Record(ctx context.Context, e AuditEntry) error {
	return guardedError(ctx, g.enter, func(ctx context.Context) error { return g.inner.Record(ctx, e) })
}

func (g guardedAudit) Audit(ctx context.Context, before string, n int) ([]AuditEntry, error) {
	return guarded(ctx, g.enter, false, func(ctx context.Context) ([]AuditEntry, error) { return g.inner.Audit(ctx, before, n) })
}

type guardedUsage struct {
	inner UsageKeeper
	enter enter
}

func (g guardedUsage) AddUsage(ctx context.Context, lines []UsageLine) error {
	return guardedError(ctx, g.enter, func(ctx context.Context) error { return g.inner.AddUsage(ctx, lines) })
}

func (g guardedUsage) Usage(ctx context.Context, d *Definition, key string, from, to int64) ([]UsageLine, error) {
	return guarded(ctx, g.enter, true, func(ctx context.Context) ([]UsageLine, error) { return g.inner.Usage(ctx, d, key, from, to) })
}
