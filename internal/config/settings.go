package config

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/texts"
)

// File has the settings of a service, from its configuration file, environment and flags.
//
// The type File is also the table of the settings. A field with a name is a
// setting. The parser of the file, the flags, the environment, --help, the comparison of
// a reload and the tables of docs/ are made from the fields' tags and types:
//
//	name     in the file. The flag is --name with dashes, the variable DIPWELL_NAME
//	flag     the flag's name if it differs
//	in       "file" or "flag" (and variable), if it is only there
//	kind     placeholder of the value in --help
//	default  the default value
//	unset    in words, the meaning of the zero value
//	live     "yes" if a change takes effect without a restart
//	oneof    all values, separated by commas
//	min, max bounds of a number or a time
//	off      "0" if 0 is allowed too; the field is then negative
//	pattern  a regular expression; want describes it in errors
//	secret   "yes" if errors must not have the value
//	sep      separator of a list on the command line; default a comma
//	help     one line, in which 'x' is code and [text](page.md) a link from docs/reference/
type File struct {
	Digest string // digest of the file
	Lines  []int  // of Limits

	Owner    string `name:"owner" in:"file" unset:"'main'" live:"yes" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" want:"1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit" help:"[Who owns the limits](configuration.md#who-owns-a-limit) of the file."`
	Revision int64  `name:"revision" in:"file" default:"0" live:"yes" min:"0" max:"9007199254740991" help:"Counts up with each change of the file. A file is ignored if the store has seen a higher revision from the same owner."`

	Store        string `name:"store" kind:"URL" unset:"'memory:'" help:"Where the [buckets are kept](stores.md)."`
	Data         string `name:"data" kind:"DIR" help:"A directory to keep the buckets in, in place of a store: [the file 'dipwell.db'](file.md) in it."`
	WaitForStore bool   `name:"wait_for_store" in:"flag" default:"false" help:"Start also when the store refuses the role or the database, and try again."`
	Listen       string `name:"listen" kind:"ADDR" default:"127.0.0.1:8080" help:"Address of the service."`
	Admin        string `name:"admin" kind:"ADDR" help:"Address of a second listener. It alone then answers admin calls."`

	FlagLimits []dipwell.Limit `name:"limit" in:"flag" kind:"LIMIT" sep:";" help:"A limit, 'NAME=RATE/PER,SETTING=VALUE,...'. Repeat it, or separate limits by semicolons."`
	Limits     []dipwell.Limit `name:"limits" in:"file" live:"yes" help:"The [limits](configuration.md#a-limits-settings). A service without limits says 'limits: []'."` // nil if the file does not have it

	Headers        httplimit.Headers `name:"headers" kind:"KIND" default:"ietf" live:"yes" oneof:"ietf,x-ratelimit,off" help:"Header fields that announce limits: 'ietf', 'x-ratelimit' or 'off'."`
	TrustedProxies []netip.Prefix    `name:"trusted_proxies" kind:"CIDR" unset:"nobody's" live:"yes" help:"Whose 'X-Forwarded-For' is believed: a list of addresses and prefixes."`
	MaxKeys        int               `name:"max_keys" kind:"N" unset:"10485760; of a fallback 1048576" min:"1" help:"Keys that a store in this process may hold."`
	MaxKeyBytes    int64             `name:"max_key_bytes" kind:"N" unset:"64 × max_keys, at most 268435456" min:"1024" help:"Bytes that a store in this process may use for the keys of limits with 'keys: list'; beyond it new keys fail."`
	MaxHolds       int               `name:"max_holds" kind:"N" unset:"50000" min:"1" help:"Live holds that a store in this process may have."`
	MaxOverrides   int               `name:"max_overrides" kind:"N" unset:"131072" min:"1" help:"Overrides that a store in this process may have, and as many blocked keys."`
	DenyMaxAge     time.Duration     `name:"deny_max_age" kind:"TIME" default:"1s" min:"1µs" max:"1h" off:"0" help:"How long a refusal is remembered, so that the store is not asked again, up to 1h; 0: not at all. Tokens that another process gives back are noticed after at most this time."`
	MaxInFlight    int               `name:"max_in_flight" kind:"N" default:"8192" live:"yes" min:"1" help:"Calls in flight at one time; more are answered 503 with 'Retry-After'."`

	AdminTokenFile string   `name:"admin_token_file" kind:"FILE" live:"yes" help:"File with the token of [admin calls](http.md#admin-calls); or set DIPWELL_ADMIN_TOKEN."`
	Callers        []Caller `name:"callers" in:"file" live:"yes" unset:"anybody who reaches the service" help:"[Who may call](../how-to/callers.md): a list of '{name, token_file or token_sha256, role, limits}'."`
	OpenListeners  []string `name:"open_listeners" kind:"LISTENER" unset:"none" oneof:"listen,admin,grpc" help:"Listeners that answer '/v1/auth', '/json' and Envoy's RateLimitService without a token although there are 'callers': a list of 'listen', 'admin' and 'grpc'."`
	AdminOnly      []string `name:"admin_only" kind:"WHAT" oneof:"metrics,limits" help:"What else the admin listener alone answers: a list of 'metrics' and 'limits' (reading definitions)."`

	Upstream           string `name:"upstream" kind:"URL" help:"Be a [rate-limiting reverse proxy](http.md#a-rate-limiting-reverse-proxy) of this URL. The API is then on the admin listener."`
	By                 string `name:"by" kind:"WHAT" unset:"'ip'" help:"The key of a proxied request: 'ip', 'header:NAME', or 'shared' if all limits are shared."`
	UpstreamPlanHeader string `name:"upstream_plan_header" kind:"NAME" help:"Header field with the [plan](../how-to/limits-by-plan.md) of a proxied request. A proxy in front must set or remove it."`
	UpstreamFloor      int64  `name:"upstream_floor" kind:"N" default:"0" min:"0" max:"9007199254740991" help:"Tokens that a proxied request must leave free, for other callers of the same limits."`

	GRPC               string  `name:"grpc" kind:"ADDR" help:"Address of a [gRPC listener](grpc.md): Envoy's RateLimitService, and the verbs of the HTTP API."`
	RLSConfig          string  `name:"rls_config" kind:"PATH" help:"Descriptors of the RateLimitService: a file, or a directory with all files in it and below, except those that begin with a dot. A change takes effect at once."`
	RLSChargeAll       bool    `name:"rls_charge_all" default:"false" help:"Charge every descriptor of a request even when another is over its limit, as [envoyproxy/ratelimit](grpc.md#coming-from-envoyproxyratelimit) does."`
	RLSAllowOverride   bool    `name:"rls_allow_override" default:"false" help:"Requests may bring limits of their own, in every known domain; otherwise only where the descriptors say 'allow_override'."`
	RLSMergeDomains    bool    `name:"rls_merge_domains" default:"false" help:"Several files may be about one domain."`
	RLSHeaders         bool    `name:"rls_headers" default:"false" help:"Tell the proxy to add RateLimit-Limit, -Remaining and -Reset."`
	RLSNearLimit       float64 `name:"rls_near_limit_ratio" kind:"N" default:"0.8" help:"Share of a limit above which hits count as near it."`
	RLSLimitHeader     string  `name:"rls_limit_header" kind:"NAME" unset:"'RateLimit-Limit'" help:"Name of the field with the limit, of 'rls_headers'."`
	RLSRemainingHeader string  `name:"rls_remaining_header" kind:"NAME" unset:"'RateLimit-Remaining'" help:"Name of the field with what remains."`
	RLSResetHeader     string  `name:"rls_reset_header" kind:"NAME" unset:"'RateLimit-Reset'" help:"Name of the field with the seconds until the reset."`

	TLSCert       string            `name:"tls_cert" kind:"FILE" help:"Certificate chain (PEM): all listeners but a loopback admin then speak TLS. A change of the file takes effect at once."`
	TLSKey        string            `name:"tls_key" kind:"FILE" help:"Private key (PEM) of the certificate."`
	ClientCA      string            `name:"client_ca" kind:"FILE" help:"Authorities (PEM): only clients with a certificate from one of them may connect."`
	KeySecretFile string            `name:"key_secret_file" kind:"FILE" help:"Store keys as [HMAC-SHA-256](../how-to/operations.md#keys-that-nobody-may-read) under the secret in this file, at least 16 bytes; or set DIPWELL_KEY_SECRET."`
	OTLPEndpoint  string            `name:"otlp_endpoint" kind:"URL" help:"Send OpenTelemetry traces to this collector (OTLP over HTTP, as 'http://127.0.0.1:4318'), as OTEL_EXPORTER_OTLP_ENDPOINT does."`
	LogRefusals   int               `name:"log_refusals" kind:"N" default:"1" min:"0" max:"1000" help:"Refusals that are logged a second, 0 to 1000, keys as the beginning of a hash."`
	TopKeys       int               `name:"top_keys" kind:"N" default:"20" min:"0" max:"100" help:"How many of [the busiest and most refused keys](../how-to/operations.md#who-is-it-dipwell-top) of each hour the store keeps for a week."`
	LogFormat     string            `name:"log_format" kind:"KIND" default:"text" oneof:"text,json" help:"Format of the log on standard error: 'text' or 'json'."`
	Shadow        bool              `name:"shadow" default:"false" help:"[Refuse nothing](../how-to/operations.md#shadow-mode): answers, metrics and the log say what would have been refused."`
	MetricLabels  map[string]string `name:"metric_labels" flag:"metric-label" kind:"NAME=VALUE" help:"Labels that every metric carries, at most 16: '{env: prod}'. As a flag 'env=prod', repeated or separated by commas."`
}

// Settings are the rows of the table of settings, in order.
var Settings = rows(reflect.TypeFor[File]())

type Setting struct {
	reflect.StructField // of File
	Name, Flag          string
	InFile, Live        bool

	parse func(tag reflect.StructTag, text string) (any, error)
}

func rows(t reflect.Type) (out []*Setting) {
	for _, f := range reflect.VisibleFields(t) {
		name, value := f.Tag.Get("name"), f.Type
		if name == "" {
			continue
		}
		if value.Kind() == reflect.Slice || value.Kind() == reflect.Map {
			value = value.Elem()
		}
		s := &Setting{StructField: f, Name: name, Flag: f.Tag.Get("flag"), InFile: f.Tag.Get("in") != "flag", Live: f.Tag.Get("live") != "", parse: parsers[value]}
		if s.parse == nil && value != reflect.TypeFor[Caller]() { // only a file can have callers
			panic("no parser for the setting " + name)
		}
		switch {
		case f.Tag.Get("in") == "file":
			s.Flag = ""
		case s.Flag == "":
			s.Flag = strings.ReplaceAll(name, "_", "-")
		}
		out = append(out, s)
	}
	return out
}

// Variable returns the name of the setting's environment variable, or "".
func (s *Setting) Variable() string {
	if s.Flag == "" {
		return ""
	}
	return "DIPWELL_" + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))
}

// Absent returns the default of a setting in words, or "" if it is off by default.
func (s *Setting) Absent() string {
	if text := s.Tag.Get("default"); text != "" {
		return "'" + text + "'"
	}
	return s.Tag.Get("unset")
}

func Defaults() *File {
	f := &File{}
	for _, s := range Settings {
		if text := s.Tag.Get("default"); text != "" {
			if err := s.Set(f, text); err != nil {
				panic(err)
			}
		}
	}
	return f
}

// Restart returns the names of the settings that differ and need a restart.
func Restart(a, b *File) (names []string) {
	for _, s := range Settings {
		if !s.Live && !reflect.DeepEqual(s.of(a).Interface(), s.of(b).Interface()) {
			names = append(names, s.Name)
		}
	}
	return names
}

// Set parses texts and sets the setting in f. A list can have any number of texts, labels
// are NAME=VALUE each, any other setting has one text. The error names the setting.
func (s *Setting) Set(f *File, texts ...string) error {
	s.of(f).SetZero()
	for _, text := range texts {
		name, ok := "", true
		if s.Type.Kind() == reflect.Map {
			name, text, ok = strings.Cut(text, "=")
		}
		if !ok {
			return fmt.Errorf("%s: %q is not %s", s.Name, name, s.Tag.Get("kind"))
		}
		if err := s.add(f, name, text); err != nil {
			if _, ok := errors.AsType[*dipwell.FieldError](err); ok { // the error already names the limit
				return err
			}
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

// add sets the setting in the struct to, appends to a list, or sets the label name.
func (s *Setting) add(to any, name, text string) error {
	v, err := s.parse(s.Tag, text)
	if err != nil {
		return err
	}
	field, value := s.of(to), reflect.ValueOf(v)
	switch field.Kind() {
	case reflect.Slice:
		field.Set(reflect.Append(field, value))
	case reflect.Map:
		if field.IsNil() {
			field.Set(reflect.MakeMap(field.Type()))
		}
		field.SetMapIndex(reflect.ValueOf(name), value)
	default:
		field.Set(value.Convert(field.Type()))
	}
	return nil
}

func (s *Setting) of(in any) reflect.Value { return reflect.ValueOf(in).Elem().FieldByIndex(s.Index) }

// parsers parse a value by the type of the field or of its elements.
var parsers = map[reflect.Type]func(tag reflect.StructTag, text string) (any, error){
	reflect.TypeFor[string]():            parseText,
	reflect.TypeFor[bool]():              parseSwitch,
	reflect.TypeFor[int]():               parseWhole,
	reflect.TypeFor[int64]():             parseWhole,
	reflect.TypeFor[float64]():           parseShare,
	reflect.TypeFor[time.Duration]():     parseTime,
	reflect.TypeFor[httplimit.Headers](): parseText,
	reflect.TypeFor[dipwell.Limit]():     func(_ reflect.StructTag, text string) (any, error) { return dipwell.ParseLimit(text) },
	reflect.TypeFor[netip.Prefix]():      func(_ reflect.StructTag, text string) (any, error) { return ParseProxy(text) },
}

func parseText(tag reflect.StructTag, text string) (any, error) {
	if list := tag.Get("oneof"); list != "" {
		if known := strings.Split(list, ","); !slices.Contains(known, text) {
			return nil, fmt.Errorf("%q is not one of %s%s", text, strings.Join(known, ", "), texts.Nearest(text, known))
		}
	}
	if pattern := tag.Get("pattern"); pattern != "" && !regexp.MustCompile(pattern).MatchString(text) {
		if tag.Get("secret") != "" { // the text may be the secret itself
			return nil, errors.New("is not " + tag.Get("want"))
		}
		return nil, fmt.Errorf("%q is not %s", text, tag.Get("want"))
	}
	return text, nil
}

func parseSwitch(_ reflect.StructTag, text string) (any, error) {
	if text != "true" && text != "false" {
		return nil, fmt.Errorf("%q is neither true nor false", text)
	}
	return text == "true", nil
}

func parseWhole(tag reflect.StructTag, text string) (any, error) {
	least, _ := strconv.ParseInt(tag.Get("min"), 10, 64)
	n, err := strconv.ParseInt(text, 10, 64)
	if tag.Get("max") == "" {
		if err != nil || n < least || int64(int(n)) != n {
			return nil, fmt.Errorf("%q is not a whole number of at least %d", text, least)
		}
		return n, nil
	}
	if most, _ := strconv.ParseInt(tag.Get("max"), 10, 64); err != nil || n < least || n > most {
		return nil, fmt.Errorf("%q is not a whole number from %d to %d", text, least, most)
	}
	return n, nil
}

func parseShare(_ reflect.StructTag, text string) (any, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0 && f <= 1) {
		return nil, fmt.Errorf("%q is not a number above 0 and up to 1, such as 0.8", text)
	}
	return f, nil
}

func parseTime(tag reflect.StructTag, text string) (any, error) {
	least, _ := time.ParseDuration(tag.Get("min"))
	most, _ := time.ParseDuration(tag.Get("max"))
	d, err := period.ParseSetting(text)
	off := ""
	if tag.Get("off") != "" {
		if off = ", or 0 for none"; err == nil && d == 0 {
			return time.Duration(-1), nil
		}
	}
	if err != nil || d < least || d > most {
		return nil, fmt.Errorf("%q is not a length of time such as %s, from %s to %s%s", text, tag.Get("default"), tag.Get("min"), tag.Get("max"), off)
	}
	return d, nil
}

// ParseProxy parses a CIDR prefix, or an address as the prefix of that address.
func ParseProxy(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a prefix such as 10.0.0.0/8", text)
	}
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen()), nil
}
