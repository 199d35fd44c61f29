// Package report writes benchmark tables with the machine and the date of the measurement.
package report

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Median returns the median of v, in any order.
func Median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	if len(v) == 0 {
		return 0
	}
	if len(v)%2 == 0 {
		return (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return v[len(v)/2]
}

// Header writes the title, the command, the machine and the date.
func Header(w io.Writer, title, command string) {
	fmt.Fprintf(w, "# %s\n\n", title)
	fmt.Fprintf(w, "%s, %s, %d cores (shared), %s, commit %s. Made by `%s`.\n\n",
		time.Now().UTC().Format("2006-01-02"), cpu(), runtime.NumCPU(), runtime.Version(), commit(), command)
	fmt.Fprint(w, "Contenders take turns in one run; each figure is the median of its rounds. Ratios travel between machines, absolute figures do not.\n\n")
}

// Goroutines returns a number of goroutines for a title.
func Goroutines(n int) string {
	if n == 1 {
		return "1 goroutine"
	}
	return fmt.Sprint(n, " goroutines")
}

// Table writes rows under a head, in Markdown.
func Table(w io.Writer, head []string, rows [][]string) {
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat(" --- |", len(head)))
	for _, r := range rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(r, " | "))
	}
	fmt.Fprintln(w)
}

// A Ratio is dipwell's figure divided by a contender's.
type Ratio struct {
	Against string
	Value   float64
}

// Spread writes the worst and the best ratio in a table where a higher ratio
// is better for dipwell.
func Spread(w io.Writer, ours string, ratios []Ratio) {
	if len(ratios) == 0 {
		return
	}
	byValue := func(a, b Ratio) int { return cmp.Compare(a.Value, b.Value) }
	worst, best := slices.MinFunc(ratios, byValue), slices.MaxFunc(ratios, byValue)
	fmt.Fprintf(w, "%s: worst %s × %s, best %s × %s.\n\n", ours, Figure(worst.Value), worst.Against, Figure(best.Value), best.Against)
}

// Figure formats a ratio with a suitable number of digits.
func Figure(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// Verdict returns "yes", or "**no**" if a target is missed.
func Verdict(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

func cpu() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

// commit returns the short hash of the measured commit. Changed result files do
// not mark the commit as modified.
func commit() string {
	hash, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	changed, err := exec.Command("git", "status", "--porcelain", "--", ":/", ":(top,exclude)bench/results").Output()
	if err != nil || len(changed) > 0 {
		return strings.TrimSpace(string(hash)) + " with changes"
	}
	return strings.TrimSpace(string(hash))
}
