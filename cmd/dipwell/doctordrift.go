package main

import (
	"strings"

	"github.com/dipwell/dipwell"
)

// drift reports limits that differ between file and store, and limits in the store
// that a file of the same owner has defined and this one does not name.
func (x *examination) drift(l *dipwell.Limiter) {
	if x.declared == nil {
		return
	}
	file := fileOwner(x.declared)
	d := declared{limiter: l, file: file}
	limits := (&settings{File: *x.declared}).declared(file)
	if seen := d.newerRevision(file); seen > 0 {
		x.warn("drift", "the file is an old one; a newer file has a higher revision", "the file is revision %d of owner %s, and the store has seen revision %d: a service defines nothing from it", file.Revision, file.Name, seen)
	}
	list := drift(l, limits)
	x.judge(len(list) > 0, verdictWarning, "drift", "another file or a program has changed them, or no service has read this file yet: "+d.remedy("a restart of its service"),
		"the store differs in %s: %s", "the store has all limits as the file names them%.0s%.0s", howMany(len(list), "limit"), strings.Join(list[:min(len(list), maxListed)], "; "))
	left := orphans(l, file.Name, limits)
	x.judge(len(left) > 0, verdictWarning, "limits", "if no other service's file names them: name them in this file and take them out again while the service runs",
		"limits that files of owner %s made and this one does not name: %s", "the file names every limit that files of owner %s made%.0s", file.Name, names(left))
}
