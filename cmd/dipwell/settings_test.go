package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/dipwell/dipwell/internal/config"
)

// serveCommand is serve as the command line and the environment make it.
func serveCommand(t *testing.T, args ...string) *ServeCmd {
	t.Helper()
	c := &ServeCmd{Plugins: kong.Plugins{serveFlags()}}
	parser, err := kong.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

// settingSamples are two values of each setting that differ from its default. Settings
// that are not here take those of their type.
var settingSamples = map[string][2]string{
	"owner": {"a", "b"}, "limit": {"a=1/1s;b=2/1m,burst=7", "c=3/1h"}, "headers": {"off", "x-ratelimit"},
	"trusted_proxies": {"10.0.0.0/8,192.0.2.1", "::1"}, "admin_only": {"metrics,limits", "metrics"}, "open_listeners": {"listen,grpc", "admin"},
	"max_key_bytes": {"2048", "4096"}, "log_format": {"json", "text"}, "metric_labels": {"env=prod,cell=a=7", "env="},
}

func samplesOf(s *config.Setting) (first, second string) {
	texts, ok := settingSamples[s.Name]
	if !ok {
		texts = map[reflect.Kind][2]string{reflect.String: {"x:1", "y z"}, reflect.Bool: {"true", "false"}, reflect.Int: {"3", "4"},
			reflect.Int64: {"3", "4"}, reflect.Float64: {"0.25", "0.5"}}[s.Type.Kind()]
	}
	if s.Tag.Get("kind") == "TIME" {
		texts = [2]string{"3ms", "4s"}
	}
	return texts[0], texts[1]
}

// inYAML writes a value as a file has it.
func inYAML(s *config.Setting, text string) string {
	switch s.Type.Kind() {
	case reflect.Slice:
		return fmt.Sprintf("%s: ['%s']\n", s.Name, strings.ReplaceAll(text, ",", "', '"))
	case reflect.Map:
		var members []string
		for label := range strings.SplitSeq(text, ",") {
			name, value, _ := strings.Cut(label, "=")
			members = append(members, fmt.Sprintf("%s: '%s'", name, value))
		}
		return fmt.Sprintf("%s: {%s}\n", s.Name, strings.Join(members, ", "))
	}
	return fmt.Sprintf("%s: '%s'\n", s.Name, text)
}

// Every setting has one value, whichever way it is given, and flags come before
// the environment and that before the file.
func TestEverySettingEveryWay(t *testing.T) {
	value := func(s *config.Setting, f *config.File) any {
		return reflect.ValueOf(f).Elem().FieldByIndex(s.Index).Interface()
	}
	for _, s := range config.Settings {
		if s.Name == "limits" || s.Name == "callers" { // only a file has them, and config tests that
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			first, second := samplesOf(s)
			merged := func(file string, args ...string) any {
				t.Helper()
				set := &settings{File: *config.Defaults()}
				if file != "" {
					f, err := config.Parse("f.yaml", []byte(file))
					must(t, err)
					set.File = *f
				}
				must(t, serveCommand(t, args...).overwrite(set))
				return value(s, &set.File)
			}
			same := func(way string, got, want any) {
				t.Helper()
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s: %v, want %v", way, got, want)
				}
			}
			def := merged("")
			var want, other any
			if s.InFile {
				want, other = merged(inYAML(s, first)), merged(inYAML(s, second))
				if reflect.DeepEqual(want, def) || reflect.DeepEqual(want, other) {
					t.Fatalf("the file changes nothing: %v, %v, default %v", want, other, def)
				}
			}
			if s.Flag == "" {
				return
			}
			flag := func(text string) string { return "--" + s.Flag + "=" + text }
			if !s.InFile {
				want, other = merged("", flag(first)), merged("", flag(second))
			}
			same("flag", merged("", flag(first)), want)
			if reflect.DeepEqual(want, def) {
				t.Errorf("the flag changes nothing: %v", want)
			}
			file := ""
			if s.InFile {
				file = inYAML(s, first)
			}
			same("flag over file", merged(file, flag(second)), other)
			t.Setenv(s.Variable(), second)
			same("variable over file", merged(file), other)
			same("flag over variable", merged(file, flag(first)), want)
			t.Setenv(s.Variable(), first)
			same("variable", merged(""), want)
			if s.Type.Kind() != reflect.Bool {
				t.Setenv(s.Variable(), "")
				same("an empty variable", merged(file), map[bool]any{true: want, false: def}[s.InFile])
			}
		})
	}
}

// Only what needs a restart is named when a file is read again.
func TestRestart(t *testing.T) {
	for _, s := range config.Settings {
		before, after := config.Defaults(), config.Defaults()
		if got := config.Restart(before, after); got != nil {
			t.Fatal(got)
		}
		if s.Name == "callers" {
			after.Callers = []config.Caller{{Name: "a"}}
			if got := config.Restart(before, after); got != nil {
				t.Error(got)
			}
			continue
		}
		first, _ := samplesOf(s)
		if s.Name == "limits" {
			first = "a=1/1s"
		}
		must(t, s.Set(after, strings.FieldsFunc(first, func(r rune) bool { return r == ';' || r == ',' && s.Name != "limit" })...))
		if got := strings.Join(config.Restart(before, after), ","); s.Live && got != "" || !s.Live && got != s.Name {
			t.Errorf("%s, live %v: %q", s.Name, s.Live, got)
		}
	}
}

// A name that is unknown is in the error, with the one that is meant.
func TestUnknownNames(t *testing.T) {
	if code, _, stderr := program(t, "serve", "--max-key=1"); code != 2 || !strings.Contains(stderr, "unknown flag --max-key") || !strings.Contains(stderr, "--max-keys") {
		t.Error(code, stderr)
	}
	for _, s := range config.Settings {
		if wrong := s.Name + "s"; s.InFile && s.Name != "limits" {
			if _, err := config.Parse("f.yaml", []byte(wrong+": x\n")); err == nil || !strings.Contains(err.Error(), "f.yaml:1: "+wrong+": unknown setting; did you mean "+s.Name+"?") {
				t.Error(err)
			}
		}
	}
	for _, s := range []string{"wait_for_store", "limit"} { // settings that a file cannot have
		if _, err := config.Parse("f.yaml", []byte(s+": x\n")); err == nil || !strings.Contains(err.Error(), s+": unknown setting") {
			t.Error(err)
		}
	}
}

// Plans have semicolons too, which do not separate limits.
func TestJoinPlans(t *testing.T) {
	for _, text := range []string{
		"a=1/1s;b=2/1s",
		"a=1/1s,plans=pro:rate=2;burst=4|x:mode=blocked;callable=false,max_debt=5;burst=2/1s",
		"a=5/1s,adaptive=floor=1;latency=200ms;quantile=0.99;errors=2%;window=2s;b=1/1s",
		"a=1/1s,plans=pro:rate=2;b=1/1s,plans=pro:rate=2;per=1m;mode=shadow",
	} {
		want := strings.Count(text, "/1s")
		if limits, err := parseLimits(strings.Split(text, ";")); err != nil || len(limits) != want {
			t.Errorf("%s: %d limits, want %d: %v", text, len(limits), want, err)
		}
	}
	t.Setenv("DIPWELL_LIMIT", "")
	code, out, stderr := program(t, "take", "a", "k", "--store", "memory:", "--limit", "a=1/1s,plans=pro:rate=2;burst=4;b=1/1s", "--plan", "pro")
	if code != 0 || !strings.Contains(out, "3 of 4 remaining") {
		t.Error(code, out, stderr)
	}
}
