package check

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const deploy = ".."

// cluster has the objects of a rendering: decoded strictly, and as plain maps by kind.
type cluster struct {
	config     core.ConfigMap
	deployment apps.Deployment
	service    core.Service
	budget     policy.PodDisruptionBudget
	network    networking.NetworkPolicy
	monitor    monitoring.ServiceMonitor
	plain      map[string]map[string]any
}

// decode reads the objects of a rendering. A member that the Kubernetes API does not
// know, a kind that we do not expect and a kind that is there twice are errors.
func decode(t *testing.T, rendered []byte) *cluster {
	t.Helper()
	c := &cluster{plain: map[string]map[string]any{}}
	into := map[string]any{
		"v1/ConfigMap": &c.config, "apps/v1/Deployment": &c.deployment, "v1/Service": &c.service,
		"policy/v1/PodDisruptionBudget": &c.budget, "networking.k8s.io/v1/NetworkPolicy": &c.network,
		"monitoring.coreos.com/v1/ServiceMonitor": &c.monitor,
	}
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(rendered)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return c
		}
		if err != nil {
			t.Fatal(err)
		}
		var plain map[string]any
		if err := yaml.UnmarshalStrict(doc, &plain); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		if plain == nil {
			continue
		}
		kind := fmt.Sprint(plain["apiVersion"], "/", plain["kind"])
		if into[kind] == nil || c.plain[kind] != nil {
			t.Fatalf("%s is not expected, or is there twice", kind)
		}
		if err := yaml.UnmarshalStrict(doc, into[kind]); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		c.plain[kind] = plain
	}
}

// kustomized renders a directory as `kubectl kustomize` does.
func kustomized(t *testing.T, components ...string) *cluster {
	t.Helper()
	disk := filesys.MakeFsOnDisk()
	dir := deploy + "/kubernetes"
	if len(components) > 0 { // as if the line in kustomization.yaml were no comment
		over := filesys.MakeFsInMemory()
		err := disk.Walk(dir, func(path string, info fs.FileInfo, err error) error {
			if err != nil || info.IsDir() {
				return err
			}
			b, err := disk.ReadFile(path)
			if err != nil {
				return err
			}
			b = bytes.ReplaceAll(b, []byte("# components: ["+strings.Join(components, ", ")+"]"), []byte("components: ["+strings.Join(components, ", ")+"]"))
			return over.WriteFile(strings.TrimPrefix(path, deploy), b)
		})
		if err != nil {
			t.Fatal(err)
		}
		disk, dir = over, "/kubernetes"
	}
	options := krusty.MakeDefaultOptions()
	options.PluginConfig = types.DisabledPluginConfig()
	m, err := krusty.MakeKustomizer(options).Run(disk, dir)
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, out)
}

// helm renders the chart as `helm template NAME deploy/helm/dipwell --values …` does.
func helm(release, values string) ([]byte, error) {
	chart, err := loader.Load(deploy + "/helm/dipwell")
	if err != nil {
		return nil, err
	}
	if err := chart.Validate(); err != nil {
		return nil, err
	}
	var set map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &set); err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(chart, set, chartutil.ReleaseOptions{Name: release, Namespace: "default", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			fmt.Fprintf(&out, "---\n%s\n", files[name])
		}
	}
	return out.Bytes(), nil
}

func charted(t *testing.T, release, values string) *cluster {
	t.Helper()
	out, err := helm(release, values)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, out)
}

// TestManifests checks that the manifests are valid, and that their parts fit together.
func TestManifests(t *testing.T) {
	c := kustomized(t)
	c.check(t)
	if *c.deployment.Spec.Replicas != 2 || c.plain["monitoring.coreos.com/v1/ServiceMonitor"] != nil {
		t.Error("replicas, or a ServiceMonitor that nobody asked for")
	}
	c = kustomized(t, "monitoring")
	c.check(t)
	if c.plain["monitoring.coreos.com/v1/ServiceMonitor"] == nil {
		t.Error("no ServiceMonitor")
	}
}

// TestChart checks that the chart renders what the manifests say, and that other values
// give valid objects too.
func TestChart(t *testing.T) {
	for values, manifests := range map[string]*cluster{"": kustomized(t), "serviceMonitor: {enabled: true}": kustomized(t, "monitoring")} {
		rendered := charted(t, "dipwell", values)
		rendered.check(t)
		for kind := range manifests.plain {
			want, got := withoutHelm(t, manifests.plain[kind]), withoutHelm(t, rendered.plain[kind])
			if !reflect.DeepEqual(got, want) {
				t.Errorf("values %q: the chart's %s is\n%s\nthe manifests have\n%s", values, kind, got, want)
			}
		}
		if len(rendered.plain) != len(manifests.plain) {
			t.Errorf("%d objects and %d", len(rendered.plain), len(manifests.plain))
		}
	}
	c := charted(t, "edge", `
replicas: 1
image: {repository: r.example/d, tag: "7", pullSecrets: [pull]}
podAnnotations: {}
config:
  limits: []
  tls_cert: /run/dipwell/tls.crt
  tls_key: /run/dipwell/tls.key
  trusted_proxies: [10.0.0.0/8]
  metric_labels: {env: prod}
  rls_near_limit_ratio: 0.5
secret: {name: other, variables: {DIPWELL_STORE: url, DIPWELL_KEY_SECRET: hmac}}
files: tls
nodeSelector: {disk: ssd}
tolerations: [{key: limiter, operator: Exists}]
networkPolicy: {callers: [{namespaceSelector: {}}], ports: [6379, 4318]}
serviceMonitor: {enabled: true, labels: {release: prometheus}, tlsConfig: {insecureSkipVerify: true}}
`)
	c.check(t)
	pod := c.deployment.Spec.Template.Spec
	if c.deployment.Name != "edge-dipwell" || pod.Volumes[1].Secret.SecretName != "tls" || pod.Containers[0].ReadinessProbe.HTTPGet.Scheme != "HTTPS" ||
		pod.Tolerations[0].Key != "limiter" || len(pod.Containers[0].Env) != 3 || c.monitor.Labels["release"] != "prometheus" || c.network.Spec.Egress[1].Ports[1].Port.IntVal != 4318 {
		t.Errorf("values are not where they belong: %v", c.plain)
	}
	if c = charted(t, "dipwell", "networkPolicy: {enabled: false}"); len(c.plain) != 4 {
		t.Error("objects: ", len(c.plain))
	}
	for _, bad := range []string{"replica: 3", "replicas: two", "config: {limit: []}", "config: {store: 'memory:'}", "config: {headers: some}", "config: {max_in_flight: many}", "image: {name: x}"} {
		if _, err := helm("dipwell", bad); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// withoutHelm returns an object as text in which labels that only Helm sets are left out,
// and the file of limits is parsed.
func withoutHelm(t *testing.T, object map[string]any) string {
	t.Helper()
	if object == nil {
		return ""
	}
	m := object["metadata"].(map[string]any)
	l := m["labels"].(map[string]any)
	delete(l, "app.kubernetes.io/managed-by")
	delete(l, "helm.sh/chart")
	delete(m, "namespace")
	if data, ok := object["data"].(map[string]any); ok {
		var file any
		if err := yaml.UnmarshalStrict([]byte(data["dipwell.yaml"].(string)), &file); err != nil {
			t.Fatal(err)
		}
		data["dipwell.yaml"] = file
	}
	b, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// check checks that selectors select, that named ports and references are there, and that
// nothing runs as root.
func (c *cluster) check(t *testing.T) {
	t.Helper()
	pod := c.deployment.Spec.Template
	own := labels.Set(pod.Labels)
	selects := func(what string, s *meta.LabelSelector, of labels.Set) {
		t.Helper()
		sel, err := meta.LabelSelectorAsSelector(s)
		if err != nil || sel.Empty() || !sel.Matches(of) || sel.Matches(labels.Set{"app.kubernetes.io/name": "dipwell"}) {
			t.Errorf("%s selects %v (%v)", what, sel, err)
		}
	}
	selects("the Deployment", c.deployment.Spec.Selector, own)
	selects("the Service", &meta.LabelSelector{MatchLabels: c.service.Spec.Selector}, own)
	selects("the PodDisruptionBudget", c.budget.Spec.Selector, own)
	selects("the topology", pod.Spec.TopologySpreadConstraints[0].LabelSelector, own)
	if len(pod.Spec.Containers) != 1 {
		t.Fatal("containers: ", len(pod.Spec.Containers))
	}
	box := pod.Spec.Containers[0]
	ports := map[string]int32{}
	for _, p := range box.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for flag, port := range map[string]string{"--listen": "http", "--grpc": "grpc", "--admin": "admin"} {
		if arg := fmt.Sprintf("%s=:%d", flag, ports[port]); !slices.Contains(box.Args, arg) {
			t.Errorf("%s is not in %q", arg, box.Args)
		}
	}
	named := func(what string, p intstr.IntOrString) {
		t.Helper()
		if p.Type != intstr.String || ports[p.StrVal] == 0 {
			t.Errorf("%s: no port of the container is %v", what, p.String())
		}
	}
	named("readiness", box.ReadinessProbe.HTTPGet.Port)
	named("liveness", box.LivenessProbe.HTTPGet.Port)
	for _, p := range c.service.Spec.Ports {
		named("service", p.TargetPort)
	}
	if c.network.Name != "" {
		selects("the NetworkPolicy", &c.network.Spec.PodSelector, own)
		for _, in := range c.network.Spec.Ingress {
			for _, p := range in.Ports {
				named("network policy", *p.Port)
			}
		}
	}
	if c.monitor.Name != "" {
		selects("the ServiceMonitor", &c.monitor.Spec.Selector, c.service.Labels)
		if port := c.monitor.Spec.Endpoints[0].Port; !slices.ContainsFunc(c.service.Spec.Ports, func(p core.ServicePort) bool { return p.Name == port }) {
			t.Errorf("the Service has no port %s", port)
		}
	}
	if at := box.VolumeMounts[0]; at.SubPath != "" || pod.Spec.Volumes[0].ConfigMap.Name != c.config.Name || c.config.Data["dipwell.yaml"] == "" || !slices.Contains(box.Args, "--config="+at.MountPath+"/dipwell.yaml") {
		t.Errorf("the configuration is not where the container reads it: %v", at)
	}
	if s := box.SecurityContext; !*pod.Spec.SecurityContext.RunAsNonRoot || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || *pod.Spec.AutomountServiceAccountToken {
		t.Error("the container may do more than it needs")
	}
	grace, drain := *pod.Spec.TerminationGracePeriodSeconds, int64(10)
	if pre := box.Lifecycle.PreStop.Sleep.Seconds; grace < pre+drain {
		t.Errorf("%d s of grace are less than %d s of preStop and %d s of calls in flight", grace, pre, drain)
	}
}
