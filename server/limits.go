package server

import (
	"net/http"
	"strconv"

	"github.com/dipwell/dipwell"
)

// listLimits answers GET /v1/limits.
func (a *api) listLimits(w http.ResponseWriter, _ *http.Request) {
	b := []byte(`{"limits":[`)
	for i, def := range a.limiter.Limits() {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(b, def)
	}
	writeJSON(w, http.StatusOK, append(b, "]}\n"...))
}

// getLimit answers GET /v1/limits/{name}.
func (a *api) getLimit(w http.ResponseWriter, r *http.Request) {
	def := a.limiter.Limit(r.PathValue("name"))
	if def == nil {
		a.fail(w, &dipwell.UnknownLimitError{Limit: r.PathValue("name")})
		return
	}
	writeJSON(w, http.StatusOK, append(appendLimit(nil, def), '\n'))
}

// putLimit answers PUT /v1/limits/{name}: the settings of a configuration file
// as JSON or as parameters. What is not given is the default, not what was.
func (a *api) putLimit(w http.ResponseWriter, r *http.Request) {
	limit, err := readLimit(r)
	status := http.StatusOK
	var def *dipwell.Definition
	if err == nil {
		if a.limiter.Limit(limit.Name) == nil {
			status = http.StatusCreated
		}
		def, err = a.limiter.Define(r.Context(), limit, dipwell.OwnerAPI)
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	writeJSON(w, status, append(appendLimit(nil, def), '\n'))
}

// deleteLimit answers DELETE /v1/limits/{name}.
func (a *api) deleteLimit(w http.ResponseWriter, r *http.Request) {
	if err := a.limiter.Drop(r.Context(), r.PathValue("name"), dipwell.OwnerAPI); err != nil {
		a.fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// readLimit makes a limit of a body of settings; the path names it.
func readLimit(r *http.Request) (dipwell.Limit, error) {
	l := dipwell.Limit{Name: r.PathValue("name")}
	x := exchanges.Get().(*exchange)
	defer x.free()
	if err := x.body(r); err != nil {
		return l, err
	}
	seen := map[string]bool{}
	set := func(name, value string) error {
		if seen[name] {
			return bad(name, "is given twice")
		}
		seen[name] = true
		if name == "name" && value != l.Name {
			return bad(name, "is not the name in the path")
		}
		return l.Set(name, value)
	}
	if isJSON(r, x.in) {
		s := scanner{b: x.in}
		err := s.object(func(name string) error {
			value, err := s.scalar(name)
			if err == nil {
				err = set(name, value)
			}
			return err
		})
		if err == nil {
			err = s.end()
		}
		return l, err
	}
	err := eachParam(r.URL.RawQuery, set)
	if err == nil {
		err = eachParam(string(x.in), set)
	}
	return l, err
}

// appendLimit writes a definition: its settings as a file has them, and who
// owns it.
func appendLimit(b []byte, def *dipwell.Definition) []byte {
	b = append(b, '{')
	for _, s := range def.Explicit() {
		b = append(dipwell.AppendJSONString(b, s[0]), ':')
		if plainJSON(s[0], s[1]) {
			b = append(b, s[1]...)
		} else {
			b = dipwell.AppendJSONString(b, s[1])
		}
		b = append(b, ',')
	}
	b = dipwell.AppendJSONString(append(b, `"owner":`...), def.Owner)
	b = strconv.AppendUint(append(b, `,"version":`...), uint64(def.Number), 10)
	b = strconv.AppendInt(append(b, `,"capacity":`...), def.Rule.Burst, 10)
	if def.Warning != "" {
		b = dipwell.AppendJSONString(append(b, `,"warning":`...), def.Warning)
	}
	return append(b, '}')
}

// plainJSON reports whether a setting's value is a number or a boolean.
func plainJSON(name, value string) bool {
	switch name {
	case "rate", "burst", "max_debt", "max_charge":
		return value != "unlimited"
	}
	return name == "auth"
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
