package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/packaging/oci"
)

// Names of the images in the manifests. The tag is not "latest", because with that tag the kubelet
// would pull from a registry instead of using the imported image.
const (
	Program = "headgate.dev/headgate:dev"
	Agent   = "headgate.dev/agent:dev"
	Bench   = "headgate.dev/bench:dev"
	Envoy   = "headgate.dev/envoy:dev"
)

// Headgate writes a tarball of each image to dir and returns the tarballs' paths. The images
// contain Headgate's programs as static binaries, built from the repository at root, and the Envoy
// that [find.Envoy] finds.
func Headgate(ctx context.Context, root, dir string, progress io.Writer) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	begun := time.Now()
	var images []oci.Image
	for _, pkg := range []string{"./headgate", "./bench", "./control/agent"} {
		if err := Compile(ctx, root, pkg, filepath.Join(dir, filepath.Base(pkg))); err != nil {
			return nil, err
		}
	}
	const at = "/usr/local/bin/headgate" // not /headgate: pods mount a volume below that folder
	own := oci.Static(Program, filepath.Join(dir, "headgate"))
	own.Entrypoint = []string{at}
	own.Files = map[string]string{at: filepath.Join(dir, "headgate")}
	own.Links = map[string]string{"/extproc": at[1:], "/control": at[1:]} // the commands in manifests
	images = append(images, own, oci.Static(Bench, filepath.Join(dir, "bench")), oci.Static(Agent, filepath.Join(dir, "agent")))
	found, err := find.Envoy(ctx, filepath.Join(root, ".cache"), progress)
	if err != nil {
		return nil, err
	}
	withGlibc, err := Dynamic(Envoy, found, "/usr/local/bin/envoy")
	if err != nil {
		return nil, err
	}
	var tarballs []string
	for _, i := range append(images, withGlibc) {
		file := filepath.Join(dir, Base(i.Name)+".tar")
		if err := i.Write(file); err != nil {
			return nil, err
		}
		tarballs = append(tarballs, file)
	}
	fmt.Fprintf(progress, "built %d images in %s in %v\n", len(tarballs), dir, time.Since(begun).Round(time.Second))
	return tarballs, nil
}

// Base returns the name of an image without its registry and tag.
func Base(imageName string) string {
	base, _, _ := strings.Cut(imageName[strings.LastIndex(imageName, "/")+1:], ":")
	return base
}

// Compile builds a static binary of a package. module is the directory of the package's module.
func Compile(ctx context.Context, module, pkg, binary string) error {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", "-C", module, "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, strings.TrimSpace(string(out)))
	}
	return nil
}
