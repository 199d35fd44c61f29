package main

import "github.com/dipwell/dipwell"

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
	x.judgeList(drift(l, limits), verdictWarning, "drift", "another file or a program has changed them, or no service has read this file yet: "+d.remedy("a restart of its service"),
		"the store differs from the file", "the store has all limits as the file names them")
	x.judgeList(orphans(l, file.Name, limits), verdictWarning, "limits", "if no other service's file names them: name them in this file and take them out again while the service runs",
		"limits that files of owner "+file.Name+" made and this one does not name", "the file names every limit that files of owner "+file.Name+" made")
}
