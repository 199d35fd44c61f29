package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/store"
	"github.com/jackc/pgx/v5"
)

func init() {
	register("holds", (*bench).holds)
	register("levels", (*bench).levels)
}

const (
	besideLimit = "beside" // each of its keys has many live holds
	slotsLimit  = "slots"  // a limit of the algorithm concurrency
)

const (
	besideKeys  = 50
	besideHolds = 1000
)

// holds measures holds beside takes.
func (b *bench) holds(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Holds, %d keys\n\n", b.keys)
	fmt.Fprintf(&b.out, "Each decision is two calls, a hold and its settle, at half of the cost. \"beside %d\" is on %d keys with so many live holds each, under 1 a second, so that what they took stays taken. A limit of which others hold, but not on the key that is asked, is \"%s\".\n\n",
		besideHolds, besideKeys, besideLimit)
	return b.onBoth(ctx, b.holdsOn)
}

func (b *bench) holdsOn(ctx context.Context, w *schema, tables string) error {
	for _, l := range []dipwell.Limit{
		{Name: besideLimit, Rate: 1, Period: time.Second, Burst: burst}, // the tokens of holds do not come back by time meanwhile
		{Name: slotsLimit, Algorithm: dipwell.Concurrency, Burst: 1_000_000},
	} {
		if _, err := w.limiter.Define(ctx, l, store.OwnerCode); err != nil {
			return err
		}
	}
	if err := w.fill(ctx, besideLimit, b.keys); err != nil {
		return err
	}
	err := withConn(ctx, w.dsn, func(c *conn) error {
		// Each call has its own transaction, as users' calls do: rows updated a
		// thousand times in one transaction cannot be pruned meanwhile.
		return c.once(ctx, fmt.Sprintf(`do $$ begin
			for i in 1..%d loop
				for k in 0..%d loop
					perform dipwell.hold('%s', 'user:' || k, 1, interval '1 hour');
					commit;
				end loop;
			end loop;
		end $$`, besideHolds, besideKeys-1, besideLimit))
	})
	if err != nil {
		return err
	}
	take, few := w.take(), w.take()
	few.name, few.keys = fmt.Sprintf("%s, %d keys", takeName, besideKeys), besideKeys
	free := contender{name: "beside others' holds", ours: true, open: w.onConn(func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		if len(key) <= len(load.Key(besideKeys)) { // true for the keys in besideKeys, and a few more
			key += "00"
		}
		d, err := l.Take(ctx, besideLimit, key, 1)
		return d.Allowed, err
	})}
	held := contender{name: "hold and settle", ours: true, open: w.onConn(holdAndSettle(apiLimit))}
	beside := contender{name: fmt.Sprintf("beside %d holds", besideHolds), ours: true, keys: besideKeys, open: w.onConn(holdAndSettle(besideLimit))}
	slots := contender{name: "acquire and release", ours: true, open: w.onConn(holdAndSettle(slotsLimit))}
	cs := []contender{take, few, free, held, beside, slots}
	for _, clients := range []int{1, 8} {
		title := plural(clients, "client") + ", " + tables
		fs, err := b.rounds(ctx, "holds, "+title, load.Load{Clients: clients, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{take.name})
		b.costs(free.name, take.name, fs, tables, 1.03)
		for _, c := range [][2]string{{held.name, take.name}, {beside.name, few.name}, {slots.name, take.name}} {
			b.costs(c[0], c[1], fs, tables, 2.4)
		}
	}
	return nil
}

var holdIDs atomic.Int64

// holdAndSettle makes a hold and settles it.
func holdAndSettle(limit string) caller {
	return func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		id := "bench-" + strconv.FormatInt(holdIDs.Add(1), 36)
		d, err := l.Hold(ctx, time.Minute, id, dipwell.Take{Limit: limit, Key: key, Cost: 2})
		if err != nil || !d.Allowed {
			return d.Allowed, err
		}
		d, err = l.Settle(ctx, id, 1)
		return d.Allowed, err
	}
}

// costs writes how many times as much processor time and elapsed time a contender needs
// as another. On logged tables, the default, the processor time has a target.
func (b *bench) costs(ours, theirs string, fs map[string]*figures, tables string, most float64) {
	spent, slower := fs[ours].spent()/fs[theirs].spent(), fs[theirs].rate()/fs[ours].rate()
	fmt.Fprintf(&b.out, "%s: %.2f × the processor time of %s, and %.2f × its time", ours, spent, theirs, slower)
	if tables == "logged" {
		fmt.Fprintf(&b.out, "; target of processor time ≤ %g: %s", most, b.reached(spent <= most))
	}
	b.out.WriteString("\n\n")
}

// levels measures a limit with a parent and a grandparent, whose row all calls share.
func (b *bench) levels(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Three levels, %d keys\n\nEach call takes from a user, its tenant (of %d) and one row that all calls share. \"%s\" takes from the last alone, \"%s\" from three rows that no other key shares.\n\n", b.keys, tenants, hotName, apartName)
	return b.onBoth(ctx, b.levelsOn)
}

func (b *bench) levelsOn(ctx context.Context, w *schema, tables string) error {
	for _, l := range []dipwell.Limit{
		{Name: "second", Rate: perSecond, Period: time.Second, Burst: burst},
		{Name: "third", Rate: perSecond, Period: time.Second, Burst: burst},
		{Name: "everybody", Rate: perSecond, Period: time.Second, Burst: burst, Shared: true},
		{Name: "of-tenant", Rate: perSecond, Period: time.Second, Burst: burst, Parent: "everybody"},
		{Name: "of-user", Rate: perSecond, Period: time.Second, Burst: burst, Parent: "of-tenant"},
	} {
		if _, err := w.limiter.Define(ctx, l, store.OwnerCode); err != nil {
			return err
		}
	}
	paths := make(map[string]string, b.keys)
	for i := range b.keys {
		key := load.Key(i)
		paths[key] = dipwell.Key("tenant"+strconv.Itoa(i%tenants), key)
		if _, err := w.shared.Take(ctx, "of-user", paths[key], 1); err != nil {
			return err
		}
	}
	for _, limit := range []string{"second", "third"} {
		if err := w.fill(ctx, limit, b.keys); err != nil {
			return err
		}
	}
	one := w.onPool(func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := l.Take(ctx, apiLimit, key, 1)
		return d.Allowed, err
	})
	take, hot := contender{name: takeName, ours: true, open: one}, contender{name: hotName, ours: true, open: one, keys: 1}
	three := func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := l.Take(ctx, "of-user", paths[key], 1)
		return d.Allowed, err
	}
	levels := contender{name: "three levels", ours: true, open: w.onPool(three)}
	apart := contender{name: apartName, ours: true, open: w.onPool(func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := l.TakeAll(ctx, dipwell.Take{Limit: apiLimit, Key: key, Cost: 1}, dipwell.Take{Limit: "second", Key: key, Cost: 1}, dipwell.Take{Limit: "third", Key: key, Cost: 1})
		return d.Allowed, err
	})}
	cs := []contender{take, hot, apart, levels}
	for _, c := range []struct {
		clients int
		most    float64
	}{{1, 2.6}, {8, 2.2}} {
		title := plural(c.clients, "client") + ", " + tables
		fs, err := b.rounds(ctx, "levels, "+title, load.Load{Clients: c.clients, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{levels.name})
		b.costs(levels.name, take.name, fs, tables, c.most)
		for _, c := range []contender{hot, apart} { // measured alone: the two parts of what levels costs
			fmt.Fprintf(&b.out, "%s: %.2f × the processor time of %s\n\n", c.name, fs[c.name].spent()/fs[take.name].spent(), take.name)
		}
	}
	coalesced := w.coalesced()
	shared := contender{name: "three levels, coalesced", ours: true, open: func(context.Context) (load.Session, error) {
		return load.Session{Close: func() {}, Take: func(ctx context.Context, key string) (bool, error) { return three(ctx, w.shared, nil, key) }}, nil
	}}
	cs = []contender{shared, coalesced}
	for _, clients := range []int{64, 512} {
		title := fmt.Sprintf("%d goroutines, coalesced, %s", clients, tables)
		fs, err := b.rounds(ctx, "levels, "+title, load.Load{Clients: clients, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{shared.name}, onLogged(tables, coalescedName, 0.25)...)
	}
	return nil
}

const (
	tenants   = 100
	hotName   = takeName + ", one hot key"
	apartName = "TakeAll of 3, no row shared"
)
