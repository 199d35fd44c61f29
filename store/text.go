package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/internal/period"
)

// missingPeriod is the reason of an error about a limit without a period.
const missingPeriod = "is missing; it is a length of time such as 1s, 1m, 1h or 1d"

// String writes the limit as dipwell.ParseLimit reads it: "login=5/1m,burst=20". Settings
// that have their default values are left out.
func (l Limit) String() string {
	var b strings.Builder
	first := []string{"name", "rate", "per"}
	if l.Algorithm == Concurrency {
		first = []string{"name", "burst"}
		fmt.Fprintf(&b, "%s=%d", l.Name, l.Burst)
	} else {
		fmt.Fprintf(&b, "%s=%d/%s", l.Name, l.Rate, period.Format(l.Period))
	}
	for _, s := range l.Explicit() {
		if !slices.Contains(first, s[0]) {
			b.WriteString("," + s[0] + "=" + s[1])
		}
	}
	return b.String()
}
