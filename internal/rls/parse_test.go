package rls_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/store"
)

func parse(yaml ...string) (*rls.Rules, error) { return parseWith(rls.Defaults{}, yaml...) }

func parseWith(def rls.Defaults, yaml ...string) (*rls.Rules, error) {
	var files []rls.File
	for _, y := range yaml {
		files = append(files, rls.File{Name: "f.yaml", YAML: []byte(y)})
	}
	return rls.Parse(def, files...)
}

// All settings of envoyproxy/ratelimit's files, in all their forms.
func TestParse(t *testing.T) {
	rules, err := parse(`---
# a comment
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit:
          unit: day
          requests_per_unit: 5
        detailed_metric: true
  - key: status
    value: 404
    shadow_mode: yes
    rate_limit: {unit: SECOND, requests_per_unit: 1_000, name: "404s", replaces: [{name: all}, {name: most}]}
  - {key: white, value: true}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: free2, rate_limit: {unlimited: true, unit: unknown, requests_per_unit: 3}}
  - key: file
    value: a/*
    share_threshold: true
    value_to_metric: true
    rate_limit: {unit: minute, requests_per_unit: 0xff}
  - {key: none, descriptors: , rate_limit: ~}
  - &same
    key: one
    rate_limit: &limit
      unit: hour
      requests_per_unit: 7
  - {<<: *same, key: two}
  - {key: three, rate_limit: {<<: *limit, requests_per_unit: 8}}
  - key: own
    rate_limit: {unit: minute, unit_multiplier: 2, requests_per_unit: 6, algorithm: token_bucket, burst: 20, on_change: reset, on_store_error: local, timeout: 10ms}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"rls/messaging.message_type_marketing.to_number=5/1d,algorithm=fixed_window,start=0s",
		"rls/messaging.status_404=1000/1s,algorithm=fixed_window,start=0s,mode=shadow",
		"rls/messaging.file_a/*=255/1m,algorithm=fixed_window,start=0s",
		"rls/messaging.one=7/1h,algorithm=fixed_window,start=0s",
		"rls/messaging.two=7/1h,algorithm=fixed_window,start=0s",
		"rls/messaging.three=8/1h,algorithm=fixed_window,start=0s",
		"rls/messaging.own=6/2m,burst=20,on_change=reset,on_store_error=local,timeout=10ms",
	}
	limits := rules.Limits()
	for i, l := range limits {
		if i >= len(want) || l.String() != want[i] {
			t.Errorf("limit %d is %s", i, l)
		}
	}
	if len(limits) != len(want) || rules.Domains() != 1 {
		t.Errorf("%d limits in %d domains", len(limits), rules.Domains())
	}
}

func TestMistakes(t *testing.T) {
	const head = "domain: d\ndescriptors:\n  - key: a\n"
	const limit = head + "    rate_limit:\n      unit: day\n      requests_per_unit: 1\n"
	for _, tc := range []struct {
		name, yaml string
		want       []string
	}{
		{"empty", "", []string{"f.yaml: domain: is missing"}},
		{"no domain", "descriptors: []\n", []string{"f.yaml:1: domain: is missing or empty"}},
		{"an empty domain", "domain: ''\n", []string{"f.yaml:1: domain: is missing or empty"}},
		{"a typo at the top", "domain: d\ndescriptrs: []\n", []string{"f.yaml:2: descriptrs: unknown setting; did you mean descriptors?"}},
		{"a typo in a descriptor", head + "    ratelimit: {}\n", []string{"f.yaml:4: descriptors[0].ratelimit: unknown setting; did you mean rate_limit?"}},
		{"a typo in a rate_limit", head + "    rate_limit: {unit: day, request_per_unit: 1}\n", []string{"f.yaml:4: descriptors[0].rate_limit.request_per_unit: unknown setting; did you mean requests_per_unit?"}},
		{"no key", "domain: d\ndescriptors:\n  - value: a\n", []string{"f.yaml:3: descriptors[0].key: is missing or empty"}},
		{"twice the same", head + "  - key: a\n", []string{"f.yaml:4: descriptors[0]: there is another", "f.yaml:4: descriptors[1]"}[1:]},
		{"twice the same value", head + "    value: x\n  - {key: a, value: x}\n", []string{`f.yaml:5: descriptors[1]: there is another descriptor with key a and value "x"`}},
		{"twice the same wildcard", head + "    value: x*\n  - {key: a, value: x*}\n", []string{"f.yaml:5: descriptors[1]: there is another"}},
		{"a bad unit", head + "    rate_limit: {unit: dy, requests_per_unit: 1}\n", []string{`f.yaml:4: descriptors[0].rate_limit.unit: "dy" is not one of`, "did you mean day?"}},
		{"no unit", head + "    rate_limit: {requests_per_unit: 1}\n", []string{"f.yaml:4: descriptors[0].rate_limit.unit: is missing"}},
		{"the unknown unit", head + "    rate_limit: {unit: unknown, requests_per_unit: 1}\n", []string{"f.yaml:4: descriptors[0].rate_limit.unit: is missing"}},
		{"unlimited by unit", head + "    rate_limit: {unlimited: true, unit: day}\n", []string{"f.yaml:4: descriptors[0].rate_limit.unit: contradicts unlimited"}},
		{"a negative number", head + "    rate_limit: {unit: day, requests_per_unit: -1}\n", []string{`f.yaml:4: descriptors[0].rate_limit.requests_per_unit: "-1" is not a whole number from 0 to 4294967295`}},
		{"too large a number", head + "    rate_limit: {unit: day, requests_per_unit: 4294967296}\n", []string{"requests_per_unit: "}},
		{"a fraction", head + "    rate_limit: {unit: day, requests_per_unit: 1.5}\n", []string{`requests_per_unit: "1.5" is not`}},
		{"no boolean", head + "    shadow_mode: maybe\n", []string{`f.yaml:4: descriptors[0].shadow_mode: "maybe" is neither true nor false`}},
		{"replaces itself", head + "    rate_limit: {unit: day, requests_per_unit: 1, name: x, replaces: [{name: x}]}\n", []string{"f.yaml:4: descriptors[0].rate_limit.replaces: names the limit itself"}},
		{"replaces nothing", head + "    rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: ''}]}\n", []string{"f.yaml:4: descriptors[0].rate_limit.replaces[0].name: is missing"}},
		{"replaces by name", head + "    rate_limit: {unit: day, requests_per_unit: 1, replaces: x}\n", []string{"rate_limit.replaces: must be a list"}},
		{"shared without a star", head + "    share_threshold: true\n", []string{"f.yaml:4: descriptors[0].share_threshold: is only for values with a *"}},
		{"a leaky bucket", limit + "      algorithm: leaky_bucket\n", []string{"f.yaml:7: descriptors[0].rate_limit.algorithm: leaky_bucket answers with a delay"}},
		{"a concurrency limit", limit + "      algorithm: concurrency\n", []string{"f.yaml:7: descriptors[0].rate_limit.algorithm: concurrency counts held tokens"}},
		{"plans", limit + "      plans: {pro: {rate: 6}}\n", []string{"f.yaml:7: descriptors[0].rate_limit.plans: unknown setting"}},
		{"a parent", limit + "      parent: tenant\n", []string{"f.yaml:7: descriptors[0].rate_limit.parent: unknown setting"}},
		{"a near algorithm", limit + "      algorithm: token-bucket\n", []string{"f.yaml:7: descriptors[0].rate_limit.algorithm:", "did you mean token_bucket?"}},
		{"a bucket with a start", limit + "      algorithm: token_bucket\n      start: 0s\n", []string{"f.yaml:8: descriptors[0].rate_limit.start: is for windows"}},
		{"a burst of none", head + "    rate_limit: {unit: day, requests_per_unit: 0, burst: 3}\n", []string{"rate_limit.burst: has no effect"}},
		{"a burst too large", limit + "      burst: 9007199254740991\n", []string{"f.yaml:7: descriptors[0].rate_limit.burst: 9007199254740991 at 1 per 1d is too large to count exactly; at most"}},
		{"a long multiplier", limit + "      unit_multiplier: 4000000000\n", []string{"f.yaml:7: descriptors[0].rate_limit.unit_multiplier: 4000000000 days is longer than 285 years"}},
		{"no multiplier", limit + "      unit_multiplier: 0\n", []string{"unit_multiplier: "}},
		{"the limits of the other file", "domain: d\nlimits: []\n", []string{"f.yaml:2: limits: unknown setting"}},
		{"a list for a map", "- a\n", []string{"f.yaml:1: must be settings"}},
		{"a map for a list", "domain: d\ndescriptors: {key: a}\n", []string{"f.yaml:2: descriptors: must be a list"}},
		{"a word for a descriptor", "domain: d\ndescriptors: [a]\n", []string{"f.yaml:2: descriptors[0]: must be settings"}},
		{"a list for a value", head + "    value: [a]\n", []string{"f.yaml:4: descriptors[0].value: must be one value"}},
		{"a number for a name", "domain: d\n4: x\n", []string{"f.yaml:2: 4: unknown setting"}},
		{"twice", head + "    value: x\n    value: y\n", []string{"f.yaml:5: descriptors[0].value: is given twice; first in line 4"}},
		{"not YAML", "domain: d\n\t- x\n", []string{"f.yaml:2: "}},
		{"two documents", "domain: d\n---\ndomain: e\n", []string{"f.yaml:2: has more than one document"}},
		{"too deep", "domain: d\n" + nested(40), []string{"is nested more than 32 deep"}},
		{"an alias of itself", "domain: d\ndescriptors: &a\n  - key: k\n    descriptors: *a\n", []string{"f.yaml"}},
		{"all mistakes at once", "domain: d\ndescriptors:\n  - {kye: a}\n  - {key: b, rate_limit: {unit: dy}}\n", []string{"f.yaml:3: descriptors[0].kye", "f.yaml:4: descriptors[1].rate_limit.unit"}},
	} {
		_, err := parse(tc.yaml)
		if err == nil {
			t.Errorf("%s: no error", tc.name)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in\n%v", tc.name, want, err)
			}
		}
	}
}

func nested(depth int) string {
	var b strings.Builder
	for i := range depth {
		in := strings.Repeat("  ", i)
		b.WriteString(in + "descriptors:\n" + in + "- key: k\n")
	}
	return b.String()
}

func TestErrorFields(t *testing.T) {
	_, err := parse("domain: d\ndescriptors: [{kye: x}]")
	var e *config.YAMLError
	if !errors.As(err, &e) || e.File != "f.yaml" || e.Line != 2 || e.Setting != "descriptors[0].kye" {
		t.Errorf("%+v", e)
	}
}

// Aliases in a small file, and the list of mistakes, are bounded.
func TestBounds(t *testing.T) {
	bomb := "domain: d\ndescriptors:\n"
	bomb += "- {key: a0, descriptors: &l0 [" + strings.TrimSuffix(strings.Repeat("{key: k},", 30), ",") + "]}\n"
	for i := 1; i < 8; i++ {
		d := string(rune('0' + i))
		bomb += "- {key: a" + d + ", descriptors: &l" + d + " ["
		for j := range 30 {
			bomb += "{key: k" + string(rune('A'+j)) + ", descriptors: *l" + string(rune('0'+i-1)) + "},"
		}
		bomb = strings.TrimSuffix(bomb, ",") + "]}\n"
	}
	if _, err := parse(bomb); err == nil {
		t.Error("a file of billions was read")
	} else if n := strings.Count(err.Error(), "\n"); n > 101 {
		t.Errorf("%d mistakes are shown", n)
	}
	if _, err := parse("domain: d\ndescriptors:\n" + strings.Repeat("- x\n", 100_000)); err == nil || strings.Count(err.Error(), "\n") > 101 {
		t.Error("mistakes have no bound")
	}
}

// TestMostRules checks the bound on rules: a file of as many is read, and of one more is
// not.
func TestMostRules(t *testing.T) {
	const most = 10_000
	rules := func(n int) string {
		b := strings.Builder{}
		b.WriteString("domain: d\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&b, "- {key: k, value: v%d, rate_limit: {unit: minute, requests_per_unit: 5}}\n", i)
		}
		return b.String()
	}
	if _, err := parse(rules(most)); err != nil {
		t.Error(err)
	}
	if _, err := parse(rules(most + 1)); err == nil || !strings.Contains(err.Error(), "one of more than 10000") {
		t.Errorf("one more: %v", err)
	}
}

// Rules with the same name in metrics are different limits.
func TestLimitNames(t *testing.T) {
	long := strings.Repeat("x", 200)
	rules, err := parse("domain: d\ndescriptors:\n- {key: a.b, rate_limit: {unit: day, requests_per_unit: 1}}\n" +
		"- {key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}\n" +
		"- {key: ключ, rate_limit: {unit: day, requests_per_unit: 1}}\n- {key: ключа, rate_limit: {unit: day, requests_per_unit: 1}}\n" +
		"- {key: " + long + ", rate_limit: {unit: day, requests_per_unit: 1}}\n- {key: " + long + "y, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, l := range rules.Limits() {
		if _, err := store.NewDefinition(l); err != nil || seen[l.Name] || !strings.HasPrefix(l.Name, "rls/d.") {
			t.Errorf("%q: %v", l.Name, err)
		}
		seen[l.Name] = true
	}
}

func TestDomains(t *testing.T) {
	a := "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]"
	b := "domain: d\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]"
	if _, err := parse(a, b); err == nil || !strings.Contains(err.Error(), `"d" is also in f.yaml`) {
		t.Error(err)
	}
	rules, err := parseWith(rls.Defaults{MergeDomains: true}, a, b)
	if err != nil || len(rules.Limits()) != 2 || rules.Domains() != 1 {
		t.Error(rules, err)
	}
	if _, err = parseWith(rls.Defaults{MergeDomains: true}, a, a); err == nil {
		t.Error("the same descriptor in two files")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := rls.Load(rls.Defaults{}, dir); err == nil || !strings.Contains(err.Error(), "has no files") {
		t.Error(err)
	}
	if _, err := rls.Load(rls.Defaults{}, dir+"/none.yaml"); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Error(err)
	}
	write(t, dir+"/a.yaml", "domain: a")
	write(t, dir+"/b.yml", "domain: b")
	write(t, dir+"/below/c.yaml", "domain: c")
	write(t, dir+"/.hidden.yaml", "not: read")
	write(t, dir+"/.git/d.yaml", "not: read")
	if err := os.Symlink(dir+"/gone", dir+"/.hidden-link"); err != nil {
		t.Fatal(err)
	}
	rules, err := rls.Load(rls.Defaults{}, dir)
	if err != nil || rules.Domains() != 3 {
		t.Error(rules, err)
	}
	if rules, err = rls.Load(rls.Defaults{}, dir+"/b.yml"); err != nil || rules.Domains() != 1 {
		t.Error(rules, err)
	}
	write(t, dir+"/z.yaml", "domian: z")
	if _, err = rls.Load(rls.Defaults{}, dir); err == nil || !strings.Contains(err.Error(), dir+"/z.yaml:1: domian: unknown setting; did you mean domain?") {
		t.Error(err)
	}
	if err := os.Remove(dir + "/z.yaml"); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"a directory in itself": ".", "a link to nothing": "gone", "a device": os.DevNull} {
		if err := os.Symlink(target, dir+"/link"); err != nil {
			t.Fatal(err)
		}
		if _, err = rls.Load(rls.Defaults{}, dir); err == nil {
			t.Error(name, "was read")
		}
		if err := os.Remove(dir + "/link"); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(plain)
	f.Add("domain: d\ndescriptors: &a [{key: k*, share_threshold: y, descriptors: *a}]")
	f.Add("domain: d\ndescriptors: [{<<: [&a {key: k}, *a], rate_limit: {unit: day, requests_per_unit: 1}}]")
	f.Add("domain: d\n? [a]\n: b\n")
	f.Fuzz(func(t *testing.T, yaml string) {
		rules, err := parse(yaml)
		if (rules == nil) == (err == nil) {
			t.Error(rules, err)
		}
		if rules == nil {
			return
		}
		for _, l := range rules.Limits() {
			if _, err := store.NewDefinition(l); err != nil {
				t.Errorf("%v: %v", l, err)
			}
		}
	})
}
