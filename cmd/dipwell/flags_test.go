package main

import (
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/server"
)

// TestFlagsReadLikeFiles checks that numbers and lengths of time on the command line are
// what they are in a file and over HTTP: 010 is ten, and a day is 1d.
func TestFlagsReadLikeFiles(t *testing.T) {
	t.Setenv("DIPWELL_SERVER", startAPI(t, server.Config{}, "login=5/1m,burst=20"))
	for _, tc := range []struct {
		args string
		code int
		want string // in standard output, or in standard error for code 2
	}{
		{"take login a --cost 010", 0, "10 of 20 remaining"},
		{"take login b --floor 010 --cost 9", 0, "11 of 20 remaining"},
		{"take login b --cost 0x3", 2, `--cost: "0x3" is not a whole number in digits`},
		{"take login b --cost 1_0", 2, `--cost: "1_0" is not a whole number`},
		{"take login b --cost 1.0", 2, `--cost: "1.0" is not a whole number`},
		{"take login b --cost=", 2, `--cost: "" is not a whole number`},
		{"take login b --cost 99999999999999999999", 2, `--cost: "99999999999999999999" is not a whole number`},
		{"override set login c --rate 9 --burst 0100", 0, "burst 100"},
		{"override list login -n 010", 0, ""},
		{"hold login h --ttl 1d --id h", 0, "hold h until 2001-09-10 01:46:40Z"},
		{"extend h --ttl 12h30m", 0, "hold h until 2001-09-09 14:16:40Z"},
		{"extend h --ttl 1.5h", 0, "hold h until 2001-09-09 03:16:40Z"},
		{"settle h --cost 010", 0, "10 of 20 remaining"},
		{"override set login c --rate 9 --for 7d", 0, "until 2001-09-16T01:46:40Z"},
		{"override set login c --rate 9 --for=-1h", 2, `--for: "-1h" is not a length of time such as 250ms, 1s, 1m, 1h, 1d or 1w`},
		{"hold login h --ttl=-30s", 2, `--ttl: "-30s" is not a length of time`},
		{"hold login h --ttl 30", 2, `--ttl: "30" is not a length of time`},
		{"wait login w --timeout=-5s", 2, `--timeout: "-5s" is not a length of time`},
		{"wait login w --timeout 1d", 2, "timeout: must be from 1ms to 10m"},
		{"top --hour 1x", 2, `hour: "1x" is neither a time`},
		{"top --hour 2d", 0, "nothing is kept of the hour "},
		{"bench --time 1x", 2, `--time: "1x" is not a length of time`},
	} {
		code, stdout, stderr := program(t, strings.Fields(tc.args)...)
		got := stdout
		if tc.code == 2 {
			got = stderr
		}
		if code != tc.code || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %d, want %d with %q\n%s%s", tc.args, code, tc.code, tc.want, stdout, stderr)
		}
	}
}
