package gen

import (
	"github.com/dipwell/dipwell/internal/sqlexpr"
)

// direct builds SQL expressions, with calls inlined.
type direct struct{}

func (direct) int(n int64) sqlexpr.Expr { return sqlexpr.Int(n) }
func (direct) bool(b bool) sqlexpr.Expr { return sqlexpr.Bool(b) }

func (direct) bind(_ string, v sqlexpr.Expr) sqlexpr.Expr { return v }

func (d direct) call(f *Func, args []sqlexpr.Expr) []sqlexpr.Expr {
	results, err := evaluate(d, f, args)
	if err != nil {
		panic(failure{err})
	}
	return results
}

func (direct) op(name string, a ...sqlexpr.Expr) sqlexpr.Expr {
	switch f := builders[name].make.(type) {
	case func(a sqlexpr.Expr) sqlexpr.Expr:
		return f(a[0])
	case func(a, b sqlexpr.Expr) sqlexpr.Expr:
		return f(a[0], a[1])
	case func(a, b, c sqlexpr.Expr) sqlexpr.Expr:
		return f(a[0], a[1], a[2])
	case func(a, b, c, d sqlexpr.Expr) sqlexpr.Expr:
		return f(a[0], a[1], a[2], a[3])
	}
	panic("no builder of " + name)
}

// builders are the functions of sqlexpr by the operation that they build.
var builders = map[string]struct {
	name string
	make any
}{
	"+": {"Add", sqlexpr.Add}, "-": {"Sub", sqlexpr.Sub}, "*": {"Mul", sqlexpr.Mul},
	"=": {"Eq", sqlexpr.Eq}, "<>": {"Ne", sqlexpr.Ne}, "<": {"Lt", sqlexpr.Lt},
	"<=": {"Le", sqlexpr.Le}, ">": {"Gt", sqlexpr.Gt}, ">=": {"Ge", sqlexpr.Ge},
	"and": {"And", sqlexpr.And}, "or": {"Or", sqlexpr.Or}, "not": {"Not", sqlexpr.Not}, "cond": {"Cond", sqlexpr.Cond},
	"min": {"Min", sqlexpr.Min}, "max": {"Max", sqlexpr.Max}, "quo": {"Quo", sqlexpr.Quo}, "quoUp": {"QuoUp", sqlexpr.QuoUp},
	"floorDiv": {"FloorDiv", sqlexpr.FloorDiv}, "floorMod": {"FloorMod", sqlexpr.FloorMod},
	"mulCap": {"MulCap", sqlexpr.MulCap}, "mulDiv": {"MulDiv", sqlexpr.MulDiv},
}

// SQL returns the results of a function as SQL expressions of args.
func (f *Func) SQL(args ...sqlexpr.Expr) ([]sqlexpr.Expr, error) {
	if len(args) != len(f.Params) {
		f.of.fail(f.decl, "%s has %d parameters, not %d", f.Name, len(f.Params), len(args))
	}
	return evaluate(direct{}, f, args)
}
