package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// deployment has the fields of the Deployment that this test needs.
type deployment struct {
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
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// TestKubernetes starts the service with the arguments and the configuration of
// the manifests, and requests its probes. What else the manifests and the Helm chart say
// is checked by the module deploy/check.
func TestKubernetes(t *testing.T) {
	var d deployment
	var chart struct{ Config map[string]any }
	limits := map[string]any{}
	for name, into := range map[string]any{"kubernetes/deployment.yaml": &d, "kubernetes/limits.yaml": &limits, "helm/dipwell/values.yaml": &chart} {
		b, err := os.ReadFile(filepath.Join(deploy, name))
		must(t, err)
		must(t, yaml.Unmarshal(b, into))
	}
	if len(limits) == 0 || !reflect.DeepEqual(chart.Config, limits) {
		t.Errorf("the chart's config is %v, and limits.yaml %v", chart.Config, limits)
	}
	c := d.Spec.Template.Spec.Containers[0]
	args := strings.NewReplacer("/etc/dipwell/dipwell.yaml", filepath.Join(deploy, "kubernetes/limits.yaml"),
		":8080", "127.0.0.1:0", ":8081", "127.0.0.1:0", ":9090", "127.0.0.1:0").Replace(strings.Join(c.Args[1:], " "))
	p := start(t, strings.Fields(args)...)
	for _, check := range []probe{c.Readiness, c.Liveness} {
		if status, body := do(t, "GET", p.admin+check.HTTPGet.Path, ""); check.HTTPGet.Port != "admin" || status != 200 {
			t.Errorf("%v: %d %s", check, status, body)
		}
	}
	if status, body := post(t, p.url+"/v1/take", "limit=login&key=user:7"); status != 200 {
		t.Error(status, body)
	}
	if status, _ := do(t, "GET", p.url+"/metrics", ""); status != 403 {
		t.Error("metrics on the listener of callers: ", status)
	}
}
