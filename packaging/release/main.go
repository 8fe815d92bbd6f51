// Release fills a folder with all that a release of Headgate consists of: programs, wheels, images,
// the Helm chart, SBOMs and their checksums. It uploads nothing. The same commit always gives the
// same bytes.
//
//	go run ./packaging/release --version v0.1.0
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/atomicfile"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/packaging/oci"
)

// readme describes the wheel.
//
//go:embed readme.md
var readme []byte

const usage = `Usage: go run ./packaging/release --version v0.1.0 [flags]

Fills a folder with a release of Headgate. The tree must have no changes. The same commit always gives the same bytes.
Nothing is uploaded; docs/release.md describes how to do that.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(cli.Exit("release", err, os.Stderr))
}

func command(ctx context.Context, args []string, out io.Writer) error {
	flags := cli.Flags("go run ./packaging/release", usage, out)
	name := flags.String("version", "", "make the release of this `VERSION`, such as v0.1.0")
	platforms := flags.StringSlice("platforms", find.Platforms(), "build for these `OS/ARCH`s")
	root := flags.String("root", ".", "release the tree in this `DIR`")
	cache := flags.String("cache", ".cache", "keep Envoy and its C library in this `DIR`")
	dist := flags.String("out", "dist", "fill this `DIR`, which is emptied first")
	if err := cli.Parse(flags, args, 0); err != nil {
		return err
	}
	v, err := parseVersion(*name)
	if err != nil {
		return flags.Wrong(err)
	}
	for _, p := range *platforms {
		if !slices.Contains(find.Platforms(), p) {
			return flags.Wrong(fmt.Errorf("no release for the platform %q: choose of %s", p, strings.Join(find.Platforms(), ", ")))
		}
	}
	t, err := readTree(ctx, *root)
	if err != nil {
		return err
	}
	r := release{version: v, tree: t, dist: *dist, cache: *cache, out: out}
	r.platforms = slices.Compact(slices.Sorted(slices.Values(*platforms)))
	return r.make(ctx)
}

// release makes a release in the folder dist.
type release struct {
	version   version
	tree      tree
	platforms []string
	dist      string
	cache     string    // of downloads
	out       io.Writer // progress, and the table of sizes
	begun     time.Time
}

// make makes all artefacts. Programs are built in a temporary folder, since only archives are
// released.
func (r release) make(ctx context.Context) error {
	r.begun = time.Now()
	if err := errors.Join(os.RemoveAll(r.dist), os.MkdirAll(r.dist, 0o755)); err != nil {
		return err
	}
	built, err := os.MkdirTemp("", "headgate-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(built)
	images := make(map[string][]oci.Image)
	for _, platform := range r.platforms {
		programs := programsIn(filepath.Join(built, strings.ReplaceAll(platform, "/", "_")))
		if err := r.programFiles(ctx, platform, programs); err != nil {
			return err
		}
		goos, arch, _ := strings.Cut(platform, "/")
		if goos != "linux" {
			continue
		}
		image, err := r.envoyFiles(ctx, platform, arch)
		if err != nil {
			return err
		}
		images["headgate"] = append(images["headgate"], headgateImage(arch, programs.headgate, r.licence()))
		images["agent"] = append(images["agent"], agentImage(arch, programs.agent, r.licence()))
		images["envoy"] = append(images["envoy"], image)
	}
	if err := r.imageFiles(images); err != nil {
		return err
	}
	if err := r.chartFile(ctx); err != nil {
		return err
	}
	if err := writeSums(r.dist); err != nil {
		return err
	}
	return printSizes(r.dist, r.out)
}

// step reports what is done next.
func (r release) step(format string, args ...any) {
	fmt.Fprintf(r.out, "%4.0fs  %s\n", time.Since(r.begun).Seconds(), fmt.Sprintf(format, args...))
}

// programs are the paths of our programs for one platform.
type programs struct{ headgate, agent string }

func programsIn(dir string) programs {
	return programs{filepath.Join(dir, "headgate"), filepath.Join(dir, "agent")}
}

// programFiles builds the programs for a platform, and writes their tarball and SBOMs, and the
// wheel of headgate.
func (r release) programFiles(ctx context.Context, platform string, p programs) error {
	r.step("%s: build headgate and agent", platform)
	err := errors.Join(compile(ctx, r.tree, r.version, platform, "./headgate", p.headgate),
		compile(ctx, r.tree, r.version, platform, "./control/agent", p.agent))
	if err != nil {
		return err
	}
	content, err := os.ReadFile(p.headgate)
	if err != nil {
		return err
	}
	agent, err := os.ReadFile(p.agent)
	if err != nil {
		return err
	}
	licence, err := os.ReadFile(r.licence())
	if err != nil {
		return err
	}
	r.step("%s: pack the tarball, the wheel and the SBOMs", platform)
	suffix := "_" + r.version.semantic() + "_" + strings.ReplaceAll(platform, "/", "_")
	base := "headgate" + suffix
	extra, err := r.tree.files(ctx, "packaging", shipped)
	if err != nil {
		return err
	}
	archive, err := programArchive(base, content, agent, licence, extra, r.tree.time)
	if err != nil {
		return err
	}
	packed, err := wheel(r.version, platform, content, licence, readme, r.tree.time)
	if err != nil {
		return err
	}
	err = errors.Join(r.write(base+".tar.gz", archive), r.write(wheelName(r.version, platform), packed))
	for name, program := range map[string]string{"headgate": p.headgate, "agent": p.agent} {
		sbom, failed := inventory(r.version, r.tree, platform, name, program)
		err = errors.Join(err, failed, r.write(name+suffix+".cdx.json", sbom))
	}
	return err
}

// programArchive returns the tarball of a platform. All its files are in one folder.
func programArchive(folder string, program, agent, licence []byte, extra members, at time.Time) ([]byte, error) {
	all := members{
		folder + "/headgate": {content: program, executable: true},
		folder + "/extproc":  {link: "headgate"},
		folder + "/control":  {link: "headgate"},
		folder + "/agent":    {content: agent, executable: true},
		folder + "/LICENSE":  {content: licence},
	}
	extra.below(folder+"/packaging", all)
	return all.tarball(at)
}

// envoyFiles writes the SBOM of Envoy for a platform, and returns its image.
func (r release) envoyFiles(ctx context.Context, platform, arch string) (oci.Image, error) {
	r.step("%s: fetch Envoy and its C library", platform)
	program, err := find.For(ctx, platform, r.cache, r.out)
	if err != nil {
		return oci.Image{}, err
	}
	c, err := fetchGlibc(ctx, arch, r.cache)
	if err != nil {
		return oci.Image{}, err
	}
	sbom, err := envoyInventory(r.tree, platform, c.name)
	if err != nil {
		return oci.Image{}, err
	}
	name := "envoy_" + r.version.semantic() + "_" + strings.ReplaceAll(platform, "/", "_") + ".cdx.json"
	return envoyImage(arch, program, r.licence(), c), r.write(name, sbom)
}

// imageFiles writes an OCI archive for each name, with the images of all platforms.
func (r release) imageFiles(all map[string][]oci.Image) error {
	for name, images := range all {
		r.step("pack the image %s", name)
		if err := r.archive(name, images).Write(filepath.Join(r.dist, name+"_"+r.version.semantic()+"_image.tar")); err != nil {
			return err
		}
	}
	return nil
}

// chartFile writes the Helm chart.
func (r release) chartFile(ctx context.Context) error {
	files, err := r.tree.files(ctx, "packaging/chart", func(path string) bool {
		return !strings.HasSuffix(path, ".go") && !strings.Contains(path, "/testdata/")
	})
	if err != nil || len(files) == 0 {
		return err
	}
	r.step("pack the chart")
	packed, err := chart(r.version, files, r.tree.time)
	return errors.Join(err, r.write("headgate-"+r.version.semantic()+".tgz", packed))
}

func (r release) write(name string, content []byte) error {
	return atomicfile.Write(filepath.Join(r.dist, name), content, 0o644)
}
