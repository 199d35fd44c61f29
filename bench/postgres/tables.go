package main

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/dipwell/dipwell/bench/internal/report"
)

// A target is the least ratio of dipwell's rate to a contender's, or of the contender's
// processor time to dipwell's.
type target struct {
	over  string
	ratio float64
	spent bool // compares processor time, not rates
}

// compare writes a table of contenders, in order, with dipwell's ratio to each.
// The targets are for the first of dipwell's contenders; processor time is
// compared with the last one's.
func (b *bench) compare(title string, fs map[string]*figures, order, ours []string, targets ...target) {
	fmt.Fprintf(&b.out, "### %s\n\n", title)
	head := []string{"", "decisions/s", "p50 µs", "p99 µs", "server µs", "client µs", "conflicts"}
	for _, o := range ours {
		head = append(head, o+" ÷ it")
	}
	last := ours[len(ours)-1]
	head = append(head, "its µs ÷ ours")
	var rows [][]string
	for _, name := range order {
		f := fs[name]
		row := []string{name, count(f.rate()), count(report.Median(f.p50)), count(report.Median(f.p99)),
			count(report.Median(f.server)), count(report.Median(f.client)), strconv.Itoa(f.conflicts)}
		for _, o := range ours {
			row = append(row, ratio(fs[o].rate()/f.rate(), o == name))
		}
		row = append(row, ratio(f.spent()/fs[last].spent(), last == name))
		rows = append(rows, append(row, b.verdict(name, fs[ours[0]], f, targets)...))
	}
	report.Table(&b.out, append(head, "target", "reached"), rows)
	for _, o := range ours {
		report.Spread(&b.out, o, ratios(fs, order, ours, o))
	}
}

// ratios returns the ratios of one of dipwell's contenders to those of others.
func ratios(fs map[string]*figures, order, ours []string, one string) (rs []report.Ratio) {
	for _, name := range order {
		if !slices.Contains(ours, name) {
			rs = append(rs, report.Ratio{Against: name, Value: fs[one].rate() / fs[name].rate()})
		}
	}
	return rs
}

func (b *bench) verdict(name string, ours, theirs *figures, targets []target) []string {
	for _, t := range targets {
		switch {
		case t.over != name:
		case t.spent:
			return []string{fmt.Sprintf("µs ≥ %g", t.ratio), b.reached(theirs.spent()/ours.spent() >= t.ratio)}
		default:
			return []string{fmt.Sprintf("≥ %g", t.ratio), b.reached(ours.rate()/theirs.rate() >= t.ratio)}
		}
	}
	return []string{"", ""}
}

// reach writes the target of a contender other than the first.
func (b *bench) reach(ours, theirs string, fs map[string]*figures, least float64) {
	r := fs[ours].rate() / fs[theirs].rate()
	fmt.Fprintf(&b.out, "%s: %.2f × %s; target ≥ %g: %s\n\n", ours, r, theirs, least, b.reached(r >= least))
}

// reached counts the targets and returns yes or no for one.
func (b *bench) reached(ok bool) string {
	b.targets++
	if !ok {
		b.missed++
	}
	return report.Verdict(ok)
}

func ratio(v float64, self bool) string {
	if self {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

// count formats a figure with a suitable number of digits.
func count(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func size(n float64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", n/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", n/(1<<20))
	}
	return fmt.Sprintf("%.0f KiB", n/(1<<10))
}
