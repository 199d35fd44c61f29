// Command step runs internal/gen. go generate runs it in the directory of
// package store.
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
