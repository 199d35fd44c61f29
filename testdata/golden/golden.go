// Package golden is the checked-in vectors, one JSON object a line, for tests
// of any package.
package golden

import _ "embed"

//go:embed apply.jsonl
var Apply []byte

//go:embed carry.jsonl
var Carry []byte

//go:embed origin.jsonl
var Origin []byte

//go:embed calendar.jsonl
var Calendar []byte
