package ui

import (
	"io/fs"
	"net/http"
	"testing/fstest"
)

// SetEngine replaces the compiled files. Call it before the first request.
func SetEngine(fsys fs.FS) { engine = fsys }

func Engine() fs.FS { return engine }

// HandlerWithout is the Handler of a program without the compiled files.
func HandlerWithout() http.Handler {
	return handler(func() map[string]file { return read(fstest.MapFS{}) })
}
