package rls_test

import (
	"encoding/json"
	"os"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/memstore"
)

// readEnvoy checks that a configuration is valid by Envoy's own types.
func readEnvoy(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err = yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var b bootstrap.Bootstrap
	if err = protojson.Unmarshal(asJSON, &b); err != nil {
		t.Fatal(err)
	}
	if err = b.ValidateAll(); err != nil {
		t.Error(err)
	}
}

// The example's Envoy configuration is valid, and its descriptors match the limits.
func TestEnvoyExample(t *testing.T) {
	readEnvoy(t, "../../examples/envoy/envoy.yaml")
	w := &world{t: t}
	w.now.Store(noon)
	store, err := memstore.New(memstore.Config{Clock: w.now.Load})
	if err != nil {
		t.Fatal(err)
	}
	w.over(store, rls.Config{})
	rules, err := rls.Load(rls.Defaults{}, "../../examples/envoy/ratelimit")
	if err == nil {
		err = w.service.Use(t.Context(), rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	call := descs{desc("remote_address=192.0.2.1"), desc("path=/api/items", "user=7")}
	w.spend("web", 50, call...)
	w.want("web", over, call, ok, over)
	w.want("web", over, descs{desc("path=/api", "user=7")})
	w.want("web", ok, descs{desc("path=/api", "user=monitor")})
	w.want("web", over, descs{desc("remote_address=192.0.2.7")})
}
