// Package ui is the page for people: files that a browser loads from the service, and
// that call its API.
package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"sync"
	"time"
)

//go:embed page
var files embed.FS

// policy lets the page load its own files and call its own service, and nothing else. Text
// cannot become markup: the page has no trusted types.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// A file is one file of the page.
type file struct {
	content []byte
	tag     string // ETag
}

var pages = sync.OnceValue(func() map[string]file {
	all := map[string]file{}
	_ = fs.WalkDir(files, "page", func(name string, e fs.DirEntry, err error) error { // an embedded file can be read
		if err != nil || e.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		sum := sha256.Sum256(content)
		all["/ui/"+path.Base(name)] = file{content, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
		return err
	})
	all["/ui/"] = all["/ui/index.html"]
	return all
})

// types are the media types of the files, which must not depend on the machine.
var types = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

// Handler answers GET /ui/ and below. Browsers ask each time whether a file has changed.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := pages()[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		name := r.URL.Path
		if name == "/ui/" {
			name = "/ui/index.html"
		}
		h := w.Header()
		h.Set("Content-Type", typeOf(name))
		h.Set("Content-Security-Policy", policy)
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
