package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/server"
)

func someReport(keys ...string) *topReport {
	r := &topReport{TopNow: &server.TopNow{Window: 60e6, Shed: 12345}, all: topRate{decisions: 1234567, refused: 23456}}
	for i := range 12 {
		r.byLimit = append(r.byLimit, topRate{fmt.Sprintf("limit-%d-of-a-long-name", i), 123456, 123455, 9, 987})
	}
	for i, list := range []*server.KeyList{&r.Busiest, &r.Refused} {
		list.Counted, list.Unlisted = 200e6, 17
		for j, k := range keys {
			list.Keys = append(list.Keys, server.KeyCount{Limit: "login", Key: server.Nullable(k), Count: uint64(98765432 + i + j), Error: 1234567})
		}
	}
	return r
}

// A report has all numbers, the beginning of a long key, and nothing that controls a terminal.
func TestTopReport(t *testing.T) {
	var b strings.Builder
	someReport("user:7", strings.Repeat("a long key ", 40), "\x1b[2Jevil").write(&b, 10)
	text := b.String()
	for _, want := range []string{
		"decisions 1234567/s, refused 23456/s (1.9 %), store errors 0/s\n12345 calls turned away since the start: too many were in flight\n",
		"\n  DECISIONS/S  REFUSED/S  SHADOW/S  FALLBACK/S  LIMIT\n       123456     123455       9.0         987  limit-0-of-a-long-name\n", "and 2 more limits\n",
		"\n     COUNT    ERROR  AT LEAST  OF ALL  BUSIEST KEYS, 1m0s\n  98765432  1234567  97530865  49.4 %  login user:7\n", "MOST REFUSED KEYS, 1m0s\n",
		"a long key …\n", `login "\x1b[2Jevil"`, "each other key at most 17\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if n := len([]rune(line)); n > 150 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}
