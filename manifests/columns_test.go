package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// definition is the part of a CRD that kubectl get uses.
type definition struct {
	Spec struct {
		Names struct {
			Kind, Plural, Singular string
			ShortNames             []string
		}
		Versions []struct {
			AdditionalPrinterColumns []struct{ Name, Type, JSONPath string }
			Schema                   struct{ OpenAPIV3Schema schemaPart }
		}
	}
}

// schemaPart is the part of a schema that tells what a JSONPath leads to.
type schemaPart struct {
	Type       string
	IntOrText  bool `json:"x-kubernetes-int-or-string"`
	Properties map[string]schemaPart
	Items      *schemaPart
}

func definitionsOf(t *testing.T) map[string]definition {
	t.Helper()
	all := make(map[string]definition)
	files, err := filepath.Glob("crds/inference*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := yaml.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		all[d.Spec.Names.Kind] = d
	}
	return all
}

// step is a step of a JSONPath: a field, then maybe an element of a list.
var step = regexp.MustCompile(`^\.([a-zA-Z]+)(\[[^\]]*\])?`)

// follow returns the type to which a JSONPath leads: a scalar type, or why kubectl does not print
// it as text.
func (p schemaPart) follow(path string) string {
	if path == ".metadata.creationTimestamp" {
		return "date"
	}
	for path != "" {
		parts := step.FindStringSubmatch(path)
		if parts == nil {
			return "unknown syntax at " + path
		}
		next, known := p.Properties[parts[1]]
		if !known {
			return "no field " + parts[1]
		}
		if p, path = next, path[len(parts[0]):]; parts[2] != "" {
			if p.Items == nil {
				return parts[1] + " is no list"
			}
			p = *p.Items
		}
	}
	if p.Type == "" && p.IntOrText {
		return "string"
	}
	return p.Type
}

// Every column of kubectl get shows a text, a number or a time. API servers print a list or an
// object as JSON.
func TestColumnsPrintText(t *testing.T) {
	for kind, d := range definitionsOf(t) {
		for _, v := range d.Spec.Versions {
			for _, c := range v.AdditionalPrinterColumns {
				is := v.Schema.OpenAPIV3Schema.follow(c.JSONPath)
				if !slices.Contains([]string{"string", "integer", "boolean", "date"}, is) {
					t.Errorf("%s: the column %s leads to %s: %s", kind, c.Name, is, c.JSONPath)
				}
			}
		}
	}
}

// wellKnown are short names of Kubernetes, Gateway API and common operators.
var wellKnown = strings.Fields("cm cs cj csr crd crds deploy ds ep eps ev hpa ing limits netpol no ns pc pdb po psp pv pvc quota rc rs " +
	"sa sc sts svc gc gtw grpcroute lset refgrant btlspolicy httproute gw vs dr se vm vmi ksvc rt rev cert certs issuer isvc sr")

// Each of our kinds has a short name that no other kind has.
func TestShortNamesAreUnique(t *testing.T) {
	owner := make(map[string]string)
	for _, name := range wellKnown {
		owner[name] = "another project"
	}
	for kind, d := range definitionsOf(t) {
		if len(d.Spec.Names.ShortNames) == 0 {
			t.Errorf("%s has no short name", kind)
		}
		for _, name := range append(d.Spec.Names.ShortNames, d.Spec.Names.Plural, d.Spec.Names.Singular) {
			if by := owner[name]; by != "" && by != kind {
				t.Errorf("%s and %s have the short name %s", kind, by, name)
			}
			owner[name] = kind
		}
	}
	if d := definitionsOf(t)["LLMRoute"]; !slices.Equal(d.Spec.Names.ShortNames, []string{"llmr"}) {
		t.Errorf("the short names of LLMRoutes are %v", d.Spec.Names.ShortNames)
	}
}
