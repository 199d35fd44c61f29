package pgstore_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/pgstore"
)

// TestFrozenMigrations checks that released migrations are unchanged, because
// databases that have them do not run them again. A change of the schema is a
// new migration, with a line in testdata/migrations.sha256.
func TestFrozenMigrations(t *testing.T) {
	list, err := os.ReadFile("testdata/migrations.sha256")
	if err != nil {
		t.Fatal(err)
	}
	var frozen []string
	for line := range strings.Lines(string(list)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		frozen = append(frozen, name)
		sql, err := os.ReadFile(name)
		if err != nil {
			t.Errorf("a migration that was released is gone: %v", err)
		} else if is := fmt.Sprintf("%x", sha256.Sum256(sql)); is != sum {
			t.Errorf("%s was edited: its SHA-256 is %s; write a new migration instead", name, is)
		}
	}
	for _, pattern := range []string{"schema/0*.sql", "schema/portable_*.sql"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if !slices.Contains(frozen, name) {
				t.Errorf("%s has no line in testdata/migrations.sha256; add the one that sha256sum prints in the directory pgstore", name)
			}
		}
	}
	if len(frozen) < 4 || !strings.Contains(string(list), fmt.Sprintf("schema/%04d_", pgstore.SchemaVersion)) {
		t.Errorf("%d migrations are listed, and version %d should be one of them", len(frozen), pgstore.SchemaVersion)
	}
}
