package gen

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"strings"
)

// A Package is the functions of one file that are translated.
type Package struct {
	Funcs []*Func // in the order of the file

	fset *token.FileSet
	info *types.Info
	byID map[types.Object]*Func
}

// A Func is a function to be translated.
type Func struct {
	Name, Doc       string
	Params, Results []*types.Var

	decl *ast.FuncDecl
	of   *Package
}

// Load type-checks the package in a directory, and returns the functions of one
// of its files.
func Load(dir, file string) (*Package, error) {
	p := &Package{fset: token.NewFileSet(), byID: map[types.Object]*Func{}}
	parsed, err := parser.ParseDir(p.fset, dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, parser.ParseComments) //nolint:staticcheck // one package, without build constraints
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	var steps *ast.File
	for _, pkg := range parsed {
		for name, f := range pkg.Files {
			files = append(files, f)
			if strings.HasSuffix(name, file) {
				steps = f
			}
		}
	}
	if steps == nil {
		return nil, fmt.Errorf("%s has no file %s", dir, file)
	}
	return p, p.check(files, steps)
}

// check type-checks the file steps. Imports are not read: declarations that
// need them are not translated.
func (p *Package) check(files []*ast.File, steps *ast.File) error {
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	var failed error
	conf := types.Config{Importer: noImports{}, Error: func(err error) {
		var e types.Error
		if errors.As(err, &e) && p.fset.Position(e.Pos).Filename == p.fset.Position(steps.Pos()).Filename && failed == nil {
			failed = err
		}
	}}
	_, _ = conf.Check("step", p.fset, files, p.info) // errors in steps are kept
	if failed != nil {
		return failed
	}
	for _, d := range steps.Decls {
		decl, ok := d.(*ast.FuncDecl)
		if !ok || decl.Recv != nil {
			continue
		}
		obj := p.info.Defs[decl.Name]
		sig := obj.Type().(*types.Signature)
		f := &Func{Name: decl.Name.Name, Doc: strings.TrimSpace(decl.Doc.Text()), decl: decl, of: p}
		f.Params, f.Results = vars(sig.Params()), vars(sig.Results())
		if len(f.Results) > 1 && f.Results[0].Name() == "" {
			return fmt.Errorf("%s: the results of %s have no names", p.fset.Position(decl.Pos()), f.Name)
		}
		p.Funcs, p.byID[obj] = append(p.Funcs, f), f
	}
	return nil
}

type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	return nil, errors.New("not read: " + path)
}

func vars(t *types.Tuple) (list []*types.Var) {
	for v := range t.Variables() {
		list = append(list, v)
	}
	return list
}

// Func returns a function by name.
func (p *Package) Func(name string) (*Func, error) {
	for _, f := range p.Funcs {
		if f.Name == name {
			return f, nil
		}
	}
	return nil, fmt.Errorf("there is no function %s", name)
}

// primitives are the functions for which each language has its own syntax, with
// their number of parameters.
var primitives = map[string]int{"min": 2, "max": 2, "quo": 2, "quoUp": 2, "floorDiv": 2, "floorMod": 2, "mulCap": 3, "mulDiv": 4}

// failure wraps an error found deep inside a function.
type failure struct{ error }

func (p *Package) fail(at ast.Node, format string, args ...any) {
	panic(failure{fmt.Errorf("%s: %s", p.fset.Position(at.Pos()), fmt.Sprintf(format, args...))})
}

// caught turns a panic with a failure into an error.
func caught(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.error
	default:
		panic(r)
	}
}

// known returns the value of a constant expression.
func (p *Package) known(e ast.Expr) (n int64, isBool, ok bool) {
	tv := p.info.Types[e]
	if tv.Value == nil {
		return 0, false, false
	}
	switch tv.Value.Kind() {
	case constant.Bool:
		if constant.BoolVal(tv.Value) {
			n = 1
		}
		return n, true, true
	case constant.Int:
		if n, ok = constant.Int64Val(tv.Value); ok {
			return n, false, true
		}
	}
	p.fail(e, "%s is neither an int64 nor a bool", tv.Value)
	return 0, false, false
}

// called returns the function or primitive that a call calls. Both are zero for
// a conversion to int64, which changes nothing.
func (p *Package) called(c *ast.CallExpr) (f *Func, primitive string) {
	if p.info.Types[c.Fun].IsType() {
		if p.info.Types[c.Fun].Type != types.Typ[types.Int64] {
			p.fail(c, "a conversion to anything but int64")
		}
		return nil, ""
	}
	id, ok := c.Fun.(*ast.Ident)
	if !ok {
		p.fail(c, "a call of something that has no plain name")
	}
	if f = p.byID[p.info.Uses[id]]; f != nil {
		return f, ""
	}
	if n, ok := primitives[id.Name]; !ok || n != len(c.Args) {
		p.fail(c, "a call of %s with %d arguments", id.Name, len(c.Args))
	}
	return nil, id.Name
}

// object returns the object of an identifier.
func (p *Package) object(id *ast.Ident) types.Object {
	if o := p.info.Defs[id]; o != nil {
		return o
	}
	return p.info.Uses[id]
}

var operators = map[token.Token]string{
	token.ADD: "+", token.SUB: "-", token.MUL: "*", token.EQL: "=", token.NEQ: "<>", token.LSS: "<", token.LEQ: "<=",
	token.GTR: ">", token.GEQ: ">=", token.LAND: "and", token.LOR: "or", token.NOT: "not",
}

func (p *Package) operator(at ast.Node, t token.Token) string {
	op, ok := operators[t]
	if !ok {
		p.fail(at, "the operator %s; integers are divided by quo, quoUp, floorDiv and floorMod", t)
	}
	return op
}

// ifs turns a switch into a chain of ifs.
func (p *Package) ifs(s *ast.SwitchStmt) ast.Stmt {
	if s.Init != nil {
		p.fail(s, "a switch with a statement before its tag")
	}
	var first, last *ast.IfStmt
	var otherwise *ast.BlockStmt
	for _, c := range s.Body.List {
		clause := c.(*ast.CaseClause)
		body := &ast.BlockStmt{Lbrace: clause.Pos(), List: clause.Body}
		if clause.List == nil {
			otherwise = body
			continue
		}
		var cond ast.Expr
		for _, e := range clause.List {
			if s.Tag != nil {
				e = &ast.BinaryExpr{X: s.Tag, OpPos: e.Pos(), Op: token.EQL, Y: e}
			}
			if cond != nil {
				e = &ast.BinaryExpr{X: cond, OpPos: e.Pos(), Op: token.LOR, Y: e}
			}
			cond = e
		}
		next := &ast.IfStmt{If: clause.Pos(), Cond: cond, Body: body}
		if first == nil {
			first = next
		} else {
			last.Else = next
		}
		last = next
	}
	switch {
	case first == nil:
		p.fail(s, "a switch without cases")
	case otherwise != nil:
		last.Else = otherwise
	}
	return first
}

// elseOf returns the statements of the else branch of an if.
func elseOf(s *ast.IfStmt) []ast.Stmt {
	switch e := s.Else.(type) {
	case nil:
		return nil
	case *ast.BlockStmt:
		return e.List
	default:
		return []ast.Stmt{e}
	}
}

// returns reports whether statements contain a return, and whether they always
// end in one.
func (p *Package) returns(list []ast.Stmt) (some, always bool) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ReturnStmt:
			return true, true
		case *ast.SwitchStmt:
			a, b := p.returns([]ast.Stmt{p.ifs(s)})
			some, always = some || a, always || b
		case *ast.IfStmt:
			a, thenAll := p.returns(s.Body.List)
			b, elseAll := p.returns(elseOf(s))
			some, always = some || a || b, always || thenAll && elseAll
		}
	}
	return some, always
}

func isBool(v *types.Var) bool { return v.Type() == types.Typ[types.Bool] }
