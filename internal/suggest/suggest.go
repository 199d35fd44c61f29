// Package suggest names what somebody who mistyped a name may have meant.
package suggest

// Name returns "; did you mean burst?" with the known name nearest to what was
// written, or nothing if none is within two edits.
func Name(wrote string, names []string) string {
	best, at := 3, ""
	for _, n := range names {
		if d := distance(wrote, n); d < best {
			best, at = d, n
		}
	}
	if at == "" {
		return ""
	}
	return "; did you mean " + at + "?"
}

// distance is Levenshtein's, for short words; longer ones are simply far.
func distance(a, b string) int {
	if len(a) > 40 || len(b) > 40 {
		return 99
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			swap := diagonal
			if a[i] != b[j] {
				swap++
			}
			diagonal = row[j+1]
			row[j+1] = min(swap, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
