package server

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// skeleton is the document /openapi.json without the paths. Its "members" has the
// members of request bodies, by name, and those that differ in a form after the word form.
//
//go:embed openapi.json
var skeleton []byte

type object = map[string]any

// openAPI returns /openapi.json.
func openAPI() []byte {
	var doc object
	if err := json.Unmarshal(skeleton, &doc); err != nil {
		panic("openapi.json: " + err.Error())
	}
	d := describer{members: doc["members"].(object)}
	delete(doc, "members")
	schemas := doc["components"].(object)["schemas"].(object)
	schemas["KeyName"] = d.members["key"]
	merge(schemas, "Refusal", "Problem")
	merge(schemas, "Refusal", "Decision")
	merge(schemas, "Limit", "LimitSettings")
	schemas["LimitSettings"].(object)["properties"].(object)["note"] = d.members["note"]
	merge(schemas, "Key", "Decision")
	paths := object{}
	for _, r := range routes() {
		item, _ := paths[r.path].(object)
		if item == nil {
			item = object{}
			paths[r.path] = item
		}
		item[strings.ToLower(cmp.Or(r.method, http.MethodGet))] = d.operation(&r)
	}
	doc["paths"] = paths
	b, err := json.Marshal(doc)
	if err != nil {
		panic("openapi.json: " + err.Error())
	}
	return append(b, '\n')
}

func (a *api) describe(w http.ResponseWriter, _ *http.Request, _ *query) error {
	return writeJSON(w, http.StatusOK, a.document())
}

type describer struct{ members object }

func (d *describer) operation(r *route) object {
	op := object{"operationId": operationID(r), "tags": []string{r.tag}, "summary": r.summary, "responses": d.responses(r)}
	var params []object
	if strings.Contains(r.path, "{name}") {
		params = append(params, ref("parameters", "name"))
	}
	for _, p := range r.params {
		params = append(params, ref("parameters", p))
	}
	if params != nil {
		op["parameters"] = params
	}
	if r.members != 0 {
		op["requestBody"] = object{"required": true, "content": object{
			"application/json":                  object{"schema": d.request(r.members)},
			"application/x-www-form-urlencoded": object{"schema": d.objectOf(r.members&^(hasTakes|hasKeys), "form ")},
		}}
	} else if r.body != "" {
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": ref("schemas", r.body)}}}
	}
	if r.needs > Proxied {
		op["security"] = security(r.needs)
	}
	return op
}

// security returns the role that an operation needs. Some need no token without callers.
func security(needs Role) []object {
	roles := []string{}
	if name := needs.String(); name != "" {
		roles = append(roles, name)
	}
	token := object{"token": roles}
	if needs == Use || needs == ReadLimits {
		return []object{{}, token}
	}
	return []object{token}
}

// operationID makes one word of the method and the path: getLimitsNameKeys.
func operationID(r *route) string {
	var b strings.Builder
	if r.method != http.MethodPost { // the operation of a verb has the verb's name
		b.WriteString(strings.ToLower(cmp.Or(r.method, http.MethodGet)))
	}
	for word := range strings.FieldsFuncSeq(strings.TrimPrefix(r.path, "/v1"), func(c rune) bool { return c < 'a' || c > 'z' }) {
		if b.Len() > 0 {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		b.WriteString(word)
	}
	return b.String()
}

func (d *describer) responses(r *route) object {
	out := object{}
	for status, schema := range r.answers {
		answer := object{"description": http.StatusText(status)}
		switch {
		case r.text != "":
			answer["content"] = object{r.text: object{}}
		case schema != "":
			answer["content"] = object{"application/json": object{"schema": anyOf(strings.Fields(schema)...)}}
		}
		out[strconv.Itoa(status)] = answer
	}
	for _, status := range d.errors(r) {
		schema := anyOf("Problem")
		switch {
		case r.path == "/v1/auth" && status != http.StatusBadRequest && status != http.StatusNotFound: // it may be the deny status
			schema = anyOf("Refusal", "Problem")
		case status == http.StatusTooManyRequests:
			schema = anyOf("Refusal")
		}
		out[strconv.Itoa(status)] = object{"description": http.StatusText(status), "content": object{"application/problem+json": object{"schema": schema}}}
	}
	return out
}

// errors lists the statuses of a route that are not success.
func (d *describer) errors(r *route) []int {
	list := append([]int{http.StatusBadRequest, http.StatusForbidden, http.StatusServiceUnavailable}, r.errors...)
	if r.needs > Proxied {
		list = append(list, http.StatusUnauthorized)
	}
	if r.members != 0 || r.body != "" {
		list = append(list, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge)
	}
	if r.refuses {
		list = append(list, http.StatusTooManyRequests)
	}
	return list
}

// request returns the schema of a JSON body: one take, or takes.
func (d *describer) request(m members) object {
	if m&hasTakes == 0 {
		return d.objectOf(m, "")
	}
	takes := d.objectOf(m&^ofTake, "")
	takes["properties"].(object)["takes"] = object{"type": "array", "minItems": 1, "maxItems": 16, "items": d.objectOf(m&ofTake, ""),
		"description": "They happen at one instant, all or nothing."}
	takes["required"] = append(takes["required"].([]string), "takes")
	return object{"oneOf": []object{d.objectOf(m&^hasTakes, ""), takes}}
}

// objectOf returns the schema of an object with members, without takes. form is "form " for a
// form, in which all values are strings.
func (d *describer) objectOf(m members, form string) object {
	properties, required := object{}, []string{}
	for i, name := range memberNames {
		bit := m & (1 << i)
		if bit == 0 || bit == hasTakes {
			continue
		}
		properties[name] = cmp.Or(d.members[form+name], d.members[name])
		if bit&(needed|hasLimit) != 0 {
			required = append(required, name)
		}
	}
	return object{"type": "object", "additionalProperties": false, "properties": properties, "required": required}
}

// merge adds the properties of one schema to another, because answers are flat objects.
func merge(schemas object, name, other string) {
	into, from := schemas[name].(object), schemas[other].(object)
	properties := maps.Clone(from["properties"].(object))
	maps.Copy(properties, into["properties"].(object))
	into["properties"] = properties
	a, _ := into["required"].([]any)
	b, _ := from["required"].([]any)
	into["required"] = slices.Concat(a, b)
}

func ref(kind, name string) object { return object{"$ref": "#/components/" + kind + "/" + name} }

// anyOf returns a reference to a schema, or to any of several.
func anyOf(names ...string) object {
	if len(names) == 1 {
		return ref("schemas", names[0])
	}
	var list []object
	for _, name := range names {
		list = append(list, ref("schemas", name))
	}
	return object{"anyOf": list}
}
