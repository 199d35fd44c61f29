package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The figures in README.md are those of the tables in bench/results.
func TestFigures(t *testing.T) {
	root := filepath.Join("..", "..")
	readme, index, err := figures(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"README.md": readme, "bench/results/README.md": index} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s differs from the tables in bench/results, %v: run make figures", name, err)
		}
	}
}

func TestRatios(t *testing.T) {
	dir := t.TempDir()
	text := "# X\n\n2026-01-02, CPU, 2 cores (shared), go1. Made by `x`.\n\n## A\n\n| | a ÷ it | target | reached |\n| --- | --- | --- | --- |\n| ours |  |  |  |\n| one | 0.50 | ≥ 1 | **no** |\n| two | 2.00 |  |  |\n\n## B\n\n| | a ÷ it |\n| --- | --- |\n| three | 3.00 × |\n\n- y: 2 × Take; target ≥ 1: yes\n"
	if err := os.WriteFile(filepath.Join(dir, "x.md"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := read(dir, "x.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		q           quote
		worst, best string
	}{
		{quote{sections: []string{"A"}, column: "a ÷ it"}, "0.50 × one", "2.00 × two"},
		{quote{sections: []string{"A", "B"}, column: "a ÷ it", except: []string{"one"}}, "2.00 × two (A)", "3.00 × three (B)"},
		{quote{sections: []string{"A"}, column: "a ÷ it", rows: []string{"two"}, against: "rival"}, "2.00 × rival", ""},
	} {
		rs, err := c.q.ratios(r, c.q.column)
		if err != nil {
			t.Fatal(err)
		}
		if worst, best := ends(rs); worst != c.worst || best != c.best {
			t.Errorf("%+v: %q and %q", c.q, worst, best)
		}
	}
	if _, err := (&quote{sections: []string{"A"}}).ratios(r, "b"); err == nil {
		t.Error("a column that is not there is no error")
	}
	if yes, no := r.targets(); len(yes) != 1 || len(no) != 1 {
		t.Errorf("targets: %q and %q", yes, no)
	}
	if got := madeWhen([]*results{r}); got != "Measured 2026-01-02 on CPU, 2 cores (shared)." {
		t.Error(got)
	}
	if got := anchor("1 client, logged: (a) × 2.5"); got != "1-client-logged-a--25" {
		t.Error(got)
	}
}

// TestWorstIsQuoted checks that no table of a quoted file has a worse ratio than the
// quotes of its column: the index must not leave out where a rival wins.
func TestWorstIsQuoted(t *testing.T) {
	all, err := readAll(filepath.Join("..", "results"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		worst := map[string]float64{} // by column, of the quotes
		every := map[string]quote{}   // by column, the first quote, for all tables of the file
		for _, q := range quotes {
			if q.file != r.name {
				continue
			}
			rs, err := q.ratios(r, q.column)
			if err != nil {
				t.Fatal(err)
			}
			for _, ratio := range rs {
				if w, ok := worst[q.column]; !ok || ratio.Value < w {
					worst[q.column] = ratio.Value
				}
			}
			every[q.column] = q
		}
		for column, q := range every {
			for _, table := range r.tables {
				at := table.column(column)
				if at < 0 {
					continue
				}
				for _, ratio := range q.of(&table, at) {
					if ratio.Value < worst[column] {
						t.Errorf("%s, %s: %s is %v, worse than any quote", r.name, table.section, ratio.Against, ratio.Value)
					}
				}
			}
		}
	}
}
