package server_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// described is /openapi.json, and a mux of its paths.
type described struct {
	doc      map[string]any
	mux      *http.ServeMux
	mu       sync.Mutex
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema // by place in the document
}

var description = sync.OnceValue(func() *described {
	d := &described{mux: http.NewServeMux(), compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	if err := json.Unmarshal(openAPI(), &d.doc); err != nil {
		panic(err)
	}
	for path := range d.at("paths") {
		d.mux.Handle(path, http.NotFoundHandler())
	}
	closed(d.doc["components"])
	b, err := json.Marshal(d.doc)
	if err != nil {
		panic(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err == nil {
		err = d.compiler.AddResource("http://test/openapi.json", doc)
	}
	if err != nil {
		panic(err)
	}
	d.compiler.AssertFormat()
	return d
})

// openAPI is the body of GET /openapi.json.
func openAPI() []byte {
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		panic(err)
	}
	defer st.Close()
	l, err := dipwell.New(st)
	if err != nil {
		panic(err)
	}
	rec := httptest.NewRecorder()
	server.New(l, server.Config{}).API(server.Site{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	if rec.Code != http.StatusOK || rec.Header().Get("Content-Type") != "application/json" {
		panic(rec.Body.String())
	}
	return rec.Body.Bytes()
}

// closed makes schemas refuse properties that they do not name. Clients must ignore
// them, since later versions may have more.
func closed(v any) {
	switch v := v.(type) {
	case map[string]any:
		if v["type"] == "object" && v["properties"] != nil && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			closed(e)
		}
	case []any:
		for _, e := range v {
			closed(e)
		}
	}
}

// at returns the object at a place of the document, or nil.
func (d *described) at(place ...string) map[string]any {
	v := d.doc
	for _, p := range place {
		v, _ = v[p].(map[string]any)
	}
	return v
}

// conforms validates JSON against the schema at a place of the document.
func (d *described) conforms(t testing.TB, body []byte, place ...string) {
	t.Helper()
	for i := range place {
		place[i] = strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(place[i])
	}
	pointer := "http://test/openapi.json#/" + strings.Join(place, "/")
	d.mu.Lock()
	defer d.mu.Unlock()
	schema := d.schemas[pointer]
	if schema == nil {
		var err error
		if schema, err = d.compiler.Compile(pointer); err != nil {
			t.Fatal(err)
		}
		d.schemas[pointer] = schema
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err == nil {
		err = schema.Validate(v)
	}
	if err != nil {
		t.Errorf("%s: %s\n%v", pointer, body, err)
	}
}

// asDescribed checks that the description of the API has an answer, and its request if it
// was a success.
func asDescribed(t testing.TB, r *http.Request, body string, rec *httptest.ResponseRecorder) {
	t.Helper()
	d := description()
	_, path := d.mux.Handler(r)
	if path == "" || rec.Code == http.StatusMethodNotAllowed {
		return // not of the API
	}
	method := strings.ToLower(r.Method)
	if path == "/v1/auth" || method == "head" {
		method = "get"
	}
	if d.at("paths", path, method) == nil {
		t.Errorf("%s %s is not described", r.Method, path)
		return
	}
	status := strconv.Itoa(rec.Code)
	if d.at("paths", path, method, "responses", status) == nil {
		t.Errorf("%s %s: status %s is not described: %s", r.Method, path, status, rec.Body)
		return
	}
	media, _, _ := strings.Cut(rec.Header().Get("Content-Type"), ";")
	content := d.at("paths", path, method, "responses", status, "content")
	switch {
	case content == nil && rec.Body.Len() > 0, content != nil && content[media] == nil:
		t.Errorf("%s %s: the answer to status %s is described as %v, not %q", r.Method, path, status, slices.Collect(maps.Keys(content)), media)
	case d.at("paths", path, method, "responses", status, "content", media, "schema") != nil && r.Method != http.MethodHead:
		d.conforms(t, rec.Body.Bytes(), "paths", path, method, "responses", status, "content", media, "schema")
	}
	if rec.Code < 300 && strings.HasPrefix(body, "{") {
		d.conforms(t, []byte(body), "paths", path, method, "requestBody", "content", "application/json", "schema")
	}
}

// The document is valid OpenAPI 3.1.
func TestOpenAPI(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(openAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context(), openapi3.IsOpenAPI31OrLater()); err != nil {
		t.Error(err)
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if ids[op.OperationID] || op.OperationID == "" || op.Summary == "" {
				t.Errorf("%s %s: operationId %q, summary %q", method, path, op.OperationID, op.Summary)
			}
			ids[op.OperationID] = true
		}
	}
}

// Each call answers 400 to a parameter or member that the document does not name, and
// lists those that it names.
func TestOpenAPIParameters(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	d := description()
	for path := range d.at("paths") {
		for method, op := range d.at("paths", path) {
			op := op.(map[string]any)
			target := strings.ReplaceAll(path, "{name}", "listed") + "?nonsense=1"
			var named []string
			params, _ := op["parameters"].([]any)
			for _, p := range params {
				component := strings.TrimPrefix(p.(map[string]any)["$ref"].(string), "#/components/parameters/")
				if param := d.at("components", "parameters", component); param["in"] == "query" {
					named = append(named, param["name"].(string))
				}
			}
			properties := d.at("paths", path, method, "requestBody", "content", "application/x-www-form-urlencoded", "schema", "properties")
			named = append(named, slices.Collect(maps.Keys(properties))...)
			if body := d.at("paths", path, method, "requestBody", "content", "application/json", "schema"); body["$ref"] == "#/components/schemas/OverrideSettings" {
				named = slices.Collect(maps.Keys(d.at("components", "schemas", "OverrideSettings", "properties")))
			} else if body["$ref"] != nil {
				continue // LimitSettings: TestOpenAPISettings
			}
			slices.Sort(named)
			rec := w.do(strings.ToUpper(method), target, "")
			_, list, _ := strings.Cut(rec.Body.String(), "known are ")
			if list == "" {
				_, list, _ = strings.Cut(rec.Body.String(), "known is ")
			}
			list, _, _ = strings.Cut(list, `"`)
			known := strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == ' ' })
			slices.Sort(known)
			if w.want(rec, 400); !slices.Equal(known, named) {
				t.Errorf("%s %s: the API knows %v, the document %v", method, path, known, named)
			}
		}
	}
}

// The document has all settings of a limit.
func TestOpenAPISettings(t *testing.T) {
	names := slices.Collect(maps.Keys(description().at("components", "schemas", "LimitSettings", "properties")))
	for _, name := range names {
		if err := new(store.Limit).Set(name, ""); err != nil && name != "note" && strings.Contains(err.Error(), "unknown setting") { // a note is for the audit
			t.Error(err)
		}
	}
	if fields := reflect.TypeFor[store.Limit]().NumField(); !slices.Contains(names, "note") || len(names) != 1+fields {
		t.Errorf("the document has %v; a limit has %d fields", names, fields)
	}
}
