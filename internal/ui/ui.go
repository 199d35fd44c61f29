// Package ui has the page at /ui/: files that a browser loads from the service, and that
// call its API. Two of its views, Playground and What if, do not call the API: they run
// dipwell itself, compiled to WebAssembly, and are there only if the program contains it.
package ui

//go:generate ./build.sh

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

//go:embed page
var files embed.FS

// built is the directory internal/ui/built, which may have the files that
// build.sh writes: git has none of them.
//
//go:embed built
var built embed.FS

// engine is where the two compiled files are read from. Tests compile these files themselves.
var engine fs.FS = built

// policy lets the page load its own files and call its own service, and nothing else. Text
// cannot become markup: the page has no trusted types.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// workerPolicy is the policy of the worker, which alone may run WebAssembly.
var workerPolicy = strings.Replace(policy, "script-src 'self'", "script-src 'self' 'wasm-unsafe-eval'", 1)

// policies are the policies that differ from the default. The views with a worker allow a
// trusted type for its address.
var policies = map[string]string{
	"/ui/engine.js":       workerPolicy,
	"/ui/playground.html": strings.Replace(policy, "trusted-types 'none'", "trusted-types engine", 1),
	"/ui/what-if.html":    strings.Replace(policy, "trusted-types 'none'", "trusted-types engine", 1),
}

// A file is one file of the page.
type file struct {
	content []byte
	tag     string // ETag
}

var pages = sync.OnceValue(func() map[string]file { return read(engine) })

// read returns the files of the page by their addresses. Without the compiled files, the page
// is told that they are missing, and the views that need them say how to get them.
func read(engine fs.FS) map[string]file {
	all := map[string]file{}
	for dir, fsys := range map[string]fs.FS{"page": files, "built": engine} {
		_ = fs.WalkDir(fsys, dir, func(name string, e fs.DirEntry, err error) error { // the error is nil, because an embedded file can always be read
			if err != nil || e.IsDir() || path.Ext(name) == ".md" {
				return err
			}
			content, err := fs.ReadFile(fsys, name)
			all["/ui/"+path.Base(name)] = newFile(content)
			return err
		})
	}
	all["/ui/what-if.html"] = newFile(bytes.Replace(all["/ui/playground.html"].content, []byte("playground.js"), []byte("what-if.js"), 1))
	if _, ok := all["/ui/dipwell.wasm.gz"]; !ok {
		all["/ui/index.html"] = newFile(bytes.Replace(all["/ui/index.html"].content, []byte("<html"), []byte(`<html data-computed="no"`), 1))
	}
	return all
}

func newFile(content []byte) file {
	sum := sha256.Sum256(content)
	return file{content, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
}

// views are addresses of the page that do not end in the name of a file.
var views = map[string]string{"/ui/": "/ui/index.html", "/ui/playground": "/ui/playground.html", "/ui/what-if": "/ui/what-if.html"}

// types are the media types of the files, which must not depend on the machine.
var types = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".gz": "application/gzip"}

// Handler answers GET /ui/ and below. Browsers ask each time whether a file has changed.
func Handler() http.Handler { return handler(pages) }

func handler(pages func() map[string]file) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path
		if view := views[name]; view != "" {
			name = view
		}
		f, ok := pages()[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", typeOf(name))
		h.Set("Content-Security-Policy", cmp.Or(policies[name], policy))
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(f.content))
	})
}

func typeOf(name string) string {
	if t := types[path.Ext(name)]; t != "" {
		return t
	}
	return "application/octet-stream"
}
