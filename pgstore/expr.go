package pgstore

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// The functions of this file return SQL expressions about row b of buckets. Their
// operands are numbers, columns and parameters.

// ticksSQL returns the number of ticks from the row's ts to now. grid is a boundary of windows before
// any time that can occur, so that division rounds down: see gridOf.
func ticksSQL(r *store.Rule, now, grid string) string {
	return ticksDividedSQL(r, now, grid, "/")
}

// ticksDividedSQL is ticksSQL for an engine's operator of integer division.
func ticksDividedSQL(r *store.Rule, now, grid, divide string) string {
	if r.Every == 1 {
		return fmt.Sprintf("greatest(%s - b.ts, 0)", now)
	}
	return fmt.Sprintf("((greatest(%[1]s, b.ts)%[2]s) %[3]s %[4]d - (b.ts%[2]s) %[3]s %[4]d)", now, minus(grid), divide, r.Every)
}

// ticksOnceSQL is ticksSQL for a grid that must be looked up, and that therefore occurs in
// the expression only once. It computes the ticks from the time since ts, and from how
// much of the present window has passed.
func ticksOnceSQL(r *store.Rule, now, grid string) string {
	return fmt.Sprintf("(greatest(%[1]s - b.ts, 0) - (%[1]s - %[2]s) %% %[3]d + %[3]d - 1) / %[3]d", now, grid, r.Every)
}

// minus returns " - n" for a number that may be negative.
func minus(n string) string {
	if strings.HasPrefix(n, "-") {
		return " + " + n[1:]
	}
	return " - " + n
}

// returnedSQL returns the units that come back in a number of ticks. enough is the number
// of ticks after which everything has come back, or "" if the product cannot overflow.
func returnedSQL(ticks, add, enough string) string {
	if enough != "" {
		ticks = fmt.Sprintf("least(%s, %s)", ticks, enough)
	}
	if add == "1" {
		return ticks
	}
	return ticks + " * " + add
}

// leftSQL returns the used units of a row after ticks.
func leftSQL(r *store.Rule, ticks string) string {
	return leftAfterSQL(ticks, strconv.FormatInt(r.Add, 10), enough(r))
}

func leftAfterSQL(ticks, add, enough string) string {
	return fmt.Sprintf("greatest(b.used - %s, 0)", returnedSQL(ticks, add, enough))
}

// fitsSQL returns whether a row uses at most room units after ticks.
func fitsSQL(r *store.Rule, ticks, room string) string {
	return fmt.Sprintf("b.used - %s <= %s", returnedSQL(ticks, strconv.FormatInt(r.Add, 10), enough(r)), room)
}

// lowSQL returns the low of a row that uses left units. The low is null if the row
// has no records.
func lowSQL(left string) string { return fmt.Sprintf("b.low - greatest(b.low - %s, 0)", left) }

// enough returns the number of ticks after which any row is full, with which ticks are limited
// before a multiplication that could overflow, or "". Two times are less than 2^54 µs apart.
func enough(r *store.Rule) string {
	if r.Every == 1 && r.Add <= 1<<8 {
		return ""
	}
	return strconv.FormatInt(algebra.QuoUp(r.MaxUsed, r.Add), 10)
}

// spread reports whether the origin of a key's windows is a parameter. With
// windows of 1 µs the origin does not matter.
func spread(r *store.Rule) bool { return r.Spread && r.Every > 1 }

// gridSQL returns the grid of a rule whose ticks have equal lengths.
func gridSQL(r *store.Rule) string { return strconv.FormatInt(gridOf(r.Origin, r.Every), 10) }

// gridOrParam returns the grid of a rule, which is a parameter after n others if the origins of
// keys are spread, and the number of parameters.
func gridOrParam(r *store.Rule, n int) (grid string, params int) {
	switch {
	case spread(r):
		return fmt.Sprintf("$%d::bigint", n+1), n + 1
	case r.Every > 0:
		return gridSQL(r), n
	}
	return "", n
}

// gridOf returns a window boundary before any time that can occur, so that
// division rounds down.
func gridOf(origin, every int64) int64 {
	return origin - every*((store.MaxInt+1)/every+1)
}
