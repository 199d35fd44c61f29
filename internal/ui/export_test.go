package ui

import "io/fs"

// SetEngine replaces the compiled files. Call it before the first request.
func SetEngine(fsys fs.FS) { engine = fsys }

func Engine() fs.FS { return engine }
