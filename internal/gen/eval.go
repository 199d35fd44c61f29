package gen

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
)

// A target builds values for expressions: SQL text, or Go code that builds it.
type target[V any] interface {
	int(n int64) V
	bool(b bool) V
	op(name string, args ...V) V // an operator of SQL, a primitive, or "cond"
	call(f *Func, args []V) []V
	bind(name string, v V) V // v is now the value of a local variable
}

// An evaluator turns the statements of a function into one expression per
// result. Local variables are replaced by their values, and an if becomes a
// conditional expression.
type evaluator[V any] struct {
	*Package
	target[V]
	f *Func
}

type vals[V any] = map[types.Object]V

// evaluate returns the results of a function for args.
func evaluate[V any](a target[V], f *Func, args []V) (results []V, err error) {
	defer caught(&err)
	e := evaluator[V]{f.of, a, f}
	known := vals[V]{}
	for i, p := range f.Params {
		known[p] = args[i]
	}
	for _, r := range f.Results {
		known[r] = e.zero(r)
	}
	return e.block(f.decl.Body.List, known, func(vals[V]) []V {
		f.of.fail(f.decl, "%s ends without a return", f.Name)
		return nil
	}), nil
}

func (e *evaluator[V]) zero(v types.Object) V {
	if v.Type() == types.Typ[types.Bool] {
		return e.bool(false)
	}
	return e.int(0)
}

// block evaluates statements, and then rest.
func (e *evaluator[V]) block(list []ast.Stmt, known vals[V], rest func(vals[V]) []V) []V {
	if len(list) == 0 {
		return rest(known)
	}
	after := func(v vals[V]) []V { return e.block(list[1:], v, rest) }
	switch s := list[0].(type) {
	case *ast.ReturnStmt:
		return e.returned(s, known)
	case *ast.AssignStmt:
		e.assign(s, known)
		return after(known)
	case *ast.SwitchStmt:
		return e.branch(e.ifs(s).(*ast.IfStmt), known, after)
	case *ast.IfStmt:
		return e.branch(s, known, after)
	}
	e.fail(list[0], "a statement that is no assignment, if, switch or return")
	return nil
}

func (e *evaluator[V]) returned(s *ast.ReturnStmt, known vals[V]) (results []V) {
	switch len(s.Results) {
	case 0:
		for _, r := range e.f.Results {
			results = append(results, known[r])
		}
	case len(e.f.Results):
		for _, r := range s.Results {
			results = append(results, e.expr(r, known))
		}
	default:
		results = e.calls(s.Results[0].(*ast.CallExpr), known)
	}
	return results
}

func (e *evaluator[V]) assign(s *ast.AssignStmt, known vals[V]) {
	if s.Tok != token.DEFINE && s.Tok != token.ASSIGN {
		e.fail(s, "the assignment %s", s.Tok)
	}
	var values []V
	if len(s.Rhs) == len(s.Lhs) {
		for _, r := range s.Rhs {
			values = append(values, e.expr(r, known))
		}
	} else {
		values = e.calls(s.Rhs[0].(*ast.CallExpr), known)
	}
	for i, l := range s.Lhs {
		id, ok := l.(*ast.Ident)
		if !ok {
			e.fail(l, "an assignment to something that is no variable")
		}
		if id.Name != "_" {
			known[e.object(id)] = e.bind(id.Name, values[i])
		}
	}
}

// branch evaluates both branches of an if. If neither returns, what follows is
// evaluated once, with variables that are conditional expressions.
func (e *evaluator[V]) branch(s *ast.IfStmt, known vals[V], rest func(vals[V]) []V) []V {
	if s.Init != nil {
		e.fail(s, "an if with a statement before its condition")
	}
	c := e.expr(s.Cond, known)
	other := elseOf(s)
	some, _ := e.returns([]ast.Stmt{s})
	if some {
		a := e.block(s.Body.List, maps.Clone(known), rest)
		b := e.block(other, maps.Clone(known), rest)
		for i := range a {
			a[i] = e.op("cond", c, a[i], b[i])
		}
		return a
	}
	then, otherwise := maps.Clone(known), maps.Clone(known)
	none := func(vals[V]) []V { return nil }
	e.block(s.Body.List, then, none)
	e.block(other, otherwise, none)
	for _, v := range e.assigned(s) {
		if _, outside := known[v]; outside {
			known[v] = e.bind(v.Name(), e.op("cond", c, then[v], otherwise[v]))
		}
	}
	return rest(known)
}

// assigned lists the variables that a statement assigns, in order.
func (e *evaluator[V]) assigned(s ast.Stmt) (list []types.Object) {
	seen := map[types.Object]bool{}
	ast.Inspect(s, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			for _, l := range a.Lhs {
				if id, ok := l.(*ast.Ident); ok && id.Name != "_" && !seen[e.object(id)] {
					seen[e.object(id)] = true
					list = append(list, e.object(id))
				}
			}
		}
		return true
	})
	return list
}

func (e *evaluator[V]) exprs(list []ast.Expr, known vals[V]) (out []V) {
	for _, x := range list {
		out = append(out, e.expr(x, known))
	}
	return out
}

func (e *evaluator[V]) expr(x ast.Expr, known vals[V]) V {
	if n, isBool, ok := e.known(x); ok {
		if isBool {
			return e.bool(n == 1)
		}
		return e.int(n)
	}
	switch x := x.(type) {
	case *ast.ParenExpr:
		return e.expr(x.X, known)
	case *ast.Ident:
		v, ok := known[e.object(x)]
		if !ok {
			e.fail(x, "%s is no variable of the function", x.Name)
		}
		return v
	case *ast.UnaryExpr:
		if x.Op == token.SUB {
			return e.op("-", e.int(0), e.expr(x.X, known))
		}
		return e.op(e.operator(x, x.Op), e.expr(x.X, known))
	case *ast.BinaryExpr:
		return e.op(e.operator(x, x.Op), e.expr(x.X, known), e.expr(x.Y, known))
	case *ast.CallExpr:
		return e.calls(x, known)[0]
	}
	e.fail(x, "an expression that cannot be translated")
	panic("not reached")
}

func (e *evaluator[V]) calls(c *ast.CallExpr, known vals[V]) []V {
	args := e.exprs(c.Args, known)
	switch f, primitive := e.called(c); {
	case f != nil:
		return e.call(f, args)
	case primitive != "":
		return []V{e.op(primitive, args...)}
	}
	return args
}
