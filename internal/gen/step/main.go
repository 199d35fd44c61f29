// Command step writes what internal/gen makes of the root package's step.go. It
// is run in the repository's root, by go generate.
package main

import (
	"fmt"
	"os"

	"github.com/dipwell/dipwell/internal/gen"
)

func main() {
	if err := gen.Run("."); err != nil {
		fmt.Fprintln(os.Stderr, "step:", err)
		os.Exit(1)
	}
}
