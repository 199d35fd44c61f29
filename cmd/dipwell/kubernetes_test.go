package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// object has the fields of a Kubernetes object that this test needs.
type object struct {
	Kind string
	Data map[string]string
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Args      []string
					Readiness probe `yaml:"readinessProbe"`
					Liveness  probe `yaml:"livenessProbe"`
				}
			}
		}
	}
}

type probe struct {
	HTTPGet struct{ Path string } `yaml:"httpGet"`
}

// TestKubernetes starts the service with the arguments and the configuration of
// the manifest, and requests its probes.
func TestKubernetes(t *testing.T) {
	objects := map[string]object{}
	f, err := os.Open(filepath.Join(deploy, "kubernetes/dipwell.yaml"))
	must(t, err)
	defer f.Close()
	for dec := yaml.NewDecoder(f); ; {
		var o object
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		objects[o.Kind] = o
	}
	if len(objects) != 4 {
		t.Fatalf("%d kinds of objects", len(objects))
	}
	config := filepath.Join(t.TempDir(), "dipwell.yaml")
	must(t, os.WriteFile(config, []byte(objects["ConfigMap"].Data["dipwell.yaml"]), 0o600))
	c := objects["Deployment"].Spec.Template.Spec.Containers[0]
	args := strings.NewReplacer("/etc/dipwell/dipwell.yaml", config, ":8080", "127.0.0.1:0", ":8081", "127.0.0.1:0").Replace(strings.Join(c.Args[1:], " "))
	p := start(t, strings.Fields(args)...)
	for _, path := range []string{c.Readiness.HTTPGet.Path, c.Liveness.HTTPGet.Path} {
		if status, body := do(t, "GET", p.url+path, ""); path == "" || status != 200 {
			t.Errorf("%q: %d %s", path, status, body)
		}
	}
	if status, body := post(t, p.url+"/v1/take", "limit=login&key=user:7"); status != 200 {
		t.Error(status, body)
	}
}
