// Package gen translates the step, the functions of the step.go of package store,
// into the languages in which stores decide, so that it is written once. It is
// run by go generate (go generate ./store alone takes a second).
//
// # What it writes
//
//   - internal/sqlstep: for each function a Go function of the same name that
//     takes SQL expressions and returns one, for statements that pgstore writes at
//     run time with a version's numbers as constants:
//
//     used := sqlstep.UsedAt(sqlexpr.Op("b.used"), sqlexpr.Op("b.ts"), sqlexpr.Op(now), grid, sqlexpr.Int(r.Every), …)
//     fmt.Sprintf("update … set used = %s", used)
//
//     Constants are folded: what is multiplied by 1, or depends on a condition
//     that is known, vanishes. Of a function with several results only those that
//     are printed cost anything.
//
//   - pgstore/*.sql from the template of the same name in pgstore/templates. A
//     template (text/template) calls the functions by their names in step.go, with
//     SQL text, numbers and true or false as arguments:
//
//     {{usedAt "l.used" "l.ts" "c.n" "q.grid" "q.every" "q.add" "q.enough"}} as used0
//     {{(decide 0 false "used0" "cost" "unit" "cap" "debt" "max_charge" "max_used").allowed}}
//
//     Calls nest with parentheses: {{leftAfter "used" (ticksBetween "ts" "n" "grid" "every") "add" "ticks"}}.
//
//   - internal/algebra: the functions in Go for other packages, exported.
//
// Change step.go or a template, never what is made of it, and run go generate;
// make generated, which CI runs, fails where the two differ.
//
// # What a function may be made of
//
// Parameters and results are int64 or bool. Statements are := and = (also of
// several results), if, else, switch without a statement before its tag, and
// return. Expressions are constants, + - *, comparisons, && || !, int64(x), calls
// of other functions of the file, and of those that each language has in words
// of its own: min, max, quo and quoUp (of numbers that are not negative, rounded
// down and up), floorDiv, floorMod, mulCap (a product with a bound) and mulDiv
// (a × b / c without overflow). There is no / and no %, because languages differ
// about negative numbers.
//
// Numbers stay below 2^53, and what may be more is only compared with less: Lua
// rounds it (write used - (most - units), not used + units - most). Both branches
// of a condition may be evaluated in SQL, so neither may fail.
package gen
