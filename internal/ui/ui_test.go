package ui_test

import (
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/ui"
)

// most is how large the whole page may be, compressed, in bytes.
const most = 80_000

// Every file is served with the policy, and together they are small.
func TestFiles(t *testing.T) {
	files, err := os.ReadDir("page")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all strings.Builder
	z := gzip.NewWriter(&all)
	for _, f := range files {
		rec := httptest.NewRecorder()
		ui.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/ui/"+f.Name(), nil))
		h := rec.Header()
		if rec.Code != http.StatusOK || h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; ") ||
			h.Get("Content-Type") == "application/octet-stream" || h.Get("ETag") == "" {
			t.Errorf("%s: %d %v", f.Name(), rec.Code, h)
		}
		if policy := h.Get("Content-Security-Policy"); strings.Contains(policy, "unsafe") != (f.Name() == "engine.js") || !strings.Contains(policy, "require-trusted-types-for 'script'") {
			t.Errorf("%s: %s", f.Name(), policy) // the worker alone runs WebAssembly
		}
		if _, err = z.Write(rec.Body.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	for _, view := range []string{"/ui/", "/ui/playground", "/ui/what-if"} {
		rec := httptest.NewRecorder()
		ui.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, view, nil))
		if rec.Code != http.StatusOK || !strings.HasPrefix(rec.Header().Get("Content-Type"), "text/html") {
			t.Errorf("%s: %d %v", view, rec.Code, rec.Header())
		}
	}
	if err = z.Close(); err != nil || all.Len() > most {
		t.Errorf("the page has %d bytes compressed, at most %d: %v", all.Len(), most, err)
	}
}

// A program without the compiled files does not offer the views that need them.
func TestWithoutEngine(t *testing.T) {
	get := func(h http.Handler, path string) string {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		if rec.Code != http.StatusOK {
			t.Errorf("%s: %d", path, rec.Code)
		}
		return rec.Body.String()
	}
	const missing = `data-computed="no"`
	if text := get(ui.HandlerWithout(), "/ui/"); !strings.Contains(text, missing) {
		t.Errorf("the page is not told what is missing: %s", text)
	}
	if text := get(ui.Handler(), "/ui/"); strings.Contains(text, missing) {
		t.Errorf("the page is told that something is missing: %s", text)
	}
}

// The library in the page is the one that npm has, so that third_party has its licences.
func TestLibrary(t *testing.T) {
	content, err := os.ReadFile("page/preact.js")
	const digest = "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"
	if got := fmt.Sprintf("%x", sha256.Sum256(content)); err != nil || got != digest {
		t.Error(got, err)
	}
}
