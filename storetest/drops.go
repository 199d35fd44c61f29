package storetest

import (
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Drop deletes the rows of a limit and, like Reset, every reservation that
// has a part in one of them. Defining the limit again brings none of these rows back.
func cancelAfterDrop(e *env) {
	e.work("stays")
	e.work("goes")
	e.take("stays", "k", 5)
	e.take("goes", "k", 5)
	alone := e.reserve("goes", "k", 2)
	both := e.doAll(store.VerbReserve, dipwell.Take{Limit: "stays", Key: "k", Cost: 3}, dipwell.Take{Limit: "goes", Key: "k", Cost: 1})
	later := e.reserve("goes", "k", 1)
	e.advance(time.Second)
	e.drop("goes")
	for _, d := range []dipwell.Decision{alone, both} {
		if e.cancel(d.Reservation) == nil {
			e.Fatal("a reservation of a dropped limit was cancelled")
		}
	}
	e.work("goes")
	e.take("goes", "k", 5)
	e.reserve("goes", "k", 4)
	for _, d := range []dipwell.Decision{later, both} {
		if e.cancel(d.Reservation) == nil {
			e.Fatal("a reservation of a dropped limit was cancelled after the limit was defined again")
		}
	}
	e.check("stays", "k", 1)
	e.check("goes", "k", 1)
}
