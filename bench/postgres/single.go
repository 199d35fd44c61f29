package main

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/bench/internal/load"
)

func init() {
	register("single", (*bench).single)
	register("hot", (*bench).hot)
	register("refused", (*bench).refused)
}

// single measures one decision per call, each client on its own connection.
func (b *bench) single(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Single decisions, %d keys\n\n", b.keys)
	fmt.Fprintf(&b.out, "From Go, prepared statements, a raw connection a client. \"%s\" is what dipwell sends, through the rivals' own driver code; \"%s\" adds the library around it. \"%s\" is the counter through the driver that the library uses.\n\n", statementName, takeName, pgxName)
	return b.eachDurability(ctx, func(p pair) error {
		for _, clients := range []int{1, 8, 32} {
			title := plural(clients, "client") + ", " + p.durability
			cs := append(p.contenders(), p.counterPGX())
			fs, err := b.rounds(ctx, "single, "+title, load.Load{Clients: clients, Keys: b.keys}, fromGo, cs...)
			if err != nil {
				return err
			}
			b.compare(title, fs, names(cs), []string{statementName, takeName}, p.singleTargets(clients)...)
			b.reach(takeName, pgxName, fs, 0.85)
		}
		return nil
	})
}

// singleTargets are the targets of dipwell's statement for a take when nothing is written to
// disk.
func (p pair) singleTargets(clients int) []target {
	if p.durability == "logged" {
		return []target{{over: counterName, ratio: 0.85}}
	}
	cron := 1.0
	if clients == 32 {
		cron = 0.95
	}
	return []target{{over: cronName, ratio: cron}, {over: txName, ratio: 2.3}, {over: counterName, ratio: 0.85}}
}

// hot measures calls that all use the same row.
func (b *bench) hot(ctx context.Context) error {
	fmt.Fprint(&b.out, "## One hot key, single decisions\n\n")
	return b.eachDurability(ctx, func(p pair) error {
		cs, title := p.contenders(), "32 clients, "+p.durability
		fs, err := b.rounds(ctx, "one hot key, "+title, load.Load{Clients: 32, Keys: 1}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{statementName, takeName})
		return nil
	})
}

// refused compares calls on drained buckets with calls on full ones.
func (b *bench) refused(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Refused calls, %d keys\n\n", b.keys)
	return b.eachDurability(ctx, func(p pair) error {
		for _, clients := range []int{1, 8, 32} {
			admitted, refused, title := p.take(), p.drained(), plural(clients, "client")+", "+p.durability
			fs, err := b.rounds(ctx, "refused, "+title, load.Load{Clients: clients, Keys: b.keys}, fromGo, refused, admitted)
			if err != nil {
				return err
			}
			if r := fs[refused.name]; r.refused < r.decisions {
				return fmt.Errorf("%d of %d calls on drained buckets were admitted", r.decisions-r.refused, r.decisions)
			}
			b.compare(title, fs, names([]contender{refused, admitted}), []string{refused.name}, target{over: takeName, ratio: 0.7})
		}
		return nil
	})
}

func names(cs []contender) (names []string) {
	for _, c := range cs {
		names = append(names, c.name)
	}
	return names
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
