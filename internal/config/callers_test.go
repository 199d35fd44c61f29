package config_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/config"
)

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestCallers(t *testing.T) {
	f, err := config.Parse("f.yaml", []byte(`callers:
  - {name: web, token_file: /run/web}
  - name: on-call
    token_sha256: `+strings.ToUpper(digest)+`
    role: support
    limits: [login, jobs]
open_listeners: [listen, grpc]
`))
	want := []config.Caller{{Name: "web", TokenFile: "/run/web", Role: "use"}, {Name: "on-call", TokenSHA256: digest, Role: "support", Limits: []string{"login", "jobs"}}}
	if err != nil || !reflect.DeepEqual(f.Callers, want) || len(f.OpenListeners) != 2 {
		t.Errorf("%+v %v", f, err)
	}
	for _, none := range []string{"callers: []\n", "limits: []\n"} {
		if f, err := config.Parse("f.yaml", []byte(none)); err != nil || len(f.Callers) != 0 {
			t.Error(f, err)
		}
	}
}

func TestBadCallers(t *testing.T) {
	const good = "  - {name: a, token_file: x}\n"
	many := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf("  - {name: c%d, token_file: f%d}\n", i, i)
		}
		return text
	}
	for text, want := range map[string]string{
		good + "  - {token_file: y}\n":                                 "f.yaml:3: callers[1].name: is missing",
		good + "  - {name: '', token_file: y}\n":                       "f.yaml:3: callers[1].name: is empty",
		good + "  - {name: 'a b', token_file: y}\n":                    `f.yaml:3: callers[1].name: "a b" is not 1 to 64 letters`,
		good + "  - {name: \"a\\nb\", token_file: y}\n":                `f.yaml:3: callers[1].name: "a\nb" is not 1 to 64 letters`,
		good + "  - {name: admin-token, token_file: y}\n":              "f.yaml:3: callers[1].name: admin-token is the caller that has the admin token",
		good + "  - {name: a, token_file: y}\n":                        "f.yaml:3: callers[1].name: there are two callers called a; the first one is in line 2",
		"  - {name: a}\n":                                              "f.yaml:2: callers[0].token_file: give either it or token_sha256",
		"  - {name: a, token_file: x, token_sha256: " + digest + "}\n": "f.yaml:2: callers[0].token_file: give either it or token_sha256",
		"  - {name: a, token_file: ''}\n":                              "f.yaml:2: callers[0].token_file: is empty",
		"  - {name: a, token_sha256: s3cret}\n":                        "f.yaml:2: callers[0].token_sha256: is not the SHA-256 of a token, 64 hexadecimal digits",
		"  - {name: a, token_sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}\n": "f.yaml:2: callers[0].token_sha256: is the SHA-256 of an empty token",
		"  - {name: a, token: s3cret}\n":                        "f.yaml:2: callers[0].token: unknown setting",
		"  - {name: a, token_file: x, role: usr}\n":             `f.yaml:2: callers[0].role: "usr" is not one of use, read, support, admin; did you mean use?`,
		"  - {name: a, token_file: x, role: [use]}\n":           "f.yaml:2: callers[0].role: must be one value",
		"  - {name: a, token_file: x, role: }\n":                "f.yaml:2: callers[0].role: has no value",
		"  - {name: a, token_file: x, limits: []}\n":            "f.yaml:2: callers[0].limits: has no entries; leave it out for all limits",
		"  - {name: a, token_file: x, limits: login}\n":         "f.yaml:2: callers[0].limits: must be a list such as [login]",
		"  - {name: a, token_file: x, limits: [login, ' b']}\n": `f.yaml:2: callers[0].limits[1]: " b" is not the name of a limit`,
		"  - {name: a, token_file: x, limits: [[login]]}\n":     "f.yaml:2: callers[0].limits[0]: must be one value",
		"  - web\n": `f.yaml:2: callers[0]: must be settings such as {name: web, token_file: /run/secrets/web, role: use}, not "web"`,
		many(257):   "f.yaml:1: callers: has 257 callers; at most 256",
		"  a: b\n":  "f.yaml:1: callers: must be a list",
	} {
		_, err := config.Parse("f.yaml", []byte("callers:\n"+text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s%v, want %s", text, err, want)
		}
	}
	if f, err := config.Parse("f.yaml", []byte("callers:\n"+many(256))); err != nil || len(f.Callers) != 256 {
		t.Error(err)
	}
	if _, err := config.Parse("f.yaml", []byte("open_listeners: [http]\n")); err == nil || !strings.Contains(err.Error(), `open_listeners[0]: "http" is not one of listen, admin, grpc`) {
		t.Error(err)
	}
}
