package front

import "context"

// A Waiter calls wait, which waits until a request is due or ctx ends, or returns an error.
type Waiter func(ctx context.Context, wait func(ctx context.Context) error) error

type ofProxied struct{}

// Proxied returns a context for a request whose handler passes it on. Due waits by waiter.
// The handler returns only once a connection that it hijacks is closed, so a hold of the
// request lives as long.
func Proxied(ctx context.Context, waiter Waiter) context.Context {
	return context.WithValue(ctx, ofProxied{}, waiter)
}

// IsProxied reports whether ctx comes from Proxied.
func IsProxied(ctx context.Context) bool { return ctx.Value(ofProxied{}) != nil }

func waiter(ctx context.Context) Waiter {
	if w, ok := ctx.Value(ofProxied{}).(Waiter); ok {
		return w
	}
	return func(ctx context.Context, wait func(ctx context.Context) error) error { return wait(ctx) }
}
