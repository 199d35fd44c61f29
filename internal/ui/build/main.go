// Command build compiles internal/ui/engine to WebAssembly and writes it, with the script of
// Go's that starts it, where internal/ui embeds it and where the page in docs/playground
// finds it. It also writes that page, whose other files are those of internal/ui/page.
// `go generate ./internal/ui` runs it; neither of the two compiled files is in git.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const engine = "github.com/dipwell/dipwell/internal/ui/engine"

// pages are the files of the page that need no service.
var pages = []string{"playground.html", "playground.js", "what-if.html", "what-if.js", "tools.js", "menu.js", "engine.js", "dom.js", "chart.js", "console.css", "icon.svg"}

func main() {
	log.SetFlags(0)
	into := flag.String("o", "", "write into this directory alone")
	flag.Parse()
	dirs := []string{"built", "../../docs/playground"} // go generate runs in internal/ui
	if *into != "" {
		dirs = []string{*into}
	}
	if err := copyPages(dirs[len(dirs)-1]); err != nil {
		log.Fatal(err)
	}
	if err := build(context.Background(), dirs); err != nil {
		log.Fatal(err)
	}
}

// build writes dipwell.wasm.gz and wasm_exec.js into directories.
func build(ctx context.Context, dirs []string) error {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	script, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "lib", "wasm", "wasm_exec.js"))
	if err != nil {
		return err
	}
	packed, err := compile(ctx)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "dipwell.wasm.gz"), packed, 0o644), os.WriteFile(filepath.Join(dir, "wasm_exec.js"), script, 0o644))
	}
	return err
}

// compile returns the engine as WebAssembly, compressed.
func compile(ctx context.Context) (_ []byte, err error) {
	temp, err := os.MkdirTemp("", "dipwell-wasm-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	binary := filepath.Join(temp, "dipwell.wasm")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, engine)
	cmd.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go build: %w", err)
	}
	wasm, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(wasm)
	err = errors.Join(err, z.Close())
	return packed.Bytes(), err
}

// copyPages writes the files of the page that needs no service. Its index is the
// playground.
func copyPages(dir string) error {
	for _, name := range pages {
		text, err := os.ReadFile(filepath.Join("page", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err == nil && name == "playground.html" {
			err = os.WriteFile(filepath.Join(dir, "index.html"), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
