package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dipwell/dipwell/internal/server"
)

const longestKey = 100 // characters of a key that a report shows

func (r *topReport) write(w io.Writer, n int) {
	all := &r.all
	share := 0.0
	if all.decisions > 0 {
		share = 100 * all.refused / all.decisions
	}
	fmt.Fprintf(w, "decisions %s/s, refused %s/s (%.1f %%), store errors %s/s\n", rate(all.decisions), rate(all.refused), share, rate(r.errors))
	if r.Shed > 0 {
		fmt.Fprintf(w, "%s turned away since the start: too many were in flight\n", howMany(r.Shed, "call"))
	}
	t := table(w, "\nDECISIONS/S\tREFUSED/S\tSHADOW/S\tFALLBACK/S\t  LIMIT")
	for _, l := range r.byLimit[:min(len(r.byLimit), n)] {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t  %s\n", rate(l.decisions), rate(l.refused), rate(l.shadow), rate(l.fallback), plain(l.limit))
	}
	_ = t.Flush() // the writer keeps its error
	if more := len(r.byLimit) - n; more > 0 {
		fmt.Fprintf(w, "and %s\n", howMany(more, "more limit"))
	}
	if r.Process != "" {
		fmt.Fprintf(w, "\ncounted by %s alone\n", plain(r.Process))
	}
	within := (time.Duration(r.Window/1e6) * time.Second).String()
	writeLists(w, &r.TopLists, within)
}

func writeHour(w io.Writer, h *server.TopHour) {
	hour := h.Hour.Format(time.RFC3339)
	if len(h.Processes) == 0 {
		fmt.Fprintf(w, "nothing is kept of the hour %s\n", hour)
		return
	}
	fmt.Fprintf(w, "hour %s, %s: %s\n", hour, howMany(len(h.Processes), "service"), plain(strings.Join(h.Processes, ", ")))
	writeLists(w, &h.TopLists, "1h")
}

func writeLists(w io.Writer, l *server.TopLists, within string) {
	writeKeys(w, &l.Busiest, "BUSIEST KEYS, "+within)
	writeKeys(w, &l.Refused, "MOST REFUSED KEYS, "+within)
}

func writeKeys(w io.Writer, l *server.KeyList, title string) {
	t := table(w, "\nCOUNT\tERROR\tAT LEAST\tOF ALL\t  "+title)
	for _, k := range l.Keys {
		key := plain(cmp.Or(string(k.Key), "(shared)"))
		if r := []rune(key); len(r) > longestKey {
			key = string(r[:longestKey-1]) + "…"
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%.1f %%\t  %s %s\n", k.Count, k.Error, k.Count-k.Error, 100*float64(k.Count)/float64(max(l.Counted, 1)), plain(k.Limit), key)
	}
	_ = t.Flush() // the writer keeps its error
	if l.Unlisted > 0 {
		fmt.Fprintf(w, "each other key at most %d\n", l.Unlisted)
	}
}

// table begins a table of numbers whose last column is a name of any length.
func table(w io.Writer, head string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, head)
	return t
}

func rate(f float64) string {
	if f > 0 && f < 100 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 0, 64)
}

// plain quotes a text with control characters, because keys are chosen by clients.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.QuoteToGraphic(s)
	}
	return s
}
