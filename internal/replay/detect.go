package replay

import "bytes"

// detectBytes is how much of a log detect looks at.
const detectBytes = 64 << 10

// detect returns the format of the first line that looks like one. If there is
// none it returns combined, so that the report shows the malformed lines.
func detect(head []byte) string {
	var times clfTimes
	for line := range bytes.Lines(head) {
		line = bytes.TrimSpace(line)
		open := bytes.IndexByte(line, '[')
		switch {
		case len(line) == 0:
			continue
		case line[0] == '{':
			return "json"
		case open > 0:
			if _, _, ok := times.parse(line[open+1:]); ok {
				return "combined"
			}
		}
		if looksLikeHeader(line) {
			return "csv"
		}
	}
	return "combined"
}

// looksLikeHeader reports whether line is a CSV header: one of its columns is a time.
func looksLikeHeader(line []byte) bool {
	sep := separator(line)
	for name := range bytes.SplitSeq(line, []byte{sep}) {
		name = bytes.Trim(name, ` "`)
		for _, alias := range aliases["time"] {
			if bytes.EqualFold(name, []byte(alias)) && bytes.IndexByte(line, sep) >= 0 {
				return true
			}
		}
	}
	return false
}
