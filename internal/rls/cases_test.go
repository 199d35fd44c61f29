package rls_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/dipwell/dipwell/internal/rls"
)

// cases are configurations in testdata/cases, as files or directories.
var cases = []struct {
	name    string
	merge   bool
	notes   []string // what is said, in order
	mistake []string // what the error has, if the configuration is refused
	// calls are a descriptor and its answers to one request after the other: y for OK, n
	// for OVER_LIMIT.
	calls [][2]string
}{
	{name: "mid-wildcard.yaml", calls: [][2]string{{"path=/api/x/v1", "yn"}, {"path=/api/y/v1", "yn"}, {"path=/api/x/v2", "yyy"}}},
	{name: "metadata.yaml", calls: [][2]string{{"service=one", "yyy"}}},
	{name: "extensionless", calls: [][2]string{{"a=1", "yn"}},
		notes: []string{"extensionless/ratelimit: is read, although its name does not end in .yaml or .yml"}},
	{name: "wildcards.yaml", calls: [][2]string{
		{"host=a.example", "yn"}, {"host=.example", "yn"}, {"host=a.example.", "yyy"}, {"host=example", "yyy"},
		{"path=/x/items/7/edit", "yyn"}, {"path=/x/items//edit", "yyn"}, {"path=/items/7/edit", "yyyyyyn"},
		{"path=/a/items/2/edit", "yyn"}, {"path=/a/x/edit", "yyyn"}, {"path=/a/items/1/edit", "yyyyyn"},
		{"path=ababa", "yyyyyyn"}, {"path=abaaba", "yn"}, {"path=/a", "yyyyyyn"},
		{"x-user-id=1", "yy"}, {"x-user-id=-id", "yn"}, {"head=7", "yyn"}, {"head=8", "yyy"},
		{"path=nit user=root", "yn"}, {"path=nt user=rt", "yn"}, {"path=nt user=roots", "yyn"},
	}},
	{name: "share-threshold.yaml", calls: [][2]string{
		{"path=/api/1/v1", "y"}, {"path=/api/2/v1", "y"}, {"path=/api/3/v1", "n"},
		{"host=a.example", "y"}, {"host=b.example", "y"}, {"host=c.example", "n"},
		{"dir=a1b user=x", "y"}, {"dir=a2b user=x", "n"}, {"dir=a2b user=y", "y"},
	}},
	{name: "metadata-anywhere.yaml", calls: [][2]string{{"user=1", "yn"}, {"white=1", "yy"}}, notes: []string{
		"metadata-anywhere.yaml:3: metadata: has no effect here",
		"metadata-anywhere.yaml:4: shadow_mode: has no effect here",
		"metadata-anywhere.yaml:10: descriptors[0].rate_limit.shadow_mode: has no effect here",
		"metadata-anywhere.yaml:11: descriptors[0].rate_limit.metadata: has no effect here",
	}},
	{name: "manifest.yaml", mistake: []string{"manifest.yaml:1: apiVersion: unknown setting"}},
	{name: "readme-beside", mistake: []string{"README.md:1: must be settings", "README.md: is read because it is in a directory of descriptors, whatever its name"}},
	{name: "merge-domains", merge: true, notes: []string{"merge-domains/a: is read"}, calls: [][2]string{{"a=1", "yn"}, {"b=1", "yn"}}},
}

// TestCases decides requests by every configuration of testdata/cases.
func TestCases(t *testing.T) {
	entries, err := os.ReadDir("testdata/cases")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(cases) {
		t.Errorf("%d entries in testdata/cases, but %d cases", len(entries), len(cases))
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			rules, err := rls.Load(rls.Defaults{MergeDomains: tc.merge}, "testdata/cases/"+tc.name)
			if (err != nil) != (tc.mistake != nil) {
				t.Fatal(err)
			}
			for _, want := range tc.mistake {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %v", want, err)
				}
			}
			if err != nil {
				return
			}
			if !slices.EqualFunc(rules.Notes(), tc.notes, strings.Contains) {
				t.Errorf("notes: %q", rules.Notes())
			}
			w := start(t, "domain: none")
			if err := w.service.Use(t.Context(), rules); err != nil {
				t.Fatal(err)
			}
			for _, call := range tc.calls {
				for i, answer := range call[1] {
					want := map[rune]pb.RateLimitResponse_Code{'y': ok, 'n': over}[answer]
					if got := w.ask("d", desc(strings.Fields(call[0])...)).OverallCode; got != want {
						t.Errorf("call %d of %s: %v", i+1, call[0], got)
					}
				}
			}
		})
	}
}
