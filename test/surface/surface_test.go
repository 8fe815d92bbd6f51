package surface

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestFields compares the fields in the CRDs with the golden list.
func TestFields(t *testing.T) {
	files, err := filepath.Glob("../../manifests/crds/inference.x-k8s.io_*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRD: %v", err)
	}
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema schema }
				}
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, version := range crd.Spec.Versions {
			for _, part := range []string{"spec", "status"} {
				fields := version.Schema.OpenAPIV3Schema.Properties[part]
				names = fields.paths(fmt.Sprintf("%s/%s %s", crd.Spec.Names.Kind, version.Name, part), names)
			}
		}
	}
	Check(t, "fields", names)
}

// schema is the part of a CRD's schema that names fields.
type schema struct {
	Properties           map[string]schema
	Items                *schema
	AdditionalProperties *schema
}

// paths appends the path of each field below the field at path.
func (s schema) paths(path string, to []string) []string {
	for name, field := range s.Properties {
		to = append(to, path+"."+name)
		to = field.paths(path+"."+name, to)
	}
	for _, below := range []*schema{s.Items, s.AdditionalProperties} {
		if below != nil {
			to = below.paths(path, to)
		}
	}
	return to
}

// The section of the next version fits on a screen, and what breaks comes first.
func TestChangelogIsShort(t *testing.T) {
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n## ")
	if len(sections) < 2 {
		t.Fatal("CHANGELOG.md has no version")
	}
	section := strings.TrimSpace(sections[1])
	if lines := strings.Count(section, "\n") + 1; lines > 40 {
		t.Errorf("the first version of CHANGELOG.md has %d lines: 40 are enough", lines)
	}
	if _, changes, _ := strings.Cut(section, "\n"); !strings.HasPrefix(strings.TrimSpace(changes), "### Breaking") {
		t.Error("the first version of CHANGELOG.md does not begin with its section Breaking")
	}
	seen := map[string]bool{}
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "- ") && seen[line] {
			t.Errorf("CHANGELOG.md has this line twice: %s", line)
		}
		seen[line] = true
	}
}

func TestCompare(t *testing.T) {
	changelog := `# Changelog

## 0.2.0

### Breaking

- flag ` + "`--old`" + ` of extproc is gone
- ` + "`spec.timeouts`" + ` of PoolSettings is gone

### Features

- ` + "`--new`" + `

## 0.1.0

### Breaking

- flag ` + "`--kept`" + ` of extproc was gone before
`
	known := []string{"extproc --old", "extproc --kept", "control --new", "PoolSettings/v1alpha1 spec.timeouts.queue"}
	tests := map[string]struct {
		names       []string
		added, gone string
	}{
		"the same":  {known, "", ""},
		"one more":  {append([]string{"extproc --more"}, known...), "extproc --more", ""},
		"mentioned": {[]string{"extproc --kept", "control --new", "PoolSettings/v1alpha1 spec.timeouts.queue"}, "", ""},
		"the object that had it is mentioned": {
			[]string{"extproc --old", "extproc --kept", "control --new"}, "", "",
		},
		"mentioned as a feature only": {
			[]string{"extproc --old", "extproc --kept", "PoolSettings/v1alpha1 spec.timeouts.queue"}, "", "control --new",
		},
		"not mentioned": {
			[]string{"extproc --old", "control --new", "PoolSettings/v1alpha1 spec.timeouts.queue"}, "", "extproc --kept",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			added, gone := compare(known, test.names, breaking(changelog))
			if strings.Join(added, ",") != test.added || strings.Join(gone, ",") != test.gone {
				t.Errorf("added %q, gone %q; want %q, %q", added, gone, test.added, test.gone)
			}
		})
	}
}
