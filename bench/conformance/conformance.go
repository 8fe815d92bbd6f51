//go:build linux

// Package conformance runs Gateway API's conformance suite against Headgate on the real Kubernetes
// of bench/cluster.
//
// The suite is a separate module, tools/conformance. This package prepares the cluster for the
// suite: the CRDs of its version, the images of its pods, Headgate from manifests/base, and a
// GatewayClass.
package conformance

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/bench/cluster"
	"github.com/headgate/headgate/bench/image"
	"github.com/headgate/headgate/internal/version"
	"github.com/headgate/headgate/packaging/oci"
	"github.com/headgate/headgate/test/apiserver"
)

const usage = `usage: bench conformance [FLAG OF THE SUITE...]

Runs Gateway API's conformance suite against Headgate, on the cluster of bench cluster. If that cluster does not run,
it is started, and it keeps running afterwards. It needs root. Without flags it runs all tests of the features that the
GatewayClass reports, and writes the report to ` + reportFile + `.
With flags it writes the report to ` + runDir + `.

flags of the suite, among others:
  -run-test NAME[,NAME...]                                       run these tests only
  -supported-features Gateway,HTTPRoute,GRPCRoute,ReferenceGrant run the core tests only
  -skip-tests NAME[,NAME...]                                     skip these tests
  -cleanup-base-resources=false                                  keep the pods of the suite for the next run
`

// Paths in the repository.
const (
	reportFile = "docs/conformance/standard.yaml"
	runDir     = ".run/conformance"
)

// Modules that tools/conformance requires.
const (
	gatewayAPI = "sigs.k8s.io/gateway-api"
	suiteName  = gatewayAPI + "/conformance"
)

// class is the name of the GatewayClass that cluster.yaml creates.
const class = "conformance"

// Addresses that the suite's Gateways request: one that a Service can get, and one outside
// apiserver.ServiceRange, which no Service can get.
const (
	usable   = "10.96.255.1"
	unusable = "192.0.2.1"
)

// system is the namespace of manifests/base.
const system = "headgate-system"

// suiteTimeout limits a run of the whole suite, which usually takes a few minutes.
const suiteTimeout = 30 * time.Minute

//go:embed cluster.yaml
var inCluster string

// Command runs "bench conformance".
func Command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		fmt.Fprint(out, usage)
		return nil
	}
	root, err := apiserver.Root(".")
	if err != nil {
		return err
	}
	r := run{root: root, dir: filepath.Join(root, filepath.FromSlash(runDir)), progress: out}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	report := filepath.Join(root, filepath.FromSlash(reportFile))
	if len(args) > 0 {
		report = filepath.Join(r.dir, "report.yaml")
	}
	for _, step := range []func(context.Context) error{r.open, r.importImages, r.install} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return r.suite(ctx, report, args)
}

// run is one run of the suite.
type run struct {
	root, dir string
	progress  io.Writer
	cluster   *cluster.Cluster
}

// open opens the running cluster and imports images of this source tree. If no cluster is running,
// open starts one.
func (r *run) open(ctx context.Context) (err error) {
	dir := filepath.Join(r.root, ".run", "cluster")
	if r.cluster, err = cluster.Open(dir); err == nil {
		return r.cluster.Images(ctx, r.root, r.progress)
	}
	if err := cluster.Command(ctx, []string{"up", "--dir", dir}, r.progress); err != nil {
		return err
	}
	r.cluster, err = cluster.Open(dir)
	return err
}

// module returns the directory of a Go module that the suite requires.
func (r *run) module(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "-C", r.suiteModule(), "mod", "download", "-json", name).Output()
	var module struct{ Dir, Error string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		return "", fmt.Errorf("find the module %s: %w %s", name, err, module.Error)
	}
	return module.Dir, nil
}

func (r *run) suiteModule() string { return filepath.Join(r.root, "tools", "conformance") }

// importImages builds the images that the suite's manifests name, so that the kubelet pulls none
// from a registry.
func (r *run) importImages(ctx context.Context) error {
	module, err := r.module(ctx, suiteName)
	if err != nil {
		return err
	}
	manifests, err := os.ReadFile(filepath.Join(module, "base", "manifests.yaml"))
	if err != nil {
		return err
	}
	echo := filepath.Join(r.dir, "echo-basic")
	if err := image.Compile(ctx, r.suiteModule(), suiteName+"/echo-basic", echo); err != nil {
		return err
	}
	kubernetes, err := apiserver.Build(ctx, r.root, r.progress, "coredns")
	if err != nil {
		return err
	}
	var tarballs []string
	for _, name := range imagesOf(string(manifests)) {
		i, err := imageFor(name, echo, filepath.Join(kubernetes, "coredns"))
		if err != nil {
			return err
		}
		tarball := filepath.Join(r.dir, strings.NewReplacer("/", "-", ":", "-").Replace(name)+".tar")
		if err := i.Write(tarball); err != nil {
			return err
		}
		tarballs = append(tarballs, tarball)
	}
	return r.cluster.Import(ctx, tarballs...)
}

// imagesOf returns the distinct image names in manifests.
func imagesOf(manifests string) []string {
	var all []string
	for _, found := range imageLine.FindAllStringSubmatch(manifests, -1) {
		all = append(all, found[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var imageLine = regexp.MustCompile(`(?m)^[- ]*image: *"?([^"\s]+)`)

// imageFor builds an image that the suite's manifests name, from programs on this machine.
func imageFor(name, echo, coredns string) (oci.Image, error) {
	switch image.Base(name) {
	case "echo-basic":
		return oci.Static(name, echo), nil
	case "coredns":
		i := oci.Static(name, coredns)
		i.Root = true // CoreDNS is configured for port 53
		return i, nil
	}
	return oci.Image{}, fmt.Errorf("the manifests of the suite use the image %s, which this program cannot build", name)
}

// install installs Headgate in the cluster, as users do, and waits until the pods run this version.
func (r *run) install(ctx context.Context) error {
	crds, err := r.module(ctx, gatewayAPI)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		stdin string
		args  []string
	}{
		// Namespaces of an earlier run may still be terminating.
		{"", []string{"wait", "--for=delete", "namespaces", "--field-selector=status.phase=Terminating", "--timeout=2m"}},
		{"", []string{"apply", "--server-side", "--filename", filepath.Join(crds, "config", "crd", "standard")}},
		{"", []string{"wait", "--for=condition=Established", "--timeout=1m", "--all", "crd"}},
		{"", []string{"apply", "--kustomize", filepath.Join(r.root, "manifests", "base")}},
		{inCluster, []string{"apply", "--filename", "-"}},
		// Pods of an earlier run use old images.
		{"", []string{"rollout", "restart", "deployment", "--namespace", system}},
		{"", []string{"rollout", "status", "deployment", "--namespace", system, "--timeout=5m"}},
		{"", []string{"wait", "--for=condition=Accepted", "--timeout=1m", "gatewayclass/" + class}},
	} {
		if _, err := r.cluster.Kubectl(ctx, step.stdin, step.args...); err != nil {
			return err
		}
	}
	return nil
}

// suite builds the suite and runs it in the cluster's network. It writes the suite's output to a
// log and the results to progress.
func (r *run) suite(ctx context.Context, report string, args []string) error {
	program, log := filepath.Join(r.dir, "suite"), filepath.Join(r.dir, "suite.log")
	build := exec.CommandContext(ctx, "go", "-C", r.suiteModule(), "test", "-c", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the suite: %w\n%s", err, out)
	}
	file, err := os.Create(log)
	if err != nil {
		return err
	}
	defer file.Close()
	command := r.cluster.Enter(ctx, program, append([]string{
		"-test.v", "-test.timeout", suiteTimeout.String(), "-gateway-class", class, "-version", version.Read().Program,
		"-report-output", report,
		"-usable-address", usable, "-unusable-address", unusable,
	}, args...)...)
	command.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.KubeconfigInside())
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	command.Stderr = file
	begun := time.Now()
	fmt.Fprintf(r.progress, "running the suite; it prints its results at the end, and its output until then is in %s\n", log)
	if err := command.Start(); err != nil {
		return err
	}
	passed, failed := results(io.TeeReader(out, file), r.progress)
	err = command.Wait()
	fmt.Fprintf(r.progress, "%d tests passed and %d failed in %v; the report is %s\n", passed, failed,
		time.Since(begun).Round(time.Second), report)
	if err != nil {
		return fmt.Errorf("the suite: %w", err)
	}
	return os.Chmod(report, 0o644)
}

// results parses the output of the suite, prints which tests passed and failed, and counts them.
func results(output io.Reader, progress io.Writer) (passed, failed int) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		found := resultLine.FindStringSubmatch(lines.Text())
		if found == nil {
			continue
		}
		test := len(found[1]) == 4 // a whole test of the suite; deeper levels are its subtests
		switch {
		case test && found[2] == "PASS":
			passed++
		case test:
			failed++
		case found[2] == "PASS":
			continue
		}
		fmt.Fprintln(progress, lines.Text())
	}
	_, _ = io.Copy(io.Discard, output) // the scanner stops at a line that is too long; reading the rest lets the suite finish
	return passed, failed
}

var resultLine = regexp.MustCompile(`^( +)--- (PASS|FAIL): `)
