package main

import (
	"maps"
	"path/filepath"

	"github.com/headgate/headgate/packaging/oci"
)

// registry is the name before images in the manifests and the chart.
const registry = "headgate.dev/"

// headgateImage returns the image of the program. It runs headgate; with the command /extproc or
// /control it runs that one. The program is not /headgate, since pods mount a volume below that
// folder.
func headgateImage(arch, program, licence string) oci.Image {
	return oci.Image{
		Arch: arch, Name: "headgate", Entrypoint: []string{"/usr/local/bin/headgate"},
		Files: map[string]string{"/usr/local/bin/headgate": program, "/usr/share/doc/headgate/LICENSE": licence},
		Links: map[string]string{"/extproc": "usr/local/bin/headgate", "/control": "usr/local/bin/headgate"},
	}
}

// agentImage returns the image of the agent, which runs beside an engine.
func agentImage(arch, program, licence string) oci.Image {
	return oci.Image{
		Arch: arch, Name: "agent", Entrypoint: []string{"/usr/local/bin/agent"},
		Files: map[string]string{"/usr/local/bin/agent": program, "/usr/share/doc/agent/LICENSE": licence},
	}
}

// envoyImage returns the image of Envoy, with the C library and both licences. Envoy's licence has
// the text of ours.
func envoyImage(arch, program, licence string, c glibc) oci.Image {
	files := map[string]string{
		"/usr/local/bin/envoy":           program,
		"/usr/share/doc/envoy/LICENSE":   licence,
		"/usr/share/doc/glibc/copyright": c.licence,
	}
	maps.Copy(files, c.files)
	return oci.Image{Arch: arch, Name: "envoy", Entrypoint: []string{"/usr/local/bin/envoy"}, Files: files}
}

// archive returns an OCI archive of images for several architectures.
func (r release) archive(name string, images []oci.Image) oci.Archive {
	return oci.Archive{
		Name: registry + name, Tag: r.version.semantic(), Created: r.tree.time, Images: images,
		Annotations: map[string]string{
			"org.opencontainers.image.version":  r.version.semantic(),
			"org.opencontainers.image.revision": r.tree.commit,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.title":    name,
		},
	}
}

func (r release) licence() string { return filepath.Join(r.tree.root, "LICENSE") }
