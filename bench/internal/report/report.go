// Package report writes benchmark tables with the machine and the date they were made on.
package report

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Median of the figures; their order does not matter.
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

// Header writes what a reader needs to judge the figures.
func Header(w io.Writer, title, command string) {
	fmt.Fprintf(w, "# %s\n\n", title)
	fmt.Fprintf(w, "%s, %s, %d cores (shared), %s, commit %s. Made by `%s`.\n\n",
		time.Now().UTC().Format("2006-01-02"), cpu(), runtime.NumCPU(), runtime.Version(), commit(), command)
	fmt.Fprint(w, "Contenders take turns in one run; each figure is the median of its rounds. Ratios travel between machines, absolute figures do not.\n\n")
}

// Table writes rows under a head, in Markdown.
func Table(w io.Writer, head []string, rows [][]string) {
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat(" --- |", len(head)))
	for _, r := range rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(r, " | "))
	}
	fmt.Fprintln(w)
}

// Verdict says whether a figure reaches its target.
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

func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
