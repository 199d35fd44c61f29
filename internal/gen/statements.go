package gen

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/internal/sqlexpr"
)

// A language is the syntax of statements.
type language struct {
	style                            sqlexpr.Style
	assign                           string // format with two %s
	is, then, elseIf, otherwise, end string
	declare, begin, over             string // a block with local variables, each declared by the format declare
}

var (
	plpgsql = &language{
		assign: "%s := %s;", is: "if ", then: " then", elseIf: "elsif ", otherwise: "else", end: "end if;",
		declare: "    %s;", begin: "begin", over: "end;",
	}
	lua = &language{
		style: sqlexpr.Style{Lua: true}, assign: "%s = %s",
		is: "if ", then: " then", elseIf: "elseif ", otherwise: "else", end: "end",
	}
)

// A statement is an assignment or, if it has branches, an if.
type statement struct {
	to       string
	value    sqlexpr.Expr
	branches []branch
}

// A branch of an if. The condition of the last one may be true.
type branch struct {
	cond sqlexpr.Expr
	body []statement
}

// An inliner writes a function in place of a call, with variables for its
// results.
type inliner struct {
	*Package
	f       *Func
	targets []string
	locals  *[]local
}

// A local is a variable of an inlined function.
type local struct {
	name  string
	truth bool
}

type env struct {
	values   vals[sqlexpr.Expr]
	assigned map[string]bool // targets that may not be zero any more
}

func (e env) clone() env { return env{maps.Clone(e.values), maps.Clone(e.assigned)} }

// statements returns a function as statements that assign its results to
// targets, which need no initial value.
func (f *Func) statements(l *language, args []sqlexpr.Expr, targets []string) (text string, err error) {
	defer caught(&err)
	var locals []local
	in := inliner{f.of, f, targets, &locals}
	e := in.enter(args)
	var b strings.Builder
	if len(f.Results) == 1 {
		e.assigned[targets[0]] = true // by every return
	}
	for i, r := range f.Results {
		if e.assigned[targets[i]] {
			continue
		}
		zero := sqlexpr.Int(0)
		if r.Type() == types.Typ[types.Bool] {
			zero = sqlexpr.Bool(false)
		}
		fmt.Fprintf(&b, l.assign+"\n", targets[i], zero.Text(l.style))
	}
	body := in.block(f.decl.Body.List, e)
	if len(locals) == 0 {
		l.write(&b, body, 0)
		return b.String(), nil
	}
	if l == lua {
		var names []string
		for _, v := range locals {
			names = append(names, v.name)
		}
		fmt.Fprintf(&b, "local %s\n", strings.Join(names, ", "))
		l.write(&b, body, 0)
		return b.String(), nil
	}
	b.WriteString("declare\n")
	for _, v := range locals {
		kind := "bigint"
		if v.truth {
			kind = "boolean"
		}
		fmt.Fprintf(&b, "    %s %s;\n", v.name, kind)
	}
	b.WriteString("begin\n")
	l.write(&b, body, 1)
	b.WriteString("end;\n")
	return b.String(), nil
}

// enter returns the environment at the start of a function.
func (in *inliner) enter(args []sqlexpr.Expr) env {
	e := env{vals[sqlexpr.Expr]{}, map[string]bool{}}
	for i, p := range in.f.Params {
		e.values[p] = args[i]
	}
	for i, r := range in.f.Results {
		e.values[r] = sqlexpr.Op(in.targets[i])
	}
	return e
}

func (in *inliner) expr(x ast.Expr, e env) sqlexpr.Expr {
	ev := evaluator[sqlexpr.Expr]{in.Package, direct{}, in.f}
	return ev.expr(x, e.values)
}

func (in *inliner) block(list []ast.Stmt, e env) (out []statement) {
	for i, s := range list {
		switch s := s.(type) {
		case *ast.ReturnStmt:
			return append(out, in.results(s, e)...)
		case *ast.AssignStmt:
			out = append(out, in.assign(s, e)...)
		case *ast.SwitchStmt:
			return append(out, in.branch(in.ifs(s).(*ast.IfStmt), list[i+1:], e)...)
		case *ast.IfStmt:
			return append(out, in.branch(s, list[i+1:], e)...)
		default:
			in.fail(s, "a statement that is no assignment, if, switch or return")
		}
	}
	return out
}

// branch writes an if and what follows it, which goes into the other branch if
// one ends in a return.
func (in *inliner) branch(s *ast.IfStmt, rest []ast.Stmt, e env) []statement {
	other := elseOf(s)
	some, _ := in.returns([]ast.Stmt{s})
	_, thenEnds := in.returns(s.Body.List)
	_, elseEnds := in.returns(other)
	then := s.Body.List
	switch {
	case !some:
	case thenEnds:
		other, rest = join(other, rest), nil
	case elseEnds:
		then, rest = join(then, rest), nil
	default:
		in.fail(s, "an if of which a branch returns only sometimes")
	}
	c := in.expr(s.Cond, e)
	switch c.String() {
	case "true":
		return in.block(join(then, rest), e)
	case "false":
		return in.block(join(other, rest), e)
	}
	a, b := e.clone(), e.clone()
	out := statement{branches: []branch{{c, in.block(then, a)}}}
	if body := in.block(other, b); len(body) == 1 && body[0].branches != nil {
		out.branches = append(out.branches, body[0].branches...)
	} else if len(body) > 0 {
		out.branches = append(out.branches, branch{sqlexpr.Bool(true), body})
	}
	maps.Copy(e.assigned, a.assigned)
	maps.Copy(e.assigned, b.assigned)
	return append([]statement{out}, in.block(rest, e)...)
}

func join(a, b []ast.Stmt) []ast.Stmt { return append(append([]ast.Stmt(nil), a...), b...) }

// assign writes an assignment. A call with several results is inlined.
func (in *inliner) assign(s *ast.AssignStmt, e env) (out []statement) {
	var names []string
	for _, l := range s.Lhs {
		id := l.(*ast.Ident)
		v, ok := in.object(id).(*types.Var)
		switch {
		case id.Name == "_" || !ok:
			in.fail(l, "a result that is not used")
		case in.defines(id):
			e.values[v] = sqlexpr.Op(in.declare(v))
		}
		names = append(names, e.values[v].String())
		e.assigned[e.values[v].String()] = true
	}
	if len(s.Rhs) < len(s.Lhs) {
		return in.inline(s.Rhs[0].(*ast.CallExpr), e, names)
	}
	for i, r := range s.Rhs {
		out = append(out, statement{to: names[i], value: in.expr(r, e)})
	}
	return out
}

// declare adds a local variable and returns its name. The variables of all
// inlined functions are declared together.
func (in *inliner) declare(v *types.Var) string {
	name := v.Name()
	for n := 2; slices.ContainsFunc(*in.locals, func(l local) bool { return l.name == name }); n++ {
		name = fmt.Sprintf("%s%d", v.Name(), n)
	}
	*in.locals = append(*in.locals, local{name, isBool(v)})
	return name
}

// defines reports whether an identifier is a declaration.
func (in *inliner) defines(id *ast.Ident) bool { return in.info.Defs[id] != nil }

// inline writes a call of a function with several results as statements.
func (in *inliner) inline(c *ast.CallExpr, e env, targets []string) []statement {
	f, _ := in.called(c)
	var args []sqlexpr.Expr
	for _, a := range c.Args {
		args = append(args, in.expr(a, e))
	}
	next := inliner{in.Package, f, targets, in.locals}
	inner := next.enter(args)
	inner.assigned = e.assigned
	return next.block(f.decl.Body.List, inner)
}

// results writes the assignments of a return, except for targets that are still
// zero.
func (in *inliner) results(s *ast.ReturnStmt, e env) (out []statement) {
	if len(s.Results) == 1 && len(in.f.Results) > 1 {
		return in.inline(s.Results[0].(*ast.CallExpr), e, in.targets)
	}
	for i, r := range s.Results {
		v := in.expr(r, e)
		text := v.String()
		if text == in.targets[i] || (text == "0" || text == "false") && !e.assigned[in.targets[i]] {
			continue
		}
		for _, before := range out {
			if before.to == text {
				in.fail(r, "%s has another value already", text)
			}
		}
		out = append(out, statement{to: in.targets[i], value: v})
	}
	return out
}

func (l *language) write(b *strings.Builder, list []statement, depth int) {
	pad := strings.Repeat("    ", depth)
	if l == lua {
		pad = strings.Repeat("  ", depth)
	}
	for _, s := range list {
		if s.branches == nil {
			l.writeAssign(b, pad, s)
			continue
		}
		word := l.is
		for i, br := range s.branches {
			if i > 0 && br.cond.String() == "true" {
				b.WriteString(pad + l.otherwise + "\n")
			} else {
				b.WriteString(pad + word + br.cond.Text(l.style) + l.then + "\n")
			}
			l.write(b, br.body, depth+1)
			word = l.elseIf
		}
		b.WriteString(pad + l.end + "\n")
	}
}

// writeAssign writes an assignment. In Lua, where math.max is a function call,
// the lesser or greater of two values is an assignment and an if.
func (l *language) writeAssign(b *strings.Builder, pad string, s statement) {
	if s.value.Text(l.style) == s.to {
		return
	}
	first, second, than, ok := s.value.Extreme()
	if l != lua || !ok || !second.Plain() || strings.Contains(second.String(), s.to) {
		fmt.Fprintf(b, pad+l.assign+"\n", s.to, s.value.Text(l.style))
		return
	}
	l.writeAssign(b, pad, statement{to: s.to, value: first})
	fmt.Fprintf(b, "%sif %s %s %s then\n%[1]s  %[2]s = %[4]s\n%[1]send\n", pad, s.to, than, second.Text(l.style))
}
