package texts

import (
	"slices"
	"strings"
)

// elsewhere has names that other programs give to settings of a limit.
var elsewhere = map[string]string{
	"period": "per", "window": "per", "interval": "per", "every": "per", "duration": "per", "unit": "per",
	"limit": "rate", "requests": "rate", "max": "rate", "count": "rate", "capacity": "burst", "size": "burst",
}

// Nearest returns "; did you mean NAME?" with the name in names that is nearest to
// wrote, or "" if none is within two edits. Capitals count as small letters, and "-" and
// spaces as "_".
func Nearest(wrote string, names []string) string {
	wrote = strings.NewReplacer("-", "_", " ", "_").Replace(strings.ToLower(wrote))
	if name, ok := elsewhere[wrote]; ok && slices.Contains(names, name) {
		return "; did you mean " + name + "?"
	}
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

// Unknown returns why set knows no setting of a name, or "". set is a method such as
// Limit.Set of a value that is then thrown away. Unknown reports an unknown name whatever the
// value, so that a misspelt name is reported as such even if its value has the wrong kind.
func Unknown(set func(name, value string) error, name string) string {
	if err := set(name, ""); err != nil {
		if at := strings.Index(err.Error(), "unknown setting"); at >= 0 {
			return err.Error()[at:]
		}
	}
	return ""
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
