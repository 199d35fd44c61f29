#!/bin/sh
# Compiles internal/ui/engine to WebAssembly and writes it, with the script of Go's that starts
# it, where internal/ui embeds it and where the page in docs/playground finds it. It also writes
# that page, whose other files are those of internal/ui/page. With a directory as its argument it
# writes there alone. `go generate ./internal/ui` runs it; neither of the compiled files is in git.
set -eu
cd "$(dirname "$0")"
site=${1:-../../docs/playground}
wasm=$(mktemp)
trap 'rm -f "$wasm"' EXIT
GOOS=js GOARCH=wasm CGO_ENABLED=0 GOFLAGS='' go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$wasm" ./engine
gzip -9nc "$wasm" >"$site/dipwell.wasm.gz"
cat "$(go env GOROOT)/lib/wasm/wasm_exec.js" >"$site/wasm_exec.js"
for file in playground.html playground.js what-if.js tools.js menu.js engine.js dom.js chart.js console.css icon.svg; do # need no service
	cp "page/$file" "$site"
done
cp page/playground.html "$site/index.html"
sed 's/playground\.js/what-if.js/' page/playground.html >"$site/what-if.html"
test $# -gt 0 || cp "$site/dipwell.wasm.gz" "$site/wasm_exec.js" built
