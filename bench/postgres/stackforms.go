package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/store"
)

func init() { register("stackforms", (*bench).stackForms) }

// stackCallers is how many goroutines call the stack.
const stackCallers = 32

// stackForms measures calls other than a plain Take, through the stack of dipwell serve.
func (b *bench) stackForms(ctx context.Context) error {
	p, s, err := b.durable(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	defer func() { _ = s.Close() }()
	w := p.schema
	for _, l := range []dipwell.Limit{
		{Name: "held", Rate: perSecond, Period: time.Second, Burst: burst},
		{Name: slotsLimit, Algorithm: dipwell.Concurrency, Burst: 1_000_000},
		{Name: "tenant", Rate: perSecond, Period: time.Second, Burst: burst},
		{Name: "user", Rate: perSecond, Period: time.Second, Burst: burst, Parent: "tenant"},
	} {
		if _, err := w.limiter.Define(ctx, l, store.OwnerCode); err != nil {
			return err
		}
	}
	paths := make(map[string]string, b.keys)
	for i := range b.keys {
		key := load.Key(i)
		paths[key] = dipwell.Key("t"+strconv.Itoa(i), key)
	}
	err = withConn(ctx, w.dsn, func(c *conn) error {
		return c.once(ctx, fmt.Sprintf(`do $$ begin
			for k in 0..%d loop
				perform dipwell.hold('held', 'user:' || k, 1, interval '1 hour'), dipwell.take('user', 't' || k || '/user:' || k);
				commit;
			end loop;
		end $$`, b.keys-1))
	})
	if err != nil {
		return err
	}
	forms := []struct {
		name  string
		call  caller
		calls float64 // calls that each decision makes
		least float64 // target: share of the rate of Takes
	}{
		{verbTake, one((*dipwell.Limiter).Take), 1, 0},
		{"with a floor", func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
			d, err := l.TakeAll(ctx, dipwell.Take{Limit: apiLimit, Key: key, Cost: 1, Floor: 5})
			return d.Allowed, err
		}, 1, 0.5},
		{"of a key with a hold", oneOf("held", (*dipwell.Limiter).Take), 1, 0.7},
		{"hold and settle", holdAndSettle(apiLimit), 2, 0.3},
		{"slot and its end", holdAndSettle(slotsLimit), 2, 0.3},
		{"with a parent", func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
			d, err := l.Take(ctx, "user", paths[key], 1)
			return d.Allowed, err
		}, 1, 0.3},
	}
	fmt.Fprintf(&b.out, "## More than a Take through the stack of `dipwell serve`, %d goroutines, logged, %d keys\n\n", stackCallers, b.keys)
	b.out.WriteString("\"Alone\" is the store without the stack, with a connection for each goroutine. A hold and its settle, and a slot and its end, are two calls and one decision here.\n\n")
	var cs []contender
	for _, f := range forms {
		cs = append(cs, contender{name: f.name, ours: true, open: func(context.Context) (load.Session, error) {
			return load.Session{Close: func() {}, Take: func(ctx context.Context, key string) (bool, error) { return f.call(ctx, s.limiter, nil, key) }}, nil
		}}, contender{name: f.name + ", alone", ours: true, open: w.onPool(f.call)})
	}
	fs, err := b.rounds(ctx, "stack forms", load.Load{Clients: stackCallers, Keys: b.keys}, fromGo, cs...)
	if err != nil {
		return err
	}
	b.compare(plural(stackCallers, "caller"), fs, names(cs), []string{verbTake})
	for _, f := range forms[1:] {
		calls := fs[f.name].rate() * f.calls
		fmt.Fprintf(&b.out, "%s: %.2f of the Takes a second; target ≥ %g: %s", f.name, calls/fs[verbTake].rate(), f.least, b.reached(calls/fs[verbTake].rate() >= f.least))
		more := fs[f.name].rate() / fs[f.name+", alone"].rate()
		fmt.Fprintf(&b.out, "; %.1f × without the stack; target ≥ 4: %s\n\n", more, b.reached(more >= 4))
	}
	return nil
}
