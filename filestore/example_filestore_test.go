package filestore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/filestore"
)

// A limit outlives its program: the second run goes on where the first one
// stopped.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	for range 2 {
		store, err := filestore.Open(filepath.Join(dir, "dipwell.db"), filestore.Config{})
		if err != nil {
			panic(err)
		}
		limiter, err := dipwell.New(store, dipwell.Limit{Name: "mail", Rate: 10, Period: 24 * time.Hour})
		if err != nil {
			panic(err)
		}
		d, err := limiter.Take(context.Background(), "mail", "user:7", 4)
		fmt.Println(d.Allowed, d.Remaining, err)
		store.Close() // writes what is not yet written
	}
	// Output:
	// true 6 <nil>
	// true 2 <nil>
}
