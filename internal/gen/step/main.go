// Command step writes what internal/gen makes of the step.go of package store. It
// is run in the directory of package store, by go generate.
package main

import (
	"fmt"
	"os"

	"github.com/dipwell/dipwell/internal/gen"
)

func main() {
	if err := gen.Run(".."); err != nil {
		fmt.Fprintln(os.Stderr, "step:", err)
		os.Exit(1)
	}
}
