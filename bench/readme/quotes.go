package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/bench/internal/report"
)

// A quote is a row of the table in bench/results/README.md: dipwell's worst and
// best ratio in some tables of one file. A higher ratio is better for dipwell.
type quote struct {
	readme   string // name in README.md; "": README.md does not have the quote
	what     string
	tables   string // logged or unlogged, for files that have both
	file     string
	sections []string // headings of the tables that the quote reads
	column   string   // heading of the column with ratios of rates
	spent    string   // heading of the column with ratios of processor time; "": there is none
	rows     []string // the rows that the quote reads; none: all but those in except
	except   []string
	against  string // what the column compares with, if the rows are dipwell's
}

// short removes from a heading what the row of the quote already says.
var short = strings.NewReplacer("On PostgreSQL, logged, ", "", "In memory, ", "", ", logged", "", ", unlogged", "", ", 4 connections", "")

func (q *quote) link() string { return strings.TrimSuffix(path.Base(q.file), ".md") }

// ratios reads a column of the quote's tables.
func (q *quote) ratios(r *results, column string) (rs []report.Ratio, err error) {
	for _, section := range q.sections {
		at := slices.IndexFunc(r.tables, func(t table) bool { return t.section == section && t.column(column) >= 0 })
		if at < 0 {
			return nil, fmt.Errorf("%s: no table %q with a column %q", q.file, section, column)
		}
		found := q.of(&r.tables[at], r.tables[at].column(column))
		if len(found) == 0 {
			return nil, fmt.Errorf("%s, %s: no ratio in %q", q.file, section, column)
		}
		rs = append(rs, found...)
	}
	return rs, nil
}

func (q *quote) of(t *table, column int) (rs []report.Ratio) {
	for _, row := range t.rows {
		v, ok := number(row[column])
		if !ok || slices.Contains(q.except, row[0]) || len(q.rows) > 0 && !slices.Contains(q.rows, row[0]) {
			continue
		}
		against := row[0]
		if q.against != "" {
			against = q.against
		}
		if len(q.sections) > 1 {
			against += " (" + short.Replace(q.unshared(t.section)) + ")"
		}
		rs = append(rs, report.Ratio{Against: against, Value: v})
	}
	return rs
}

// unshared removes the part of a heading after its last comma, if it is the
// same in all headings of the quote.
func (q *quote) unshared(section string) string {
	at := strings.LastIndex(section, ", ")
	for _, s := range q.sections {
		if at < 0 || !strings.HasSuffix(s, section[at:]) {
			return section
		}
	}
	return section[:at]
}
