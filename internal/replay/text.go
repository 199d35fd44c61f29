package replay

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// Write writes a summary for people, with times in UTC. JSON is written by encoding/json.
func (r *Report) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	r.head(out)
	for i := range r.Limits {
		r.Limits[i].write(out)
	}
	for i, n := range r.NotJudged {
		if i == 0 {
			fmt.Fprintln(out, "\nnot replayed:")
		}
		fmt.Fprintf(out, "  %s\n", n.Reason)
	}
	return out.Flush()
}

func (r *Report) head(w io.Writer) {
	fmt.Fprintf(w, "%s: %s in %s format, %s by %s", r.Log, count(r.Lines, "line"), r.Format, count(r.Requests, "request"), r.By)
	if r.Keys > 0 {
		fmt.Fprintf(w, ", %s", count(r.Keys, "key"))
	}
	if r.Requests > 0 {
		fmt.Fprintf(w, "\nfrom %s to %s (%v)", clockTime(*r.First), clockTime(*r.Last), time.Duration((*r.Last-*r.First)/1e6)*time.Second)
	}
	fmt.Fprintln(w)
	if r.Cost != "1" {
		fmt.Fprintf(w, "each costs %s\n", r.Cost)
	}
	if r.All {
		fmt.Fprintln(w, "all or nothing: a request is granted by every limit or charged by none")
	}
	if r.Disorder > 0 {
		fmt.Fprintf(w, "%s earlier than the one before; the log was sorted\n", are(r.Disorder, "line"))
	}
	if r.Forgotten > 0 {
		fmt.Fprintf(w, "%s forgotten while idle to bound memory; one that comes back is counted as new\n", are(r.Forgotten, "key"))
	}
	if r.Filtered > 0 || len(r.Where) > 0 {
		fmt.Fprintf(w, "%s left out: not %s\n", are(r.Filtered, "line"), strings.Join(r.Where, " and "))
	}
	if r.Malformed > 0 {
		fmt.Fprintf(w, "%s malformed and left out:\n", are(r.Malformed, "line"))
		for _, b := range r.BadLines {
			fmt.Fprintf(w, "  line %d: %s: %s\n", b.Line, b.Reason, b.Text)
		}
		if more := r.Malformed - int64(len(r.BadLines)); more > 0 {
			fmt.Fprintf(w, "  and %s more\n", thousands(more))
		}
	}
}

func (l *Limit) write(w io.Writer) {
	fmt.Fprintf(w, "\nlimit %s\n", l.Limit)
	if l.ParentOf != "" {
		fmt.Fprintf(w, "  asked with limit %s, as its parent\n", l.ParentOf)
	}
	if l.Warning != "" {
		fmt.Fprintf(w, "  warning: %s\n", l.Warning)
	}
	all := l.Granted + l.Refused + l.RefusedByOther
	fmt.Fprintf(w, "  %-16s %s\n", "granted", share(l.Granted, all))
	refused := "refused"
	if l.Shadow {
		refused = "would refuse"
	}
	fmt.Fprintf(w, "  %-16s %s\n", refused, share(l.Refused, all))
	if l.RefusedByOther > 0 {
		fmt.Fprintf(w, "  %-16s %s\n", "refused by other", share(l.RefusedByOther, all))
	}
	for _, p := range l.Plans {
		name := "plan " + p.Plan
		if p.Plan == "" {
			name = "without a plan"
		}
		if p.Granted+p.Refused > 0 {
			fmt.Fprintf(w, "  %-16s %s granted, %s refused\n", name, thousands(p.Granted), thousands(p.Refused))
		}
	}
	if l.Never > 0 {
		or := ""
		if len(l.Plans) > 1 {
			or = ", or are blocked by their plan"
		}
		fmt.Fprintf(w, "  %s cost more than the limit can ever hold%s\n", thousands(l.Never), or)
	}
	if l.GrantedCost != l.Granted || l.RefusedCost != l.Refused+l.RefusedByOther {
		fmt.Fprintf(w, "  %-16s %s granted, %s refused\n", "cost", thousands(l.GrantedCost), thousands(l.RefusedCost))
	}
	if l.Delayed > 0 {
		fmt.Fprintf(w, "  %-16s %s, by %s at most\n", "delayed", share(l.Delayed, all), wait(l.LongestDelay))
	}
	l.keys(w)
}

func (l *Limit) keys(w io.Writer) {
	if l.Refused == 0 {
		return
	}
	fmt.Fprintf(w, "  %-16s %s\n", "refusals", clockTime(*l.FirstRefusal)+" to "+clockTime(*l.LastRefusal))
	fmt.Fprintf(w, "  %-16s %s\n", "longest wait", wait(l.LongestWait))
	fmt.Fprintf(w, "  %-16s %s\n", "keys refused", thousands(l.KeysRefused))
	if l.Missed > 0 {
		fmt.Fprintf(w, "  a key below may have been refused up to %s times more\n", thousands(l.Missed))
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "refused\tgranted\trefused %\tlongest wait\tfirst refusal\tlast refusal\t  key")
	for _, k := range l.Worst {
		all := k.Granted + k.Refused + k.RefusedByOther
		fmt.Fprintf(t, "%s\t%s\t%.1f %%\t%s\t%s\t%s\t  %s\n", thousands(k.Refused), thousands(k.Granted),
			100*float64(k.Refused)/float64(all), wait(k.LongestWait), clockTime(k.FirstRefusal), clockTime(k.LastRefusal), shown(k.Key))
	}
	_ = t.Flush() // the writer out keeps the error
	if more := l.KeysRefused - int64(len(l.Worst)); more > 0 {
		fmt.Fprintf(w, "  and %s more\n", count(more, "key"))
	}
}

// shown returns a key for a table, cut, and quoted if it has control characters.
func shown(key string) string {
	if key == "" {
		return "(shared bucket)"
	}
	plain := strings.IndexFunc(key, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }) < 0
	if key = clip(key, 60); !plain {
		return strconv.Quote(key)
	}
	return key
}

func share(n, all int64) string {
	if all == 0 {
		return thousands(n)
	}
	return fmt.Sprintf("%s (%.2f %%)", thousands(n), 100*float64(n)/float64(all))
}

func clockTime(us int64) string {
	return strings.TrimSuffix(time.UnixMicro(us).UTC().Format("2006-01-02 15:04:05.000"), ".000")
}

// wait formats a time in whole seconds, ms or µs, rounded up.
func wait(us int64) string {
	d, unit := time.Duration(us)*time.Microsecond, time.Second
	switch {
	case us == 0:
		return "-"
	case d < time.Millisecond:
		unit = time.Microsecond
	case d < time.Second:
		unit = time.Millisecond
	}
	return ((d + unit - 1) / unit * unit).String()
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return thousands(n) + " " + what + "s"
}

func are(n int64, what string) string {
	if n == 1 {
		return "1 " + what + " is"
	}
	return thousands(n) + " " + what + "s are"
}

// thousands formats a number with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}
