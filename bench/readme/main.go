// Command readme writes the figures of README.md and the index of bench/results
// from the tables in bench/results.
package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/bench/internal/report"
)

const (
	begin = "<!-- figures: written by `make figures` from bench/results -->\n"
	end   = "<!-- end of figures -->\n"
)

func main() {
	if err := run(".."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run writes both files under the repository's root.
func run(root string) error {
	readme, index, err := figures(root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "README.md"), []byte(readme), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "bench", "results", "README.md"), []byte(index), 0o644)
}

// figures returns README.md and the index as they should be.
func figures(root string) (readme, index string, err error) {
	dir := filepath.Join(root, "bench", "results")
	all, err := readAll(dir)
	if err != nil {
		return "", "", err
	}
	old, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		return "", "", err
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, found := strings.Cut(rest, end)
	if !ok || !found {
		return "", "", fmt.Errorf("README.md has no place for the figures: %q and %q", begin, end)
	}
	block, err := readmeTable(all)
	if err != nil {
		return "", "", err
	}
	table, err := quotesOf(all, quotes)
	return before + begin + block + end + after, indexOf(all, table), err
}

// plain maps the tables' names of rivals to names that a new reader knows.
var plain = strings.NewReplacer("(a) refill each second", "an UPDATE that refills each second", "(b) PL/pgSQL, SERIALIZABLE", "a PL/pgSQL function under SERIALIZABLE",
	"bare counter upsert", "a bare counter upsert", "GCRA map", "a map with GCRA", "ulule", "ulule/limiter", " on Redis", "")

// readmeTable returns the table of README.md, which has rates only.
func readmeTable(all []*results) (string, error) {
	var b strings.Builder
	b.WriteString("\n")
	var rows [][]string
	var used []*results
	for _, q := range quotes {
		if q.readme == "" {
			continue
		}
		r, err := q.in(all)
		if err != nil {
			return "", err
		}
		rs, err := q.ratios(r, q.column)
		if err != nil {
			return "", err
		}
		worst, best := ends(rs)
		rows = append(rows, []string{fmt.Sprintf("[%s](bench/results/%s#%s)", q.readme, q.file, anchor(q.sections[0])), plain.Replace(worst), plain.Replace(best)})
		if !slices.Contains(used, r) {
			used = append(used, r)
		}
	}
	report.Table(&b, []string{"", "at worst", "at best"}, rows)
	b.WriteString(madeWhen(used) + "\n\n")
	return b.String(), nil
}

// readAll reads every results file and returns them by name.
func readAll(dir string) ([]*results, error) {
	var names []string
	for _, pattern := range []string{"*.md", "*/*.md"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	var all []*results
	for _, path := range names {
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return nil, err
		}
		if name = filepath.ToSlash(name); name == "README.md" {
			continue
		}
		r, err := read(dir, name)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// quotesOf returns the table of bench/results/README.md.
func quotesOf(all []*results, quotes []quote) (string, error) {
	var b strings.Builder
	b.WriteString("\n")
	var rows [][]string
	var used []*results
	for _, q := range quotes {
		r, err := q.in(all)
		if err != nil {
			return "", err
		}
		row, err := q.row(r)
		if err != nil {
			return "", err
		}
		rows = append(rows, row)
		if !slices.Contains(used, r) {
			used = append(used, r)
		}
	}
	report.Table(&b, []string{"", "tables", "rate: worst", "best", "processor time: worst", "best", "all of it"}, rows)
	b.WriteString(madeWhen(used) + "\n\n")
	return b.String(), nil
}

// in returns the results file that has the quote's tables.
func (q *quote) in(all []*results) (*results, error) {
	i := slices.IndexFunc(all, func(r *results) bool { return r.name == q.file })
	if i < 0 {
		return nil, fmt.Errorf("no bench/results/%s", q.file)
	}
	return all[i], nil
}

func (q *quote) row(r *results) ([]string, error) {
	row := []string{q.what, q.tables}
	for _, column := range []string{q.column, q.spent} {
		if column == "" {
			row = append(row, "", "")
			continue
		}
		rs, err := q.ratios(r, column)
		if err != nil {
			return nil, err
		}
		worst, best := ends(rs)
		row = append(row, worst, best)
	}
	return append(row, fmt.Sprintf("[%s](%s#%s)", q.link(), q.file, anchor(q.sections[0]))), nil
}

func ends(rs []report.Ratio) (worst, best string) {
	byValue := func(a, b report.Ratio) int { return cmp.Compare(a.Value, b.Value) }
	text := func(r report.Ratio) string { return report.Figure(r.Value) + " × " + r.Against }
	worst, best = text(slices.MinFunc(rs, byValue)), text(slices.MaxFunc(rs, byValue))
	if len(rs) == 1 {
		best = ""
	}
	return worst, best
}

var machine = regexp.MustCompile(`^(\d{4}-\d\d-\d\d), (.*?), go`)

// madeWhen returns the machine and the day of the measurements in the files.
func madeWhen(used []*results) string {
	var order []string
	files := map[string][]string{}
	for _, r := range used {
		m := machine.FindStringSubmatch(r.made)
		when := "unknown"
		if m != nil {
			when = m[1] + " on " + m[2]
		}
		if files[when] == nil {
			order = append(order, when)
		}
		files[when] = append(files[when], strings.TrimSuffix(r.name, ".md"))
	}
	if len(order) == 1 {
		return "Measured " + order[0] + "."
	}
	var parts []string
	for _, when := range order {
		parts = append(parts, when+" ("+strings.Join(files[when], ", ")+")")
	}
	return "Measured " + strings.Join(parts, "; ") + "."
}
