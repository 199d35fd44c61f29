package check

import (
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
)

// TestCompose loads the compose file as Docker Compose does: by its schema, with what
// services refer to. Nothing is run.
func TestCompose(t *testing.T) {
	o, err := cli.NewProjectOptions([]string{"../../examples/postgres/compose.yaml"}, cli.WithName("dipwell"), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"db", "cron", "schema", "dipwell"} {
		if s, err := p.GetService(name); err != nil || s.Image == "" && s.Build == nil {
			t.Errorf("%s: %v, neither an image nor a build", name, err)
		}
	}
}
