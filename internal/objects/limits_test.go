package objects

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// schema is the part of a CRD's schema that limits lists.
type schema struct {
	MaxItems   int
	Properties map[string]schema
	Items      *schema
}

func (s schema) lists(path string, into map[string]int) {
	if s.MaxItems > 0 {
		into[path] = s.MaxItems
	}
	for name, p := range s.Properties {
		p.lists(strings.TrimPrefix(path+"."+name, "."), into)
	}
	if s.Items != nil {
		s.Items.lists(path, into)
	}
}

// The limits are those of the CRDs, and complete.
func TestLimitsMatchTheCRDs(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard/gateway.networking*s.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Kind string
			Spec struct {
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema schema }
				}
			}
		}
		if yaml.Unmarshal(text, &crd) != nil || most[crd.Spec.Names.Kind] == nil {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Name != "v1" {
				continue
			}
			seen++
			is := make(map[string]int)
			v.Schema.OpenAPIV3Schema.Properties["spec"].lists("", is)
			if diff := cmp.Diff(is, most[crd.Spec.Names.Kind]); diff != "" {
				t.Errorf("%s: the CRD has -, a folder +:\n%s", crd.Spec.Names.Kind, diff)
			}
		}
	}
	if seen != len(most) {
		t.Errorf("%d CRDs of %d were found", seen, len(most))
	}
}

func TestCheckLimits(t *testing.T) {
	var r gatewayv1.HTTPRoute
	r.Spec.Rules = make([]gatewayv1.HTTPRouteRule, 16)
	r.Spec.Rules[3].Matches = make([]gatewayv1.HTTPRouteMatch, 64)
	r.Spec.Rules[4].Matches = make([]gatewayv1.HTTPRouteMatch, 64)
	if errs := CheckLimits(HTTPRouteKind, &r); len(errs) > 0 {
		t.Errorf("what is just within: %v", errs)
	}
	r.Spec.Rules[15].BackendRefs = make([]gatewayv1.HTTPBackendRef, 17)
	r.Spec.Rules = append(r.Spec.Rules, gatewayv1.HTTPRouteRule{Matches: make([]gatewayv1.HTTPRouteMatch, 1)})
	var got []string
	for _, e := range CheckLimits(HTTPRouteKind, &r) {
		got = append(got, e.Error())
	}
	want := []string{
		"spec.rules: Too many: 17: must have at most 16 items",
		"spec.rules[15].backendRefs: Too many: 17: must have at most 16 items",
		"spec.rules: Too many: 129: must have at most 128 items",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
