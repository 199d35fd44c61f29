package gen

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/sqlexpr"
)

// load loads functions from the text of a test.
func load(t *testing.T, text string) (*Package, error) {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"step.go": "package p\n" + text,
		"rest.go": "package p\n\nimport \"unknown/thing\"\n\ntype Verb uint8\n\nconst (\n\tTake Verb = iota\n\tCheck\n)\n\nfunc quo(a, b int64) int64 { return thing.Quo(a, b) }\nfunc quoUp(a, b int64) int64 { return 0 }\nfunc floorDiv(a, b int64) int64 { return 0 }\nfunc floorMod(a, b int64) int64 { return 0 }\nfunc mulCap(a, b, c int64) int64 { return 0 }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(dir, "step.go")
}

// TestConstructs checks each construct, as an SQL expression and as PL/pgSQL
// and Lua statements.
func TestConstructs(t *testing.T) {
	for name, c := range map[string]struct {
		text         string
		args         []any
		sql, pl, lua string
	}{
		"arithmetic": {"func f(a, b int64) int64 { return a*b - (a + b) - (a - b) }", []any{"x", "y"},
			"x * y - (x + y) - (x - y)", "r := x * y - (x + y) - (x - y);", "r = x * y - (x + y) - (x - y)"},
		"constants are folded": {"func f(a, b int64) int64 { return (a+2-b)*b + 3*int64(Check) }", []any{"x", 1},
			"x + 4", "r := x + 4;", "r = x + 4"},
		"a negative number": {"func f(a, b int64) int64 { return (a - b) * -a }", []any{"x", -5},
			"(x + 5) * (0 - x)", "r := (x + 5) * (0 - x);", "r = (x + 5) * (0 - x)"},
		"quotients": {"func f(a, b int64) int64 { return quo(a, b) + quoUp(a, b) + floorDiv(a, b)*floorMod(a, b) }", []any{"x", "y"},
			"x / y + (x + y - 1) / y + x / y * (x % y)", "r := x / y + (x + y - 1) / y + x / y * (x % y);", "r = floor(x / y) + ceil(x / y) + floor(x / y) * (x % y)"},
		"quotients by one": {"func f(a, b int64) int64 { return quo(a, b) + quoUp(a, b) + floorDiv(a, b) }", []any{"x", 1},
			"x + x + x", "r := x + x + x;", "r = x + x + x"},
		"min and max": {"func f(a, b int64) int64 { return max(min(a, b), 0) }", []any{"x", "y + z"},
			"greatest(least(x, y + z), 0)", "r := greatest(least(x, y + z), 0);", "r = x\nif r > y + z then\n  r = y + z\nend\nif r < 0 then\n  r = 0\nend"},
		"a bounded product": {"func f(a, b int64) int64 { return mulCap(a, b, 99) }", []any{"x", "y"},
			"case when x > 99 / y then 99 else x * y end", "r := case when x > 99 / y then 99 else x * y end;", "r = (x > floor(99 / y) and 99 or x * y)"},
		"if": {"func f(a, b int64) int64 {\n\tif a == b {\n\t\treturn 1\n\t} else if a != 2 {\n\t\treturn b\n\t}\n\treturn a\n}", []any{"x", "y"},
			"case when x = y then 1 when x <> 2 then y else x end",
			"if x = y then\n    r := 1;\nelsif x <> 2 then\n    r := y;\nelse\n    r := x;\nend if;",
			"if x == y then\n  r = 1\nelseif x ~= 2 then\n  r = y\nelse\n  r = x\nend"},
		"a condition that is known": {"func f(a, b int64) int64 {\n\tif b == 1 {\n\t\treturn a\n\t}\n\treturn b\n}", []any{"x", 1}, "x", "r := x;", "r = x"},
		"truth": {"func f(a, b int64) bool { return !(a < b || a > 5) && (a >= b || !(a <= 7)) }", []any{"x", "y"},
			"not (x < y or x > 5) and (x >= y or x > 7)", "r := not (x < y or x > 5) and (x >= y or x > 7);", "r = not (x < y or x > 5) and (x >= y or x > 7)"},
		"a condition of truth values": {"func f(a, b int64) bool {\n\tif a == 0 {\n\t\treturn b < 1\n\t}\n\treturn b < 2\n}", []any{"x", "y"},
			"case when x = 0 then y < 1 else y < 2 end", "if x = 0 then\n    r := y < 1;\nelse\n    r := y < 2;\nend if;", "if x == 0 then\n  r = y < 1\nelse\n  r = y < 2\nend"},
		"switch": {"func f(a, b int64) int64 {\n\tswitch a {\n\tcase 1, 2:\n\t\treturn b\n\tdefault:\n\t\treturn 0\n\t}\n}", []any{"x", "y"},
			"case when x = 1 or x = 2 then y else 0 end", "if x = 1 or x = 2 then\n    r := y;\nelse\n    r := 0;\nend if;", "if x == 1 or x == 2 then\n  r = y\nelse\n  r = 0\nend"},
		"variables": {"func f(a, b int64) int64 {\n\tc := a\n\tif b > 0 {\n\t\tc = a + b\n\t}\n\treturn c * 2\n}", []any{"x", "y"},
			"case when y > 0 then x + y else x end * 2",
			"declare\n    c bigint;\nbegin\n    c := x;\n    if y > 0 then\n        c := x + y;\n    end if;\n    r := c * 2;\nend;",
			"local c\nc = x\nif y > 0 then\n  c = x + y\nend\nr = c * 2"},
		"calls": {"func f(a, b int64) int64 { return g(b, a) }\nfunc g(a, b int64) int64 { return a - b }", []any{"x", "y"}, "y - x", "r := y - x;", "r = y - x"},
		"an operand of several words": {"func f(a, b int64) int64 { return a * b }", []any{"x + 1", "case when p then 1 else 2 end"},
			"(x + 1) * case when p then 1 else 2 end", "r := (x + 1) * case when p then 1 else 2 end;", "r = (x + 1) * case when p then 1 else 2 end"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := load(t, c.text)
			if err != nil {
				t.Fatal(err)
			}
			f, err := p.Func("f")
			if err != nil {
				t.Fatal(err)
			}
			args, err := asOperands(c.args)
			if err != nil {
				t.Fatal(err)
			}
			exprs, err := f.SQL(args...)
			if err != nil || exprs[0].String() != c.sql {
				t.Errorf("SQL: %v, %v", exprs, err)
			}
			for l, want := range map[*language]string{plpgsql: c.pl, lua: c.lua} {
				if got, err := p.inline(l, 0, "f", append(c.args, "r")); err != nil || got != want {
					t.Errorf("%q, %v; want %q", got, err, want)
				}
			}
		})
	}
}

// TestSeveralResults checks functions with several results, unnamed and named.
func TestSeveralResults(t *testing.T) {
	p, err := load(t, `
func f(a int64) (ok bool, n int64) {
	if a > 9 {
		return g(a, 1)
	}
	_, n = g(a, 2)
	return true, n
}

func g(a, b int64) (ok bool, n int64) { return a == b, a + b }
`)
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Func("f")
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.SQL(sqlexpr.Op("x"))
	if err != nil || out[0].String() != "x <= 9 or x = 1" || out[1].String() != "case when x > 9 then x + 1 else x + 2 end" {
		t.Errorf("%v, %v", out, err)
	}
	text, err := p.Go()
	if err != nil || !strings.Contains(string(text), "func F(a Expr) (ok, n Expr)") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestRefused checks that an unsupported construct is an error with its
// position.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"func f(a int64) int64 { return a / 2 }":                                           "step.go:2:32: the operator /; integers are divided by quo",
		"func f(a int64) int64 { return a % 2 }":                                           "the operator %",
		"func f(a int64) int64 {\n\tfor a < 3 {\n\t}\n\treturn a\n}":                       "step.go:3:2: a statement that is no assignment, if, switch or return",
		"func f(a int64) int64 { a += 2; return a }":                                       "the assignment +=",
		"var v int64\nfunc f(a int64) int64 { return a + v }":                              "v is no variable of the function",
		"func f(a int64) int64 {\n\tif b := a; b > 1 {\n\t\treturn 1\n\t}\n\treturn 2\n}":  "an if with a statement before its condition",
		"func f(a int64) int64 { return int64(int32(a)) }":                                 "a conversion to anything but int64",
		"func f(a int64) int64 { return h(a) }\nvar h func(int64) int64":                   "a call of h with 1 arguments",
		"func f(a int64) int64 { return [2]int64{a, 1}[0] }":                               "an expression that cannot be translated",
		"func f(a int64) (int64, int64) { return a, a }":                                   "step.go:2:1: the results of f have no names",
		"func f(a int64) int64 { return b }":                                               "undefined: b",
		"func f(a int64) int64 {\n\tswitch b := a; b {\n\tcase 1:\n\t}\n\treturn 0\n}":     "a switch with a statement before its tag",
		"func f(a int64) (n int64) {\n\tif a > 1 {\n\t\treturn 1\n\t}\n\tpanic(\"no\")\n}": "a statement that is no assignment",
	} {
		p, err := load(t, text)
		if err == nil {
			_, err = p.Go()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestStyles checks the division of each engine and language.
func TestStyles(t *testing.T) {
	e := sqlexpr.Add(sqlexpr.Quo(sqlexpr.Op("a"), sqlexpr.Op("b")), sqlexpr.FloorDiv(sqlexpr.Op("c"), sqlexpr.Op("d")))
	for want, s := range map[string]sqlexpr.Style{
		"a / b + c / d":   {},
		"a // b + c // d": {Divide: "//"},
		"a / b + dipwell_internal.floor_div(c, d)": {FloorDiv: "dipwell_internal.floor_div"},
		"floor(a / b) + floor(c / d)":              {Lua: true},
	} {
		if got := e.Text(s); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

// TestTemplates checks that a template that uses an unknown name is an error.
func TestTemplates(t *testing.T) {
	p, err := load(t, "func f(a, b int64) (n, m int64) { return a, b }")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{{(f "x" 2).m}} {{f "x"}}`: "f has 2 parameters",
		`{{(f "x" 2).o}}`:           "map has no entry for key",
		`{{g 1}}`:                   `function "g" not defined`,
		`{{statements 2 "f" 1}}`:    "f has 2 parameters and 2 results",
		`{{f 1.5 2}}`:               "1.5 is no operand",
	} {
		dir := t.TempDir()
		if err := write(filepath.Join(dir, "templates", "x.sql"), []byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := render(dir, p.funcs(plpgsql)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
