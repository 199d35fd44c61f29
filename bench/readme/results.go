package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A table is a table of a results file, with its heading.
type table struct {
	section string
	head    []string
	rows    [][]string
}

// results has a file's tables, and the line that names their machine and date.
type results struct {
	name   string // under bench/results
	made   string
	tables []table
	lines  []string // lines outside of tables, where single targets are
}

func read(dir, name string) (*results, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &results{name: name}
	section, inTable := "", false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "#"):
			section = strings.TrimSpace(strings.TrimLeft(line, "#"))
		case strings.HasPrefix(line, "| ---"), strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "|") && inTable:
			last := &r.tables[len(r.tables)-1]
			last.rows = append(last.rows, cells(line))
		case strings.HasPrefix(line, "|"):
			r.tables = append(r.tables, table{section: section, head: cells(line)})
			inTable = true
			continue
		case r.made == "" && machine.MatchString(line):
			r.made = line
		default:
			r.lines = append(r.lines, line)
		}
		inTable = inTable && strings.HasPrefix(line, "|")
	}
	return r, nil
}

// cells returns the cells of a row, without surrounding spaces.
func cells(line string) (cs []string) {
	for c := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		cs = append(cs, strings.TrimSpace(c))
	}
	return cs
}

// column returns the index of a column by its name, or -1.
func (t *table) column(name string) int {
	for i, h := range t.head {
		if h == name {
			return i
		}
	}
	return -1
}

// number returns the first number in a table's cell.
func number(cell string) (float64, bool) {
	v, err := strconv.ParseFloat(strings.Trim(cell, " ×*"), 64)
	return v, err == nil
}

// anchor returns the URL fragment of a Markdown heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(heading) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_', c > 0x7f && c != '…' && c != '×' && c != '÷':
			b.WriteRune(c)
		case c == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}
