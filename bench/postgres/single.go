package main

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/bench/internal/load"
)

// single: one decision a call, each client on a connection of its own.
func (b *bench) single(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Single decisions, unlogged, %d keys\n\n", b.keys)
	fmt.Fprintf(&b.out, "From Go, prepared statements, a raw connection a client. \"%s\" is what dipwell sends, through the rivals' own driver code; \"%s\" adds the library around it.\n\n", statementName, takeName)
	for _, clients := range []int{1, 8, 32} {
		cs := append([]contender{b.fast.statement(), b.fast.take()}, b.rivals.all()...)
		fs, err := b.rounds(ctx, fmt.Sprintf("single, %d clients", clients), load.Load{Clients: clients, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		cron := 1.0
		if clients == 32 {
			cron = 0.95
		}
		b.compare(plural(clients, "client"), fs, names(cs), []string{statementName, takeName},
			target{cronName, cron}, target{procName, 2}, target{txName, 2.3}, target{counterName, 0.85})
	}
	return nil
}

// hot: everybody wants the same row.
func (b *bench) hot(ctx context.Context) error {
	cs := append([]contender{b.fast.statement(), b.fast.take()}, b.rivals.all()...)
	fs, err := b.rounds(ctx, "one hot key", load.Load{Clients: 32, Keys: 1}, fromGo, cs...)
	if err != nil {
		return err
	}
	fmt.Fprint(&b.out, "## One hot key, unlogged\n\n")
	b.compare("32 clients", fs, names(cs), []string{statementName, takeName}, target{cronName, 5}, target{procName, 10})
	return nil
}

// refused: calls on drained buckets beside calls on full ones.
func (b *bench) refused(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Refused calls, unlogged, %d keys\n\n", b.keys)
	for _, clients := range []int{1, 8, 32} {
		admitted, refused := b.fast.take(), b.fast.drained()
		fs, err := b.rounds(ctx, fmt.Sprintf("refused, %d clients", clients), load.Load{Clients: clients, Keys: b.keys}, fromGo, refused, admitted)
		if err != nil {
			return err
		}
		if r := fs[refused.name]; r.refused < r.decisions {
			return fmt.Errorf("%d of %d calls on drained buckets were admitted", r.decisions-r.refused, r.decisions)
		}
		b.compare(plural(clients, "client"), fs, names([]contender{refused, admitted}), []string{refused.name}, target{takeName, 0.7})
	}
	return nil
}

// sqlFunctions: what psql and other languages call, by pgbench.
func (b *bench) sqlFunctions(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## The SQL functions, by pgbench --protocol=prepared, unlogged, %d keys\n\n", b.keys)
	b.out.WriteString("Called as (b)'s function is, in the select list: `select (dipwell.take(…)).allowed`. `select * from dipwell.take(…)` has all columns and passes through a function scan. \"" + floorName + "\" only adds 1, as its owner and with a fixed search_path: the floor of such a function.\n\n")
	for _, clients := range []int{1, 8, 32} {
		take := contender{name: "dipwell.take", script: "dipwell.pgbench", database: b.fast.dsn, ours: true}
		row := contender{name: "select * from dipwell.take", script: "dipwell_row.pgbench", database: b.fast.dsn, ours: true}
		nothing := contender{name: "select 1", script: "select1.pgbench", database: b.fast.dsn}
		floor := contender{name: floorName, script: "counter_function.pgbench", database: b.rivals.dsn}
		cs := append([]contender{take, row, nothing, floor}, b.rivals.all()...)
		fs, err := b.rounds(ctx, fmt.Sprintf("pgbench, %d clients", clients), load.Load{Clients: clients, Keys: b.keys}, b.pgbench, cs...)
		if err != nil {
			return err
		}
		want := map[int]float64{1: 0.3, 8: 0.2, 32: 0.18}[clients]
		b.compare(plural(clients, "client"), fs, names(cs), []string{take.name, row.name}, target{nothing.name, want})
	}
	return nil
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
