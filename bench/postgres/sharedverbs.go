package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/jackc/pgx/v5"
)

func init() { register("coalescedverbs", (*bench).coalescedVerbs) }

// sharers is how many goroutines call through coalesce.
const sharers = 256

// coalescedVerbs measures each verb from many goroutines through coalesce.
func (b *bench) coalescedVerbs(ctx context.Context) error {
	fmt.Fprint(&b.out, "## Each verb coalesced\n\n")
	for _, tables := range []string{"logged", "unlogged"} {
		w, err := b.newSchemaAll(ctx, tables)
		if err != nil {
			return err
		}
		if err = b.sharedVerbs(ctx, w, tables); err == nil {
			err = b.sharedCosts(ctx, w, tables)
		}
		w.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// sharedCall is a contender whose calls are sent together by coalesce.
func (w *schema) sharedCall(name string, call caller) contender {
	return contender{name: name, ours: true, open: func(context.Context) (load.Session, error) {
		return load.Session{Close: func() {}, Take: func(ctx context.Context, key string) (bool, error) { return call(ctx, w.shared, nil, key) }}, nil
	}}
}

func (b *bench) sharedVerbs(ctx context.Context, w *schema, durability string) error {
	var cs []contender
	for _, v := range verbs {
		cs = append(cs, w.sharedCall(v.name, v.call))
	}
	fs, err := b.rounds(ctx, "coalesced verbs, "+durability, load.Load{Clients: sharers, Keys: b.keys}, fromGo, cs...)
	if err != nil {
		return err
	}
	b.compare(fmt.Sprintf("%d goroutines, %d keys, %s", sharers, b.keys, durability), fs, names(cs), []string{verbTake})
	for _, v := range verbs {
		if v.shared > 0 && durability == "logged" {
			b.reach(v.name, verbTake, fs, v.shared)
		}
	}
	return nil
}

// sharedCosts measures takes of different costs from one key, alone and among takes from other
// keys.
func (b *bench) sharedCosts(ctx context.Context, w *schema, durability string) error {
	same, mixed := w.sharedCall("cost 1", verbs[0].call), w.sharedCall("costs 1 to 5", mixedCosts())
	hot := []contender{mixed, same}
	fs, err := b.rounds(ctx, "coalesced, costs of one key, "+durability, load.Load{Clients: sharers, Keys: 1}, fromGo, hot...)
	if err != nil {
		return err
	}
	b.compare(fmt.Sprintf("%d goroutines, one hot key, %s", sharers, durability), fs, names(hot), []string{mixed.name}, onLogged(durability, "cost 1", 0.4)...)
	few := []contender{w.sharedCall("5 % with costs 1 to 5 of one key", someHot(mixedCosts())), w.sharedCall("5 % with cost 1 of one key", someHot(verbs[0].call)), w.sharedCall("none", verbs[0].call)}
	if fs, err = b.rounds(ctx, "coalesced, some costs of one key, "+durability, load.Load{Clients: sharers, Keys: b.keys}, fromGo, few...); err != nil {
		return err
	}
	b.compare(fmt.Sprintf("%d goroutines, %d keys, some calls of one, %s", sharers, b.keys, durability), fs, names(few), []string{few[0].name}, onLogged(durability, "none", 0.85)...)
	return nil
}

// someHot makes one call in twenty on the same key.
func someHot(hot caller) caller {
	return func(ctx context.Context, l *dipwell.Limiter, c *pgx.Conn, key string) (bool, error) {
		if rand.IntN(20) == 0 {
			return hot(ctx, l, c, load.Key(0))
		}
		return verbs[0].call(ctx, l, c, key)
	}
}
