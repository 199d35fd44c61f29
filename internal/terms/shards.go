package terms

import "fmt"

// shardMark separates the key of a limit with shards from the number of a row, which has
// two digits. It is the first character that keys may contain, so that in a list the rows of
// a key follow each other, unless a key contains it.
const shardMark = "\x01"

// ShardSuffix is by how many bytes the key of a row is longer than the caller's key, if
// the limit has shards.
const ShardSuffix = 3

// RowKeys returns the keys of the rows that belong to a key. All rows of a limit with
// shards have keys of the same form, so that two keys never share a row.
func RowKeys(shards int64, key string) []string {
	if shards < 2 {
		return []string{key}
	}
	rows := make([]string, shards)
	for i := range rows {
		rows[i] = fmt.Sprintf("%s%s%02d", key, shardMark, i)
	}
	return rows
}

// KeyOfRow returns the key that a row belongs to, and the row's number. If the limit has no
// shards, or the row is of a version with another number of them, it returns the key of the
// row and -1.
func KeyOfRow(shards int64, row string) (key string, i int64) {
	n := len(row) - ShardSuffix
	if shards < 2 || n < 0 || row[n:n+1] != shardMark {
		return row, -1
	}
	tens, ones := row[n+1]-'0', row[n+2]-'0'
	if i = 10*int64(tens) + int64(ones); tens > 9 || ones > 9 || i >= shards {
		return row, -1
	}
	return row[:n], i
}

// AfterRows returns a text that sorts after the rows of a key and before those of the next
// key.
func AfterRows(key string) string { return key + shardMark + ":" }
