package main

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/config"
)

// serveFlags returns a pointer to a struct for kong, with a field for each setting with a flag:
// []string if it can have several values, *bool for a switch, else string.
func serveFlags() any {
	var fields []reflect.StructField
	for _, s := range config.Settings {
		if s.Flag == "" {
			continue
		}
		t := reflect.TypeFor[string]()
		switch s.Type.Kind() {
		case reflect.Slice, reflect.Map:
			t = reflect.TypeFor[[]string]()
		case reflect.Bool:
			t = reflect.TypeFor[*bool]()
		}
		help := helpLink.ReplaceAllString(s.Tag.Get("help"), "$1")
		if absent := s.Absent(); absent != "" && t.Kind() != reflect.Pointer {
			help += " Default: " + strings.Trim(absent, "'") + "."
		}
		tag := fmt.Sprintf("name:%q env:%q placeholder:%q sep:%q help:%q", s.Flag, s.Variable(), s.Tag.Get("kind"), cmp.Or(s.Tag.Get("sep"), ","), help)
		fields = append(fields, reflect.StructField{Name: s.StructField.Name, Type: t, Tag: reflect.StructTag(tag)})
	}
	return reflect.New(reflect.StructOf(fields)).Interface()
}

// helpLink matches a link, for which --help shows its text.
var helpLink = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)

// given returns the values on the command line, else in the environment, without empty ones.
func (c *ServeCmd) given(s *config.Setting) (texts []string) {
	if len(c.Plugins) == 0 || s.Flag == "" {
		return nil
	}
	switch v := reflect.ValueOf(c.Plugins[0]).Elem().FieldByName(s.StructField.Name).Interface().(type) {
	case *bool:
		if v != nil {
			return []string{strconv.FormatBool(*v)}
		}
	case string:
		texts = []string{v}
	case []string:
		if texts = v; s.Tag.Get("sep") == ";" {
			texts = joinPlans(v)
		}
	}
	return slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return text == "" })
}
