package server

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// TestSettingsInJSON checks that an answer spells counts as numbers and conditions as
// booleans, whatever setting of a limit, a plan or an adaptive limit they are.
func TestSettingsInJSON(t *testing.T) {
	for _, empty := range []any{&store.Limit{}, &store.Plan{}, &store.Adaptive{}} {
		for i := range reflect.TypeOf(empty).Elem().NumField() {
			one := reflect.New(reflect.TypeOf(empty).Elem())
			field := one.Elem().Field(i)
			switch {
			case field.Type() == reflect.TypeFor[int64]():
				field.SetInt(7)
			case field.Type() == reflect.TypeFor[bool]():
				field.SetBool(true)
			default:
				continue
			}
			name := one.Elem().Type().Field(i).Name
			var b []byte
			switch of := one.Interface().(type) {
			case *store.Limit:
				b = new(api).limitJSON(&store.Definition{Limit: *of})
			case *store.Plan:
				_, settings, _ := strings.Cut(store.NewPlans(*of).String(), ":")
				b = appendSettings(nil, settings)
			case *store.Adaptive:
				b = appendSettings(nil, of.String())
			}
			var got map[string]any
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatalf("%T.%s: %v", empty, name, err)
			}
			plain := 0
			for _, value := range got {
				switch v := value.(type) {
				case float64:
					if v == 7 {
						plain++
					}
				case bool:
					plain++
				}
			}
			if plain == 0 && (name != "ListKeys" || got["keys"] != "list") && (name != "KeepExpired" || got["on_expire"] != "keep") && (name != "Children" || got["callable"] != "children") {
				t.Errorf("%T.%s is written as text: %v", empty, name, got)
			}
		}
	}
}
