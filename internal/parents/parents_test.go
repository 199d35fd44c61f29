package parents

import (
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

func under(name, parent string) store.Limit {
	return store.Limit{Name: name, Rate: 5, Period: time.Minute, Parent: parent}
}

func TestFirst(t *testing.T) {
	in := []store.Limit{under("c", "b"), under("x", ""), under("b", "a"), under("a", ""), under("p", "q"), under("q", "p"), under("y", "gone")}
	var names []string
	for _, l := range First(in, func(l *store.Limit) *store.Limit { return l }) {
		names = append(names, l.Name)
	}
	if got := strings.Join(names, " "); got != "a b c x q p y" {
		t.Error(got)
	}
	var errs []string
	for _, err := range Check(in) {
		errs = append(errs, err.Error())
	}
	if got := strings.Join(errs, "\n"); len(errs) != 3 || !strings.Contains(got, "limit p: parent: limit q has this limit above it") || !strings.Contains(got, "limit y: parent: there is no limit gone") {
		t.Error(got)
	}
}
