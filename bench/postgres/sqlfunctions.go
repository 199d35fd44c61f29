package main

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/bench/internal/load"
)

func init() { register("pgbench", (*bench).sqlFunctions) }

// sqlFunctions measures the SQL functions, by pgbench.
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
		b.compare(plural(clients, "client"), fs, names(cs), []string{take.name, row.name}, target{over: nothing.name, ratio: want})
	}
	return nil
}
