package simulate

import (
	"fmt"
	"github.com/dipwell/dipwell/store"
	"testing"
)

func TestDbg(t *testing.T) {
	dbg = func(n *node, op *store.Op, asked *store.Definition) {
		r := n.table.rows[at{op.Def.Name, op.Key}]
		fmt.Printf("now %d row %+v lows %+v override %+v records %+v op %+v\n", n.time(), r.State, r.Lows, r.override, r.records, op.Answer)
		fmt.Println("until-now", r.override.Until-n.time())
		for d := int64(-2); d < 3; d++ {
			a, err := n.would(op, asked, n.time()+op.Retry+d)
			fmt.Println(d, a, err)
		}
		ops := store.Op{Def: asked, Key: op.Key, Verb: op.Verb, Cost: op.Cost}
		fmt.Println(ops.Def.Rule)
	}
	r := Shrink(248, Options{})
	fmt.Println(r.Violation)
}
