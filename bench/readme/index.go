package main

import (
	"fmt"
	"strings"

	"github.com/dipwell/dipwell/bench/internal/report"
)

// indexOf lists the files with their targets and those not reached, and the
// table of all quotes.
func indexOf(all []*results, table string) string {
	var b strings.Builder
	b.WriteString("# Results\n\nWritten by `make figures` from the files here. \"Reached\" counts the rows that have a target.\n\n")
	var rows [][]string
	var missed []string
	for _, r := range all {
		yes, no := r.targets()
		reached := ""
		if n := len(yes) + len(no); n > 0 {
			reached = fmt.Sprintf("%d of %d", len(yes), n)
		}
		rows = append(rows, []string{"[" + strings.TrimSuffix(r.name, ".md") + "](" + r.name + ")", strings.TrimSuffix(strings.Split(r.made, " Made by")[0], "."), reached})
		for _, m := range no {
			missed = append(missed, "- "+strings.TrimSuffix(r.name, ".md")+": "+m)
		}
	}
	report.Table(&b, []string{"", "made", "reached"}, rows)
	b.WriteString("## Against others\n\nA ratio below 1 means that the other is faster, or takes less processor time. Each row has our worst and our best ratio in its tables, against everybody in them.\n" + table)
	if len(missed) > 0 {
		b.WriteString("## Not reached\n\n" + strings.Join(missed, "\n") + "\n")
	}
	return b.String()
}

// targets returns the table rows and lines that end in yes, and those that end in no.
func (r *results) targets() (yes, no []string) {
	add := func(verdict, what string) {
		switch verdict {
		case "yes":
			yes = append(yes, what)
		case "**no**":
			no = append(no, what)
		}
	}
	for _, t := range r.tables {
		for _, row := range t.rows {
			for i, c := range row {
				if c == "yes" || c == "**no**" {
					add(c, t.section+": "+row[0]+" ("+strings.Join(named(t.head[1:i], row[1:i]), ", ")+")")
				}
			}
		}
	}
	for _, line := range r.lines {
		if at := strings.LastIndex(line, ": "); at >= 0 {
			add(line[at+2:], strings.TrimPrefix(line[:at], "- "))
		}
	}
	return yes, no
}

// named returns the cells with the target and with ratios.
func named(head, row []string) (out []string) {
	for i, c := range row {
		if c != "" && (head[i] == "target" || strings.Contains(head[i], "÷") || strings.Contains(head[i], "×") || strings.HasPrefix(c, "≥") || strings.HasPrefix(c, "≤") || head[i] == "measured" || head[i] == "reached") {
			out = append(out, head[i]+" "+c)
		}
	}
	return out
}
