package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"go.yaml.in/yaml/v3"
)

// File is what a configuration file says. An absent setting is empty.
type File struct {
	Owner    string // of its limits; "" is dipwell.MainOwner
	Revision int64  // a store that has seen a higher one of this owner takes nothing from the file
	Digest   string // of the file's bytes

	Store          string   // URL of the store
	Data           string   // directory to keep the buckets in, in place of Store
	Listen         string   // address of the service
	Admin          string   // address for admin calls
	AdminTokenFile string   // holds the admin token
	AdminOnly      []string // what else the admin listener alone answers: metrics, limits
	Upstream       string   // URL to be a reverse proxy of
	By             string   // whose bucket a proxied request takes from: ip, shared, header:NAME
	UpstreamTimes  UpstreamTimes
	UpstreamIdle   int           // idle connections to the upstream that are kept
	MaxKeys        int           // keys that the in-process store may hold
	DenyMaxAge     time.Duration // how long a refusal is believed without asking a store outside this process; negative: not at all
	MaxInFlight    int           // calls under way at one time
	TLSCert        string        // PEM, the chain of the listeners
	TLSKey         string        // PEM, its key
	ClientCA       string        // PEM, who signs the certificates of clients
	KeySecretFile  string        // holds the secret under which keys are stored as hashes
	OTLPEndpoint   string        // URL of a collector of traces
	LogRefusals    *int          // refusals that are logged a second; nil: the default
	LogFormat      string        // text or json

	GRPC               string  // address of the gRPC listener
	RLSConfig          string  // descriptors of the RateLimitService, a file or a directory
	RLSHeaders         string  // header fields that the proxy is told to add
	RLSChargeAll       bool    // charge every descriptor, also when another is over
	RLSAllowOverride   bool    // requests may bring limits of their own
	RLSMergeDomains    bool    // several files may be about one domain
	RLSNearLimit       float64 // share of a limit above which hits count as near it; 0: the default
	RLSLimitHeader     string  // names of the header fields of rls_headers: ratelimit
	RLSRemainingHeader string
	RLSResetHeader     string

	Shadow       bool              // refuse nothing
	MetricLabels map[string]string // on every metric

	Headers        httplimit.Headers
	TrustedProxies []netip.Prefix
	Limits         []dipwell.Limit // nil: the file has no setting limits
}

// UpstreamTimes are how long to wait for an upstream; zero: the default.
type UpstreamTimes struct {
	Dial, TLS, Header, Idle time.Duration
}

// settings are the names at the top of a file.
var settings = []string{"owner", "revision", "store", "data", "listen", "admin", "admin_token_file", "admin_only", "upstream", "by",
	"upstream_dial_timeout", "upstream_tls_timeout", "upstream_header_timeout", "upstream_idle_timeout", "upstream_idle_connections", "max_keys", "deny_max_age", "max_in_flight", "tls_cert", "tls_key", "client_ca",
	"key_secret_file", "otlp_endpoint", "log_refusals", "log_format", "grpc", "rls_config", "rls_headers", "rls_charge_all", "rls_allow_override", "rls_merge_domains",
	"rls_near_limit_ratio", "rls_limit_header", "rls_remaining_header", "rls_reset_header", "shadow", "metric_labels", "headers", "trusted_proxies", "limits"}

// Bounds of a file.
const (
	maxSize   = 4 << 20
	maxLimits = 10000
)

// Error is one mistake in a file.
type Error struct {
	File    string
	Line    int    // 0: the file as a whole
	Setting string // as "listen" or "limits[2].burst"; empty where there is none
	Reason  string
}

func (e *Error) Error() string {
	s := e.File
	if e.Line > 0 {
		s += ":" + strconv.Itoa(e.Line)
	}
	if e.Setting != "" {
		s += ": " + e.Setting
	}
	return s + ": " + e.Reason
}

// Load reads a file. The error has all mistakes, each an *Error on a line of its own.
func Load(path string) (*File, error) {
	b, err := Read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, b)
}

// Read returns a file's bytes, at most 4 MiB.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if len(b) > maxSize {
		return nil, &Error{File: path, Reason: "has more than 4 MiB"}
	}
	return b, nil
}

// Parse reads the bytes of a file that is called name in errors.
func Parse(name string, b []byte) (*File, error) {
	p := parser{name: name}
	p.Digest = digest(b)
	p.document(b)
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return &p.File, nil
}

type parser struct {
	File
	name string
	errs []error
}

func (p *parser) fail(n *yaml.Node, setting, format string, args ...any) {
	line := 0
	if n != nil {
		line = n.Line
	}
	p.errs = append(p.errs, &Error{p.name, line, setting, fmt.Sprintf(format, args...)})
}

// digest identifies the bytes of a file: half of their SHA-256.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// DigestOf returns the digest of a file as it is now.
func DigestOf(path string) (string, error) {
	b, err := Read(path)
	if err != nil {
		return "", err
	}
	return digest(b), nil
}

// bareMemory is `store: memory:` without quotes. YAML takes the second colon for
// a mapping, but nobody who writes it means one.
var bareMemory = regexp.MustCompile(`(?m)^([ \t]*store:[ \t]+)memory:([ \t\r]*(?:#.*)?)$`)

const emptyFile = "is empty; a service without limits says limits: []"

func (p *parser) document(b []byte) {
	b = bareMemory.ReplaceAll(b, []byte(`$1"memory:"$2`))
	in := &lineReader{rest: b}
	dec := yaml.NewDecoder(in)
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		p.fail(nil, "", emptyFile)
		return
	case err != nil:
		p.errs = append(p.errs, syntaxError(p.name, b, in.lines, err))
		return
	}
	p.top(doc.Content[0])
	if p.Store != "" && p.Data != "" {
		p.fail(doc.Content[0], "data", "store and data both say where the buckets are kept; give one")
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		p.errs = append(p.errs, &Error{File: p.name, Line: in.lines, Reason: "has more than one document"})
	}
}

func (p *parser) top(n *yaml.Node) {
	if n.Tag == "!!null" || n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		p.fail(nil, "", emptyFile)
		return
	}
	p.mapping(n, "", func(name string, value *yaml.Node) {
		switch name {
		case "limits":
			p.limits(value)
		case "trusted_proxies":
			p.proxies(value)
		case "admin_only":
			p.adminOnly(value)
		case "metric_labels":
			p.metricLabels(value)
		default:
			p.setting(name, value)
		}
	})
}

// mapping calls f for each member of a mapping, once.
func (p *parser) mapping(n *yaml.Node, where string, f func(name string, value *yaml.Node)) {
	if n = deref(n); n.Kind != yaml.MappingNode {
		p.fail(n, strings.TrimSuffix(where, "."), "must be settings, one a line, as in 'listen: 127.0.0.1:8080'")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], *deref(n.Content[i+1])
		value.Line = name.Line // a value may begin on a later one
		if line, ok := seen[name.Value]; ok {
			p.fail(name, where+name.Value, "is given twice; first in line %d", line)
			continue
		}
		seen[name.Value] = name.Line
		f(name.Value, &value)
	}
}

func deref(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.AliasNode {
		return n
	}
	there := *n.Alias
	there.Line = n.Line // a mistake is where the value is used
	return &there
}

// scalar returns a value's text.
func (p *parser) scalar(name string, n *yaml.Node) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		p.fail(n, name, "must be one value")
	case n.Tag == "!!null":
		p.fail(n, name, "has no value; leave the line out for the default")
	default:
		return n.Value, true
	}
	return "", false
}

func (p *parser) setting(name string, n *yaml.Node) {
	texts := map[string]*string{"owner": &p.Owner, "store": &p.Store, "data": &p.Data, "grpc": &p.GRPC, "rls_config": &p.RLSConfig, "listen": &p.Listen, "admin": &p.Admin,
		"admin_token_file": &p.AdminTokenFile, "upstream": &p.Upstream, "by": &p.By,
		"tls_cert": &p.TLSCert, "tls_key": &p.TLSKey, "client_ca": &p.ClientCA, "key_secret_file": &p.KeySecretFile, "otlp_endpoint": &p.OTLPEndpoint,
		"rls_limit_header": &p.RLSLimitHeader, "rls_remaining_header": &p.RLSRemainingHeader, "rls_reset_header": &p.RLSResetHeader}
	to := texts[name]
	if to == nil && !slices.Contains(settings, name) {
		p.fail(n, name, "unknown setting%s", dipwell.Suggest(name, settings))
		return
	}
	value, ok := p.scalar(name, n)
	if !ok {
		return
	}
	var err error
	times := map[string]*time.Duration{"upstream_dial_timeout": &p.UpstreamTimes.Dial, "upstream_tls_timeout": &p.UpstreamTimes.TLS,
		"upstream_header_timeout": &p.UpstreamTimes.Header, "upstream_idle_timeout": &p.UpstreamTimes.Idle}[name]
	yesNo := map[string]*bool{"rls_charge_all": &p.RLSChargeAll, "rls_allow_override": &p.RLSAllowOverride, "rls_merge_domains": &p.RLSMergeDomains, "shadow": &p.Shadow}[name]
	switch {
	case to != nil && value == "":
		p.fail(n, name, "is empty")
	case name == "owner":
		p.Owner, err = value, checkOwner(value)
	case name == "revision":
		p.Revision, err = revision(value)
	case to != nil:
		*to = value
	case yesNo != nil:
		if *yesNo = value == "true"; !*yesNo && value != "false" {
			p.fail(n, name, "%q is neither true nor false", value)
		}
	case times != nil:
		*times, err = ParseTimeout(value)
	case name == "upstream_idle_connections":
		p.UpstreamIdle, err = number(value, 1)
	case name == "rls_near_limit_ratio":
		p.RLSNearLimit, err = ParseRatio(value)
	case name == "rls_headers":
		p.RLSHeaders, err = value, CheckRLSHeaders(value)
	case name == "headers":
		p.Headers, err = httplimit.ParseHeaders(value)
	case name == "deny_max_age":
		p.DenyMaxAge, err = ParseDenyMaxAge(value)
	case name == "log_format":
		p.LogFormat, err = value, CheckLogFormat(value)
	case name == "log_refusals":
		var n int
		n, err = number(value, 0)
		p.LogRefusals = &n
	case name == "max_in_flight":
		p.MaxInFlight, err = number(value, 1)
	default:
		p.MaxKeys, err = number(value, 1)
	}
	if err != nil {
		p.fail(n, name, "%v", err)
	}
}

// ownerName is what may follow "file:" in the owner of a limit.
var ownerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func checkOwner(value string) error {
	if !ownerName.MatchString(value) {
		return fmt.Errorf("%q is not 1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit", value)
	}
	return nil
}

func revision(value string) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 || n > dipwell.MaxInt {
		return 0, fmt.Errorf("%q is not a whole number from 0 to 2^53-1", value)
	}
	return n, nil
}

func number(value string, least int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < least {
		return 0, fmt.Errorf("%q is not a whole number of at least %d", value, least)
	}
	return n, nil
}

// CheckLogFormat says what is wrong with a format of the log.
func CheckLogFormat(value string) error {
	if value != "text" && value != "json" {
		return fmt.Errorf("%q is not one of text, json", value)
	}
	return nil
}

var rlsHeaders = []string{"off", "ratelimit", "ietf"}

// CheckRLSHeaders says what is wrong with a kind of header fields.
func CheckRLSHeaders(value string) error {
	if !slices.Contains(rlsHeaders, value) {
		return fmt.Errorf("%q is not one of off, ratelimit, ietf%s", value, dipwell.Suggest(value, rlsHeaders))
	}
	return nil
}

// Bounds of a timeout.
const (
	minTimeout = time.Millisecond
	maxTimeout = 24 * time.Hour
)

// ParseTimeout reads how long to wait for something.
func ParseTimeout(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < minTimeout || d > maxTimeout {
		return 0, fmt.Errorf("%q is not a length of time such as 5s, from 1ms to 24h", value)
	}
	return d, nil
}

// maxDenyMaxAge is what the cache of refusals takes at most.
const maxDenyMaxAge = time.Hour

// ParseDenyMaxAge reads how long a refusal is believed: 250ms, 5s, or 0 for not
// at all, which is negative here because the zero setting is the default.
func ParseDenyMaxAge(value string) (time.Duration, error) {
	if value == "0" || value == "0s" {
		return -1, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Microsecond || d > maxDenyMaxAge {
		return 0, fmt.Errorf("%q is not a length of time such as 1s, from 1µs to 1h, or 0 for none", value)
	}
	return d, nil
}

func (p *parser) proxies(n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		p.fail(n, "trusted_proxies", "must be a list such as [10.0.0.0/8]")
		return
	}
	for i, item := range n.Content {
		where := fmt.Sprintf("trusted_proxies[%d]", i)
		if value, ok := p.scalar(where, deref(item)); ok {
			prefixes, err := httplimit.ParseProxies([]string{value})
			if err != nil {
				p.fail(item, where, "%v", err)
			}
			p.TrustedProxies = append(p.TrustedProxies, prefixes...)
		}
	}
}

var adminOnly = []string{"metrics", "limits"}

// CheckAdminOnly says what is wrong with what only the admin listener answers.
func CheckAdminOnly(what string) error {
	if !slices.Contains(adminOnly, what) {
		return fmt.Errorf("%q is not one of metrics, limits%s", what, dipwell.Suggest(what, adminOnly))
	}
	return nil
}

func (p *parser) adminOnly(n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		p.fail(n, "admin_only", "must be a list such as [metrics, limits]")
		return
	}
	for i, item := range n.Content {
		where := fmt.Sprintf("admin_only[%d]", i)
		if value, ok := p.scalar(where, deref(item)); ok {
			if err := CheckAdminOnly(value); err != nil {
				p.fail(item, where, "%v", err)
			}
			p.AdminOnly = append(p.AdminOnly, value)
		}
	}
}

func (p *parser) metricLabels(n *yaml.Node) {
	p.MetricLabels = map[string]string{}
	p.mapping(n, "metric_labels.", func(name string, value *yaml.Node) {
		p.MetricLabels[name], _ = p.scalar("metric_labels."+name, value)
	})
}

// ParseRatio reads a share above 0 and up to 1.
func ParseRatio(value string) (float64, error) {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f > 0 && f <= 1) {
		return 0, fmt.Errorf("%q is not a number above 0 and up to 1, such as 0.8", value)
	}
	return f, nil
}
