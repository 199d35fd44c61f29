// Package suggest finds the known name that is nearest to a mistyped one.
package suggest

// Name returns "; did you mean NAME?" with the name in names that is nearest to
// wrote, or "" if none is within two edits.
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

// distance returns the Levenshtein distance, or 99 if a word is longer than 40 bytes.
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
