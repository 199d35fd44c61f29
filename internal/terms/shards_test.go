package terms_test

import (
	"slices"
	"testing"

	"github.com/dipwell/dipwell/internal/terms"
)

func TestRowKeys(t *testing.T) {
	for _, key := range []string{"", "k", "k\x0100"} {
		rows := terms.RowKeys(64, key)
		for i, row := range rows {
			if of, n := terms.KeyOfRow(64, row); of != key || n != int64(i) || len(row) != len(key)+terms.ShardSuffix {
				t.Errorf("row %q is %d of %q, want %d of %q", row, n, of, i, key)
			}
		}
		if !slices.IsSorted(append(rows, terms.AfterRows(key))) || terms.AfterRows(key) > key+"\x02" {
			t.Errorf("%q does not follow the rows of %q alone", terms.AfterRows(key), key)
		}
	}
	if rows := terms.RowKeys(1, "k"); len(rows) != 1 || rows[0] != "k" {
		t.Errorf("without shards: %q", rows)
	}
}

func TestKeyOfOtherRows(t *testing.T) {
	for _, c := range []struct {
		shards int64
		row    string
	}{{0, "k\x0100"}, {4, "k\x0104"}, {4, "k"}, {4, ""}, {64, "k\x011:"}, {64, "k\x01:0"}, {64, "k\x01/9"}, {64, "k\x0200"}} {
		if key, i := terms.KeyOfRow(c.shards, c.row); key != c.row || i != -1 {
			t.Errorf("of %d shards: %q is row %d of %q", c.shards, c.row, i, key)
		}
	}
}
