package store

import (
	"strings"
	"testing"
	"time"
)

func under(name, parent string) Limit {
	return Limit{Name: name, Rate: 5, Period: time.Minute, Parent: parent}
}

func TestParentsFirst(t *testing.T) {
	in := []Limit{under("c", "b"), under("x", ""), under("b", "a"), under("a", ""), under("p", "q"), under("q", "p"), under("y", "gone")}
	var names []string
	for _, l := range ParentsFirst(in, func(l *Limit) *Limit { return l }) {
		names = append(names, l.Name)
	}
	if got := strings.Join(names, " "); got != "a b c x q p y" {
		t.Error(got)
	}
	var errs []string
	for _, err := range CheckTogether(in) {
		errs = append(errs, err.Error())
	}
	if got := strings.Join(errs, "\n"); len(errs) != 3 || !strings.Contains(got, "limit p: parent: limit q has this limit above it") || !strings.Contains(got, "limit y: parent: there is no limit gone") {
		t.Error(got)
	}
}
