package config_test

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/config"
)

const chart = "../../deploy/helm/dipwell/values.schema.json"

var link = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)

// TestDocsChart writes, with -update, the schema of the Helm chart's values from the table
// of settings, and otherwise compares them. The chart gives the addresses of listeners
// itself and the store from a secret, so the schema does not have them; probes have no
// client certificate.
func TestDocsChart(t *testing.T) {
	inChart := []string{"store", "data", "listen", "admin", "admin_only", "grpc", "client_ca"}
	properties := map[string]any{}
	for _, s := range config.Settings {
		if s.InFile && !slices.Contains(inChart, s.Name) {
			properties[s.Name] = jsonSchema(s)
		}
	}
	object := func(of map[string]any) map[string]any {
		return map[string]any{"type": "object", "additionalProperties": false, "properties": of}
	}
	text, list, anything := map[string]any{"type": "string"}, map[string]any{"type": "array"}, map[string]any{"type": "object"}
	texts := map[string]any{"type": "object", "additionalProperties": text}
	flag := map[string]any{"type": "boolean"}
	file := object(properties)
	file["required"] = []string{"limits"}
	schema := object(map[string]any{
		"replicas":       map[string]any{"type": "integer", "minimum": 1},
		"image":          object(map[string]any{"repository": text, "tag": text, "pullSecrets": list}),
		"podAnnotations": texts,
		"config":         file,
		"secret":         object(map[string]any{"name": text, "variables": texts}),
		"files":          text,
		"resources":      anything,
		"nodeSelector":   texts,
		"tolerations":    list,
		"networkPolicy":  object(map[string]any{"enabled": flag, "callers": list, "monitoringNamespace": text, "ports": map[string]any{"type": "array", "items": map[string]any{"type": "integer"}}}),
		"serviceMonitor": object(map[string]any{"enabled": flag, "labels": texts, "tlsConfig": anything}),
		"global":         anything,
	})
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(chart, want.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(chart); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what the settings say: go generate ./internal/config (%v)", chart, err)
	}
}

// jsonSchema returns the schema of a setting. Texts may also be numbers, as in YAML.
func jsonSchema(s *config.Setting) map[string]any {
	schema := map[string]any{"description": code(link.ReplaceAllString(s.Tag.Get("help"), "$1"))}
	typ := s.Type
	switch {
	case s.Name == "limits":
		schema["type"], schema["items"] = "array", map[string]any{"type": "object", "required": []string{"name"}}
	case typ.Kind() == reflect.Slice:
		schema["type"] = "array"
	case typ.Kind() == reflect.Map:
		schema["type"] = "object"
	case typ.Kind() == reflect.Bool:
		schema["type"] = "boolean"
	case typ == reflect.TypeFor[time.Duration]():
		schema["type"] = []string{"string", "integer"}
	case typ.Kind() == reflect.Int || typ.Kind() == reflect.Int64:
		schema["type"] = "integer"
	case typ.Kind() == reflect.Float64:
		schema["type"] = "number"
	default:
		schema["type"] = []string{"string", "number"}
	}
	if values := s.Tag.Get("oneof"); values != "" && typ.Kind() != reflect.Slice {
		delete(schema, "type")
		schema["enum"] = strings.Split(values, ",")
	}
	return schema
}
