// Package gen translates the step, the functions of store/step.go, into the languages in
// which stores decide, so that it is written only once. go generate runs it.
//
// # Output
//
//   - internal/sqlexpr: for each function a Go function of the same name that
//     takes SQL expressions and returns one, for statements that pgstore builds at
//     run time with the numbers of a version as constants:
//
//     used := sqlexpr.UsedAt(sqlexpr.Op("b.used"), sqlexpr.Op("b.ts"), sqlexpr.Op(now), grid, sqlexpr.Int(r.Every), …)
//     fmt.Sprintf("update … set used = %s", used)
//
//     Constants are folded: a multiplication by 1 and a condition with a known
//     result disappear. Results of a function that are not used cost nothing.
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
//   - redisstore/*.lua from redisstore/templates, in the same way.
//
//   - internal/algebra: the functions in Go, exported, for other packages.
//
// Change step.go or a template, not the generated files, and run go generate. CI
// runs make generated, which fails if they differ.
//
// # Supported Go
//
// Parameters and results are int64 or bool. Statements are := and = (also of
// several results), if, else, switch without a statement before its tag, and
// return. Expressions are constants, + - *, comparisons, && || !, int64(x), calls
// of other functions of the file, and calls of the functions for which each
// language has its own syntax: min, max, quo and quoUp (of numbers that are not
// negative, rounded down and up), floorDiv, floorMod, mulCap (a product with a
// bound) and mulDiv (a × b / c without overflow). There is no / and no %, because
// languages differ for negative numbers.
//
// Numbers must stay below 2^53. One that may be larger may only be compared with
// smaller ones, because Lua rounds it: write used - (most - units), not
// used + units - most. SQL may evaluate both branches of a condition, so neither
// may fail.
package gen
