// Package sqlexpr builds SQL expressions of integers and booleans. Constants
// are folded: a multiplication by 1 is dropped, a CASE with a constant
// condition becomes its branch. Parentheses are written only where needed.
package sqlexpr

import (
	"math"
	"strconv"
	"strings"
)

// An Expr is an SQL expression. The operands of the functions of this package
// must not be null.
type Expr struct {
	op   string // "": text; "int", "bool": n; "case": condition, value, …, value; "call": text; "floor", "ceil": a quotient; otherwise an operator
	text string
	n    int64
	args []Expr
}

// Operator precedence.
const (
	loose = iota
	orLevel
	andLevel
	notLevel
	compareLevel
	addLevel
	mulLevel
	atom
)

var levels = map[string]int{
	"or": orLevel, "and": andLevel, "not": notLevel, "=": compareLevel, "<>": compareLevel, "<": compareLevel, "<=": compareLevel,
	">": compareLevel, ">=": compareLevel, "+": addLevel, "-": addLevel, "*": mulLevel, "/": mulLevel, "%": mulLevel,
	"floor": mulLevel, "ceil": mulLevel,
}

// Op returns an operand in SQL, such as a column or a parameter. If it is more
// than one word or call, it is put in parentheses next to an operator.
func Op(text string) Expr { return Expr{text: text} }

// Int returns a number.
func Int(n int64) Expr { return Expr{op: "int", n: n} }

// Bool returns a boolean.
func Bool(b bool) Expr {
	if b {
		return Expr{op: "bool", n: 1}
	}
	return Expr{op: "bool"}
}

// Unbounded is an operand that Min never returns.
var Unbounded = Int(math.MaxInt64)

func (e Expr) is(n int64) bool { return e.op == "int" && e.n == n }
func (e Expr) yes() bool       { return e.op == "bool" && e.n == 1 }
func (e Expr) no() bool        { return e.op == "bool" && e.n == 0 }

func known(a, b Expr) bool { return a.op == "int" && b.op == "int" }

// Add returns a + b.
func Add(a, b Expr) Expr {
	switch {
	case known(a, b):
		return Int(a.n + b.n)
	case a.op == "int":
		a, b = b, a
	}
	if b.op != "int" {
		return Expr{op: "+", args: []Expr{a, b}}
	}
	if (a.op == "+" || a.op == "-") && a.args[1].op == "int" { // x + 3 + 4
		n := a.args[1].n
		if a.op == "-" {
			n = -n
		}
		return Add(a.args[0], Int(n+b.n))
	}
	switch {
	case b.n == 0:
		return a
	case b.n < 0:
		return Expr{op: "-", args: []Expr{a, Int(-b.n)}}
	}
	return Expr{op: "+", args: []Expr{a, b}}
}

// Sub returns a - b.
func Sub(a, b Expr) Expr {
	if b.op == "int" {
		return Add(a, Int(-b.n))
	}
	return Expr{op: "-", args: []Expr{a, b}}
}

// Mul returns a * b.
func Mul(a, b Expr) Expr {
	switch {
	case known(a, b):
		return Int(a.n * b.n)
	case a.op == "int":
		a, b = b, a
	}
	switch {
	case b.is(0):
		return b
	case b.is(1):
		return a
	}
	return Expr{op: "*", args: []Expr{a, b}}
}

// Quo returns a / b, for numbers that are not negative.
func Quo(a, b Expr) Expr { return divide("/", a, b) }

// QuoUp returns a / b rounded up, for numbers that are not negative.
func QuoUp(a, b Expr) Expr {
	if known(a, b) && b.n > 0 && a.n >= 0 {
		return Int((a.n + b.n - 1) / b.n)
	}
	return divide("ceil", a, b)
}

// up is QuoUp in SQL, which only rounds down.
func up(a, b Expr) Expr { return Quo(Sub(Add(a, b), Int(1)), b) }

// FloorDiv returns a / b rounded down. As a plain expression it needs an a that
// is not negative; see Floor.
func FloorDiv(a, b Expr) Expr { return divide("floor", a, b) }

// FloorMod returns the remainder of FloorDiv, for an a that is not negative.
func FloorMod(a, b Expr) Expr {
	if b.is(1) {
		return Int(0)
	}
	return Expr{op: "%", args: []Expr{a, b}}
}

func divide(op string, a, b Expr) Expr {
	switch {
	case b.is(1):
		return a
	case known(a, b) && a.n >= 0 && b.n > 0:
		return Int(a.n / b.n)
	}
	return Expr{op: op, args: []Expr{a, b}}
}

// MulCap returns the lesser of a * b and most, for numbers that are not
// negative.
func MulCap(a, b, most Expr) Expr {
	if b.is(1) {
		return a // at most most
	}
	return Cond(Gt(a, Quo(most, b)), most, Mul(a, b))
}

// MulDiv returns a * b / c, for numbers that are not negative, rounded up or
// down.
func MulDiv(a, b, c, up Expr) Expr { return call("dipwell_internal.mul_div", a, b, c, up) }

// Call returns a call of a database function.
func call(name string, args ...Expr) Expr { return Expr{op: "call", text: name, args: args} }

// Min returns the lesser of a and b.
func Min(a, b Expr) Expr {
	switch {
	case known(a, b):
		return Int(min(a.n, b.n))
	case a.is(Unbounded.n):
		return b
	case b.is(Unbounded.n):
		return a
	}
	return call("least", a, b)
}

// Max returns the greater of a and b.
func Max(a, b Expr) Expr {
	if known(a, b) {
		return Int(max(a.n, b.n))
	}
	return call("greatest", a, b)
}

// Extreme returns the operands of Min and Max, and the comparison that selects
// the second.
func (e Expr) Extreme() (first, second Expr, than string, ok bool) {
	switch {
	case e.op != "call" || len(e.args) != 2:
		return Expr{}, Expr{}, "", false
	case e.text == "least":
		return e.args[0], e.args[1], ">", true
	}
	return e.args[0], e.args[1], "<", e.text == "greatest"
}

// Plain reports whether an expression is a number or an operand.
func (e Expr) Plain() bool { return e.op == "int" || e.op == "" }

// Eq returns a = b.
func Eq(a, b Expr) Expr { return compare("=", a, b, a.n == b.n) }
func Ne(a, b Expr) Expr { return compare("<>", a, b, a.n != b.n) }
func Lt(a, b Expr) Expr { return compare("<", a, b, a.n < b.n) }
func Le(a, b Expr) Expr { return compare("<=", a, b, a.n <= b.n) }
func Gt(a, b Expr) Expr { return compare(">", a, b, a.n > b.n) }
func Ge(a, b Expr) Expr { return compare(">=", a, b, a.n >= b.n) }

func compare(op string, a, b Expr, truth bool) Expr {
	if known(a, b) {
		return Bool(truth)
	}
	return Expr{op: op, args: []Expr{a, b}}
}

// And returns a and b.
func And(a, b Expr) Expr {
	switch {
	case a.yes(), b.no():
		return b
	case b.yes(), a.no():
		return a
	}
	return Expr{op: "and", args: []Expr{a, b}}
}

// Or returns a or b.
func Or(a, b Expr) Expr {
	switch {
	case a.no(), b.yes():
		return b
	case b.no(), a.yes():
		return a
	}
	return Expr{op: "or", args: []Expr{a, b}}
}

var opposite = map[string]string{"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}

// Not returns not a.
func Not(a Expr) Expr {
	switch {
	case a.op == "bool":
		return Bool(a.n == 0)
	case a.op == "not":
		return a.args[0]
	case opposite[a.op] != "":
		return Expr{op: opposite[a.op], args: a.args}
	}
	return Expr{op: "not", args: []Expr{a}}
}

// Cond returns a if c is true, otherwise b.
func Cond(c, a, b Expr) Expr {
	switch {
	case c.yes(), a.String() == b.String():
		return a
	case c.no():
		return b
	case a.yes():
		return Or(c, b)
	case a.no():
		return And(Not(c), b)
	case b.yes():
		return Or(Not(c), a)
	case b.no():
		return And(c, a)
	}
	if b.op == "case" {
		return Expr{op: "case", args: append([]Expr{c, a}, b.args...)}
	}
	return Expr{op: "case", args: []Expr{c, a, b}}
}

// A Style has the syntax in which engines and languages differ.
type Style struct {
	Divide   string // operator of integer division; "" means /
	FloorDiv string // function that rounds down a negative a; "": a is never negative
	Lua      bool   // Lua instead of SQL: floor, ceil, min and max are those of math
}

// String returns the expression for PostgreSQL.
func (e Expr) String() string { return e.Text(Style{}) }

// Floor is String for a time that may be before the origin.
func (e Expr) Floor() string { return e.Text(Style{FloorDiv: "dipwell_internal.floor_div"}) }

// Text returns the expression in a style.
func (e Expr) Text(s Style) string {
	w := writer{Style: s}
	w.write(e)
	return w.String()
}

type writer struct {
	strings.Builder
	Style
}

// level returns the precedence of an expression as it is written.
func (w *writer) level(e Expr) int {
	switch {
	case e.op == "" && single(e.text):
		return atom
	case e.op == "":
		return loose
	case e.op == "int" && e.n < 0:
		return notLevel // in parentheses next to any operator
	case w.Lua && (e.op == "/" || e.op == "floor" || e.op == "ceil"), e.op == "floor" && w.FloorDiv != "":
		return atom // a call
	}
	if l, ok := levels[e.op]; ok {
		return l
	}
	return atom
}

var inLua = map[string]string{"=": "==", "<>": "~=", "least": "min", "greatest": "max"}

// word returns an operator or a function name in the style.
func (w *writer) word(s string) string {
	if l, ok := inLua[s]; ok && w.Lua {
		return l
	}
	return s
}

func (w *writer) write(e Expr) {
	switch e.op {
	case "":
		w.WriteString(e.text)
	case "int":
		w.WriteString(strconv.FormatInt(e.n, 10))
	case "bool":
		w.WriteString(strconv.FormatBool(e.n == 1))
	case "call":
		w.writeCall(e)
	case "case":
		w.writeCase(e)
	case "not":
		w.WriteString("not ")
		w.operand(e.args[0], atom)
	case "/", "floor", "ceil":
		w.writeQuotient(e)
	default:
		w.writeOperator(e, w.word(e.op))
	}
}

func (w *writer) writeOperator(e Expr, op string) {
	level := levels[e.op]
	left, right := level, level+1
	switch {
	case level == compareLevel:
		left++ // comparisons do not associate
	case op == "and", op == "or", op == "+":
		right = level
	}
	w.operand(e.args[0], left)
	w.WriteString(" " + op + " ")
	w.operand(e.args[1], right)
}

func (w *writer) writeQuotient(e Expr) {
	name := map[string]string{"/": "floor", "floor": "floor", "ceil": "ceil"}[e.op]
	switch {
	case w.Lua:
		w.WriteString(name + "(")
		w.writeOperator(Expr{op: "/", args: e.args}, "/")
		w.WriteByte(')')
	case e.op == "ceil":
		w.write(up(e.args[0], e.args[1]))
	case e.op == "floor" && w.FloorDiv != "":
		w.writeCall(call(w.FloorDiv, e.args...))
	case w.Divide != "":
		w.writeOperator(e, w.Divide)
	default:
		w.writeOperator(e, "/")
	}
}

// operand writes an operand, in parentheses if its precedence is below least.
func (w *writer) operand(e Expr, least int) {
	if w.level(e) >= least {
		w.write(e)
		return
	}
	w.WriteByte('(')
	w.write(e)
	w.WriteByte(')')
}

func (w *writer) writeCall(e Expr) {
	w.WriteString(w.word(e.text) + "(")
	for i, a := range e.args {
		if i > 0 {
			w.WriteString(", ")
		}
		w.write(a)
	}
	w.WriteByte(')')
}

func (w *writer) writeCase(e Expr) {
	last := len(e.args) - 1
	if w.Lua {
		w.writeAndOr(e.args)
		return
	}
	w.WriteString("case")
	for i := 0; i < last; i += 2 {
		w.WriteString(" when ")
		w.write(e.args[i])
		w.WriteString(" then ")
		w.write(e.args[i+1])
	}
	w.WriteString(" else ")
	w.write(e.args[last])
	w.WriteString(" end")
}

// writeAndOr writes a CASE in Lua: c and a or b, where a is a number, which is
// always true.
func (w *writer) writeAndOr(args []Expr) {
	if len(args) == 1 {
		w.operand(args[0], compareLevel)
		return
	}
	c, a := args[0], args[1]
	w.WriteByte('(')
	w.operand(c, compareLevel)
	w.WriteString(" and ")
	w.operand(a, compareLevel)
	w.WriteString(" or ")
	if a.truth() {
		w.operand(Not(c), compareLevel)
		w.WriteString(" and ")
	}
	w.writeAndOr(args[2:])
	w.WriteByte(')')
}

// truth reports whether an expression is known to be a boolean.
func (e Expr) truth() bool {
	switch e.op {
	case "bool", "and", "or", "not":
		return true
	case "case":
		return e.args[1].truth()
	}
	return levels[e.op] == compareLevel
}

// single reports whether SQL parses text as one operand: a word, a parameter, a
// call, a CASE or something in parentheses, perhaps with a cast.
func single(text string) bool {
	if strings.HasPrefix(text, "case ") && strings.HasSuffix(text, " end") {
		return true
	}
	depth, closed := 0, false
	for i := range len(text) {
		c := text[i]
		switch {
		case c == '(' || c == '[':
			if closed && c == '(' {
				return false
			}
			depth++
		case c == ')' || c == ']':
			depth--
			closed = depth == 0
		case depth > 0 || c == '.' || c == ':' || c == '_' || c == '$' || c == '"':
		case c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z':
		default:
			return false
		}
	}
	return depth == 0 && text != ""
}
