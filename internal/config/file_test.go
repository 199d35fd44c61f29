package config_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/config"
)

func TestParse(t *testing.T) {
	f, err := config.Parse("dipwell.yaml", []byte(`# all of it
store: memory:
listen: 127.0.0.1:8080
admin: 127.0.0.1:8081
admin_token_file: /run/token
admin_only: [metrics, limits]
upstream: http://127.0.0.1:3000
by: header:X-User
max_keys: 1000
max_key_bytes: 3000000000
headers: x-ratelimit
trusted_proxies: [10.0.0.0/8, 192.0.2.1]
limits:
  - name: login
    algorithm: fixed_window
    rate: 5
    per: 1d
    burst: 20
    max_debt: 0
    start: '00:00 Europe/Rome'
    on_change: proportional
    mode: shadow
    auth: true
    retry_jitter: 10%
    on_store_error: open
    timeout: 50ms
  - {name: jobs, rate: 1, per: 1s, burst: 0, max_debt: unlimited, keys: list}
`))
	if err != nil {
		t.Fatal(err)
	}
	login := dipwell.Limit{Name: "login", Algorithm: dipwell.FixedWindow, Rate: 5, Period: 24 * time.Hour, Burst: 20, MaxDebt: dipwell.NoDebt,
		Start: "00:00 Europe/Rome", OnChange: dipwell.Proportional, Mode: dipwell.Shadow, Auth: true, RetryJitter: 10,
		OnStoreError: dipwell.FailOpen, Timeout: 50 * time.Millisecond}
	jobs := dipwell.Limit{Name: "jobs", Rate: 1, Period: time.Second, Burst: dipwell.NoBurst, MaxDebt: dipwell.UnlimitedDebt, ListKeys: true}
	if len(f.Limits) != 2 || f.Limits[0] != login || f.Limits[1] != jobs {
		t.Errorf("limits %+v", f.Limits)
	}
	if f.Store != "memory:" || f.Listen != "127.0.0.1:8080" || f.Admin != "127.0.0.1:8081" || f.AdminTokenFile != "/run/token" || len(f.AdminOnly) != 2 ||
		f.Upstream != "http://127.0.0.1:3000" || f.By != "header:X-User" || f.MaxKeys != 1000 || f.MaxKeyBytes != 3e9 || f.Headers != httplimit.XRateLimit {
		t.Errorf("%+v", f)
	}
	if len(f.TrustedProxies) != 2 || f.TrustedProxies[1] != netip.MustParsePrefix("192.0.2.1/32") {
		t.Error(f.TrustedProxies)
	}
}

func TestPlansAndParents(t *testing.T) {
	f, err := config.Parse("f.yaml", []byte(`limits:
  - name: user
    rate: 60
    per: 1m
    parent: tenant
    ttl: 5m
    on_expire: keep
    plans:
      pro: {rate: 600, burst: 1000}
      staff: {mode: unlimited, callable: false}
      banned: blocked
      same:  {}
  - {name: tenant, rate: 1000, per: 1m, parts: 1}
  - {name: inference, algorithm: concurrency, burst: 10, ttl: 5m}
  - {name: everybody, rate: 1, per: 1s, shared: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	user := dipwell.Limit{Name: "user", Rate: 60, Period: time.Minute, Parent: "tenant", TTL: 5 * time.Minute, KeepExpired: true, Plans: dipwell.NewPlans(
		dipwell.Plan{Name: "pro", Rate: 600, Burst: 1000}, dipwell.Plan{Name: "staff", Mode: dipwell.Unlimited, OverrideOnly: true},
		dipwell.Plan{Name: "banned", Mode: dipwell.Blocked}, dipwell.Plan{Name: "same"})}
	tenant := dipwell.Limit{Name: "tenant", Rate: 1000, Period: time.Minute, Parts: 1}
	inference := dipwell.Limit{Name: "inference", Algorithm: dipwell.Concurrency, Burst: 10, TTL: 5 * time.Minute}
	everybody := dipwell.Limit{Name: "everybody", Rate: 1, Period: time.Second, Shared: true}
	if len(f.Limits) != 4 || f.Limits[0] != user || f.Limits[1] != tenant || f.Limits[2] != inference || f.Limits[3] != everybody {
		t.Errorf("%+v", f.Limits)
	}
}

func TestAdaptive(t *testing.T) {
	f, err := config.Parse("f.yaml", []byte(`limits:
  - name: upstream
    rate: 250
    per: 1s
    adaptive: {floor: 50, latency: 200ms, quantile: 0.95, errors: 2%, window: 1s}
  - {name: text, rate: 250, per: 1s, adaptive: floor=50;errors=0.02}
`))
	if err != nil {
		t.Fatal(err)
	}
	if want := (dipwell.Adaptive{Floor: 50, Latency: 200 * time.Millisecond, Quantile: 0.95, Errors: 0.02, Window: time.Second}); f.Limits[0].Adaptive != want {
		t.Errorf("%+v", f.Limits[0].Adaptive)
	}
	if want := (dipwell.Adaptive{Floor: 50, Errors: 0.02}); f.Limits[1].Adaptive != want {
		t.Errorf("%+v", f.Limits[1].Adaptive)
	}
}

// A file that names nothing was cut off, more often than not.
func TestEmpty(t *testing.T) {
	for _, empty := range []string{"", "\n", "# nothing\n", "---\n", "{}\n", "null\n"} {
		if f, err := config.Parse("f.yaml", []byte(empty)); err == nil || err.Error() != "f.yaml: is empty; for a service without limits write limits: []" {
			t.Errorf("%q: %+v, %v", empty, f, err)
		}
	}
	if f, err := config.Parse("x", []byte("limits: []\n")); err != nil || f.Limits == nil || len(f.Limits) != 0 {
		t.Error(f, err)
	}
	if f, err := config.Parse("x", []byte("grpc: 127.0.0.1:8081\n")); err != nil || f.Limits != nil {
		t.Error(f, err)
	}
}

func TestOwnerAndRevision(t *testing.T) {
	f, err := config.Parse("x", []byte("owner: billing\nrevision: 7\nlimits: []\n"))
	if err != nil || f.Owner != "billing" || f.Revision != 7 || len(f.Digest) != 32 {
		t.Fatalf("%+v %v", f, err)
	}
	again, _ := config.Parse("y", []byte("owner: billing\nrevision: 7\nlimits: []\n"))
	other, _ := config.Parse("y", []byte("owner: billing\nrevision: 7\nlimits: [] # as before\n"))
	if again.Digest != f.Digest || other.Digest == f.Digest {
		t.Error("the digest is not that of the bytes")
	}
}

func TestParseGRPC(t *testing.T) {
	f, err := config.Parse("x", []byte("data: /var/lib/dipwell\ngrpc: 127.0.0.1:8081\nrls_config: /etc/ratelimit\nrls_headers: true\nrls_charge_all: true\nrls_allow_override: false\nrls_merge_domains: true\nrls_near_limit_ratio: 0.5\nrls_limit_header: L\nrls_remaining_header: R\nrls_reset_header: T\nshadow: true\nmetric_labels: {env: prod, n: 1}\n"))
	if err != nil || f.Data != "/var/lib/dipwell" || f.GRPC != "127.0.0.1:8081" || f.RLSConfig != "/etc/ratelimit" || !f.RLSHeaders || !f.RLSChargeAll || f.RLSAllowOverride || !f.RLSMergeDomains ||
		f.RLSNearLimit != 0.5 || f.RLSLimitHeader != "L" || f.RLSRemainingHeader != "R" || f.RLSResetHeader != "T" || !f.Shadow || f.MetricLabels["env"] != "prod" || f.MetricLabels["n"] != "1" {
		t.Errorf("%+v %v", f, err)
	}
}

// Lengths of time of settings are read as those of limits.
func TestLengthsOfTime(t *testing.T) {
	for text, want := range map[string]time.Duration{"60m": time.Hour, "10m30s": 630 * time.Second, "1.5s": 1500 * time.Millisecond, "250ms": 250 * time.Millisecond} {
		f, err := config.Parse("f.yaml", []byte("deny_max_age: "+text+"\n"))
		if err != nil || f.DenyMaxAge != want {
			t.Errorf("%s: %v, %v", text, f, err)
		}
	}
	for _, text := range []string{"-1s", "25h", "2d", "1", "soon"} {
		if _, err := config.Parse("f.yaml", []byte("deny_max_age: "+text+"\n")); err == nil || !strings.Contains(err.Error(), "is not a length of time such as 1s") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestMistakes(t *testing.T) {
	const login = "limits:\n  - name: login\n    rate: 5\n    per: 1m\n"
	for _, tc := range []struct {
		name, yaml string
		want       []string // a line of the error each, by its beginning or its middle
	}{
		{"a typo at the top", "listne: x\n", []string{"f.yaml:1: listne: unknown setting; did you mean listen?"}},
		{"a typo in a limit", login + "    brust: 9\n", []string{"f.yaml:5: limits[0].brust: unknown setting; did you mean burst?"}},
		{"a typo before settings", login + "    plan: {pro: {rate: 9}}\n", []string{"f.yaml:5: limits[0].plan: unknown setting; did you mean plans?"}},
		{"a typo before a list", login + "    brust: [9]\n", []string{"f.yaml:5: limits[0].brust: unknown setting; did you mean burst?"}},
		{"a typo before nothing", login + "    brust:\n", []string{"f.yaml:5: limits[0].brust: unknown setting; did you mean burst?"}},
		{"a typo in a plan", login + "    plans: {pro: {rte: [9]}}\n", []string{"f.yaml:5: limits[0].plans.pro.rte: unknown setting; did you mean rate?"}},
		{"a typo in adaptive", login + "    adaptive: {flor: {}}\n", []string{"f.yaml:5: limits[0].adaptive.flor: unknown setting; did you mean floor?"}},
		{"a list for a number", login + "    burst: [9]\n", []string{"f.yaml:5: limits[0].burst: must be one value"}},
		{"a typo before memory:", "Store: memory:\nlimits: []\n", []string{"f.yaml:1: Store: unknown setting; did you mean store?"}},
		{"no idea", "frobnicate: 1\n", []string{"f.yaml:1: frobnicate: unknown setting"}},
		{"miscased", "Listen: x\n", []string{"f.yaml:1: Listen: unknown setting; did you mean listen?"}},
		{"headers", "headers: itef\n", []string{`f.yaml:1: headers: "itef" is not one of ietf, x-ratelimit, off; did you mean ietf?`}},
		{"a typo in gRPC's", "grcp: 127.0.0.1:8081\nrls_confg: x\nrls_charge_al: true\n", []string{"f.yaml:1: grcp: unknown setting; did you mean grpc?", "f.yaml:2: rls_confg: unknown setting; did you mean rls_config?", "f.yaml:3: rls_charge_al: unknown setting; did you mean rls_charge_all?"}},
		{"a switch", "rls_charge_all: yes\n", []string{`f.yaml:1: rls_charge_all: "yes" is neither true nor false`}},
		{"store and data", "store: memory:\ndata: /var/lib/dipwell\n", []string{"f.yaml:1: data: store and data both name the place of the buckets"}},
		{"two limits of one name", login + "  - name: login\n    rate: 1\n    per: 1s\n", []string{"f.yaml:5: limits[1].name: there are two limits called login; the first one is in line 2"}},
		{"too large", login + "    burst: 9007199254740991\n", []string{"f.yaml:5: limits[0].burst: 9007199254740991 at 5 per 1m is too large to count exactly; at most"}},
		{"twice", "listen: a:1\nlisten: b:2\n", []string{"f.yaml:2: listen: is given twice; first in line 1"}},
		{"twice in a limit", login + "    rate: 6\n", []string{"f.yaml:5: limits[0].rate: is given twice; first in line 3"}},
		{"missing rate", "limits:\n  - name: a\n    per: 1m\n", []string{"f.yaml:2: limits[0].rate: is missing"}},
		{"missing all", "limits:\n  - {}\n", []string{"limits[0].name: is missing", "limits[0].rate: is missing", "limits[0].per: is missing"}},
		{"contradiction", login + "    start: 0s\n", []string{"f.yaml:5: limits[0].start: is for windows and intervals"}},
		{"leaky burst", login + "    algorithm: leaky_bucket\n    burst: 3\n", []string{"f.yaml:6: limits[0].burst: a leaky bucket"}},
		{"burst 0 without debt", login + "    burst: 0\n    max_debt: 0\n", []string{"f.yaml:5: limits[0].burst: 0 grants nothing"}},
		{"a bucket of a month", "limits:\n  - {name: a, rate: 1, per: 1mo}\n", []string{"f.yaml:2: limits[0].per: months and years are for windows"}},
		{"not a number", login + "    burst: many\n", []string{`f.yaml:5: limits[0].burst: "many" is not a whole number`}},
		{"a fraction", login + "    burst: 1.5\n", []string{`f.yaml:5: limits[0].burst: "1.5" is not a whole number`}},
		{"a negative", login + "    burst: -1\n", []string{`f.yaml:5: limits[0].burst: "-1" is not`}},
		{"yes is no boolean", login + "    auth: yes\n", []string{`f.yaml:5: limits[0].auth: "yes" is neither true nor false`}},
		{"a near algorithm", login + "    algorithm: fixed-window\n", []string{"f.yaml:5: limits[0].algorithm:", "did you mean fixed_window?"}},
		{"no zone", "limits:\n  - {name: a, algorithm: fixed_window, rate: 1, per: 1d, start: '06:00 Europe/Roma'}\n", []string{"f.yaml:2: limits[0].start:", "IANA"}},
		{"no value", "listen:\n", []string{"f.yaml:1: listen: has no value"}},
		{"an empty value", "listen: ''\n", []string{"f.yaml:1: listen: is empty"}},
		{"a list for a value", "listen: [a]\n", []string{"f.yaml:1: listen: must be one value"}},
		{"limits is no list", "limits: 5\n", []string{"f.yaml:1: limits: must be a list"}},
		{"limits by name", "limits:\n  login:\n    rate: 1\n", []string{"f.yaml:1: limits: must be a list"}},
		{"a limit is a word", "limits:\n  - login\n", []string{"f.yaml:2: limits[0]: must be settings such as {name: login, rate: 5, per: 1m}, not \"login\""}},
		{"a limit of a command line", "limits:\n  - login=5/1m\n", []string{"f.yaml:2: limits[0]: must be settings such as {name: login, rate: 5, per: 1m}, not \"login=5/1m\"; NAME=RATE/PER is for command lines"}},
		{"a limit is nothing", "limits:\n  -\n", []string{"f.yaml:2: limits[0]: must be settings such as {name: login, rate: 5, per: 1m}, not nothing"}},
		{"missing per", "limits:\n  - name: a\n    rate: 1\n", []string{"f.yaml:2: limits[0].per: is missing"}},
		{"an empty per", "limits:\n  - name: a\n    rate: 1\n    per: ''\n", []string{"f.yaml:4: limits[0].per: is missing"}},
		{"a typo with a list", "listen: x\ntrusted_proxis:\n  - 10.0.0.0/8\n", []string{"f.yaml:2: trusted_proxis: unknown setting"}},
		{"an owner", "owner: a b\nlimits: []\n", []string{`f.yaml:1: owner: "a b" is not 1 to 64 letters`}},
		{"a revision", "limits: []\nrevision: -1\n", []string{`f.yaml:2: revision: "-1" is not a whole number from 0`}},
		{"the file is a list", "- a\n", []string{"f.yaml:1: must be settings"}},
		{"not YAML", "limits:\n\t- a\n", []string{"f.yaml:2: "}},
		{"two documents", "listen: a:1\n---\nlisten: b:1\n", []string{"more than one document"}},
		{"a proxy", "trusted_proxies:\n  - 10.0.0.0/8\n  - 10.0.0.0/99\n", []string{`f.yaml:3: trusted_proxies[1]: "10.0.0.0/99" is neither`}},
		{"proxies", "trusted_proxies: 10.0.0.0/8\n", []string{"f.yaml:1: trusted_proxies: must be a list"}},
		{"headers", "headers: ITEF\n", []string{"f.yaml:1: headers: "}},
		{"max_key_bytes", "max_key_bytes: 100\n", []string{`f.yaml:1: max_key_bytes: "100" is not a whole number of at least 1024`}},
		{"max_keys", "max_keys: 0\n", []string{"f.yaml:1: max_keys: "}},
		{"deny_max_age", "deny_max_age: 2h\n", []string{`f.yaml:1: deny_max_age: "2h" is not a length of time such as 1s`}},
		{"admin_only", "admin_only: [metrics, limit]\n", []string{`f.yaml:1: admin_only[1]: "limit" is not one of metrics, limits; did you mean limits?`}},
		{"admin_only is no list", "admin_only: metrics\n", []string{"f.yaml:1: admin_only: must be a list"}},
		{"near", "rls_near_limit_ratio: 80\n", []string{`f.yaml:1: rls_near_limit_ratio: "80" is not a number above 0 and up to 1, such as 0.8`}},
		{"near is no number", "rls_near_limit_ratio: NaN\n", []string{"f.yaml:1: rls_near_limit_ratio: "}},
		{"shadow", "shadow: yes\n", []string{`f.yaml:1: shadow: "yes" is neither true nor false`}},
		{"labels", "metric_labels: [env]\n", []string{"f.yaml:1: metric_labels: must be settings"}},
		{"a per without unit", "limits:\n  - {name: a, rate: 5, per: 60}\n", []string{`f.yaml:2: limits[0].per: "60" is not a length of time such as 250ms, 1s, 1m, 1h, 1d or 1w: write 60s`}},
		{"a rate with its period", "limits:\n  - name: a\n    rate: 5/1m\n", []string{`f.yaml:3: limits[0].rate: "5/1m" is not a whole number from 0 to 2^53-1: write rate: 5 and per: 1m`}},
		{"a rate in words", "limits:\n  - name: a\n    rate: 5 per 15 minutes\n", []string{"write rate: 5 and per: 15m"}},
		{"a fraction", "limits:\n  - {name: a, rate: 0.5, per: 1s}\n", []string{"write rate: 1 and a per that is 2 times as long"}},
		{"thousands", "limits:\n  - {name: a, rate: 10k, per: 1day, burst: 10_000}\n", []string{"rate: \"10k\" is not a whole number from 0 to 2^53-1: write 10000", "write 1d", "burst: \"10_000\" is not a whole number from 0 to 2^53-1: write 10000"}},
		{"another program's names", "limits:\n  - {name: a, limit: 5, window: 60s, algorithm: fixed-window}\n", []string{"limit: unknown setting; did you mean rate?", "window: unknown setting; did you mean per?", "did you mean fixed_window?"}},
		{"all mistakes at once", "listne: x\n" + login + "    brust: 9\n  - name: b\n    rate: 0\n", []string{"f.yaml:1: listne", "f.yaml:6: limits[0].brust", "f.yaml:8: limits[1].rate"}},
		{"merge keys are no setting", "a: &a {rate: 1}\nlimits:\n  - <<: *a\n    name: b\n    per: 1s\n", []string{"f.yaml:1: a: unknown", "f.yaml:3: limits[0].<<: "}},
		{"a typo in adaptive", login + "    adaptive: {flor: 1, window: 1s}\n", []string{"f.yaml:5: limits[0].adaptive.flor: unknown setting; did you mean floor?"}},
		{"a number in adaptive", login + "    adaptive:\n      floor: 1\n      errors: many\n", []string{`f.yaml:7: limits[0].adaptive.errors: "many" is not a share`}},
		{"a bound in adaptive", login + "    adaptive:\n      floor: 9\n      window: 1s\n      errors: 2%\n", []string{"f.yaml:5: limits[0].adaptive: floor: 9 is not between 1 and the rate, 5 (limit login)"}},
		{"adaptive as a list", login + "    adaptive: [1]\n", []string{"f.yaml:5: limits[0].adaptive: must be"}},
		{"a typo in a plan", login + "    plans:\n      pro: {rat: 9}\n", []string{"f.yaml:6: limits[0].plans.pro.rat: unknown setting; did you mean rate?"}},
		{"a number in a plan", login + "    plans:\n      pro:\n        rate: 9\n        burst: many\n", []string{`f.yaml:8: limits[0].plans.pro.burst: "many" is not a whole number`}},
		{"a plan's burst", login + "    plans:\n      pro:\n        burst: 9007199254740991\n", []string{"f.yaml:5: limits[0].plans: plan pro: burst: 9007199254740991 at 5 per 1m is too large to count exactly; at most"}},
		{"a mode of a plan", login + "    plans:\n      pro: blokced\n", []string{"f.yaml:6: limits[0].plans.pro:", "did you mean blocked?"}},
		{"a plan that is a list", login + "    plans:\n      pro: [1]\n", []string{"f.yaml:6: limits[0].plans.pro: must be settings such as {rate: 600, burst: 1000}, or a mode such as blocked, not a list"}},
		{"plans as a list", login + "    plans: [pro]\n", []string{"f.yaml:5: limits[0].plans: must be settings"}},
		{"a plan's name", login + "    plans:\n      'a|b': blocked\n", []string{"f.yaml:5: limits[0].plans: the name of plan"}},
		{"a plan twice", login + "    plans:\n      pro: blocked\n      pro: unlimited\n", []string{"f.yaml:7: limits[0].plans.pro: is given twice; first in line 6"}},
		{"unlimited is for plans", login + "    mode: unlimited\n", []string{`f.yaml:5: limits[0].mode: "unlimited" is not one of enforce, shadow`}},
		{"a parent that is missing", login + "    parent: logni\n  - {name: top, rate: 1, per: 1s}\n", []string{"f.yaml:5: limits[0].parent: there is no limit logni"}},
		{"a circle", "limits:\n  - {name: a, rate: 1, per: 1s, parent: b}\n  - {name: b, rate: 1, per: 1s, parent: a}\n", []string{"f.yaml:2: limits[0].parent: limit b has this limit above it", "f.yaml:3: limits[1].parent: limit a has"}},
		{"parts below a parent", login + "    parent: top\n    parts: 1\n  - {name: top, rate: 1, per: 1s}\n", []string{"f.yaml:6: limits[0].parts: is for a limit without a parent"}},
		{"no parts", login + "    parts: 0\n", []string{"f.yaml:5: limits[0].parts: 0 is not between 1 and 16; a limit with one bucket for everybody is shared: true"}},
		{"a shared child", login + "    parent: top\n    shared: true\n  - {name: top, rate: 1, per: 1s}\n", []string{"f.yaml:6: limits[0].shared: is for a limit without a parent"}},
		{"shared parts", login + "    shared: true\n    parts: 2\n", []string{"f.yaml:5: limits[0].shared: is for a limit without parts"}},
		{"shared by a word", login + "    shared: yes please\n", []string{"f.yaml:5: limits[0].shared: "}},
		{"a rate of slots", "limits:\n  - {name: a, algorithm: concurrency, burst: 3, rate: 1, per: 1s}\n", []string{"f.yaml:2: limits[0].rate: is not for a concurrency limit"}},
		{"slots without a number", "limits:\n  - {name: a, algorithm: concurrency}\n", []string{"f.yaml:2: limits[0].burst: is missing"}},
		{"a year", login + "    ttl: 8760h\n", []string{"f.yaml:5: limits[0].ttl: 8760h0m0s is not between 1ms and 31d"}},
		{"lease", login + "    lease: 5ms\n", []string{"f.yaml:5: limits[0].lease: 5ms is not between 10ms and 1s"}},
		{"on_expire", login + "    on_expire: give_bak\n", []string{"f.yaml:5: limits[0].on_expire:", "did you mean give_back?"}},
		{"not UTF-8", "listen: \"\xff\"\n", []string{"f.yaml"}},
	} {
		_, err := config.Parse("f.yaml", []byte(tc.yaml))
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

// A mistake in the syntax is reported where the parser notices it: at its line, or after it if
// a colon or the end of a text or list is missing.
func TestLinesOfSyntax(t *testing.T) {
	for yaml, line := range map[string]string{
		"limits:\n  - name: a\n    rate: 1\n   per: 1m\n":                              "4",
		"limits:\n  - name: a\n  rate: 5\n":                                            "3",
		"listen: a\nlimits:\n  - {name: a, rate: 1\n  - {name: b}\n":                   "4",
		"listen: 'a\nlimits: []\nadmin: 1\n":                                           "4",
		"listen: a\nadmin: 'x\n\n\nlimits: []\n":                                       "6",
		"listen: a: b\n":                                                               "1",
		"listen: a\nstore: x: y\nadmin: b\n":                                           "2",
		"listen: a\n\n\nadmin: [a\nstore: x\n":                                         "5",
		"listen: a\nlimits:\n  - name: x\n    rate: *foo\n    per: 1m\n":               "4",
		"listen: x\nfoo\nadmin: z\n":                                                   "3",
		"listen: \"a\\qb\"\nadmin: z\n":                                                "1",
		"limits:\n- name: a\n  rate: 5\n  per 1m\n  burst: 3\n":                        "5",
		"limits:\n  - {name: a, rate: 1, per: 1s}\n  - {name: b, rate: 1, per: 1s}}\n": "3",
		"store: `x`\n":                   "1",
		"listen: x\r\nadmin: @x\r\na: b": "2",
		"listen: a:1\n---\nlimits: []\n": "2",
	} {
		_, err := config.Parse("f.yaml", []byte(yaml))
		if err == nil || !strings.HasPrefix(err.Error(), "f.yaml:"+line+": ") {
			t.Errorf("%q: %v, want line %s", yaml, err, line)
		}
	}
}

func TestErrorFields(t *testing.T) {
	_, err := config.Parse("f.yaml", []byte("\nlistne: x\n"))
	var e *config.YAMLError
	if !errors.As(err, &e) || e.File != "f.yaml" || e.Line != 2 || e.Setting != "listne" {
		t.Errorf("%+v", e)
	}
}

func TestAliases(t *testing.T) {
	f, err := config.Parse("f.yaml", []byte("limits:\n  - {name: a, rate: &r 5, per: 1m}\n  - {name: b, rate: *r, per: 1m}\n"))
	if err != nil || f.Limits[1].Rate != 5 {
		t.Error(f, err)
	}
}

func TestDenyMaxAge(t *testing.T) {
	for text, want := range map[string]time.Duration{"250ms": 250 * time.Millisecond, "1h": time.Hour, "0": -1, "0s": -1} {
		if f, err := config.Parse("f.yaml", []byte("deny_max_age: "+text)); err != nil || f.DenyMaxAge != want {
			t.Error(text, f, err)
		}
	}
	for _, bad := range []string{"-1s", "5", "1ns", "61m", "soon"} {
		if f, err := config.Parse("f.yaml", []byte("deny_max_age: "+bad)); err == nil {
			t.Error(bad, f)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	if _, err := config.Load(t.TempDir() + "/none.yaml"); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Error(err)
	}
	if _, err := config.Load(t.TempDir()); err == nil {
		t.Error("a directory was read")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("limits:\n  - {name: a, rate: 1, per: 1s}\n")
	f.Add("a: &a [*a]\nlimits: *a\n")
	f.Add("? [a]\n: b\n")
	f.Add("trusted_proxies: [&x 1, *x]")
	f.Fuzz(func(t *testing.T, yaml string) {
		file, err := config.Parse("f", []byte(yaml))
		if (file == nil) == (err == nil) {
			t.Error(file, err)
		}
	})
}

func TestTrustedProxies(t *testing.T) {
	for text, want := range map[string]string{"10.1.2.3/8": "10.0.0.0/8", "192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "fd00::1": "fd00::1/128", "fe80::1%eth0": "fe80::1/128"} {
		f, err := config.Parse("f.yaml", []byte("trusted_proxies: ['"+text+"']\nlimits: []\n"))
		if err != nil || len(f.TrustedProxies) != 1 || f.TrustedProxies[0].String() != want {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
	for _, bad := range []string{"", "10.0.0.0/33", "localhost", "10.0.0"} {
		if _, err := config.Parse("f.yaml", []byte("trusted_proxies: ['"+bad+"']\nlimits: []\n")); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestHeaders(t *testing.T) {
	for _, want := range []httplimit.Headers{httplimit.IETF, httplimit.XRateLimit, httplimit.NoHeaders} {
		f, err := config.Parse("f.yaml", []byte("headers: '"+string(want)+"'\nlimits: []\n"))
		if err != nil || f.Headers != want {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := config.Parse("f.yaml", []byte("headers: ITEF\nlimits: []\n")); err == nil {
		t.Error("ITEF was accepted")
	}
}
