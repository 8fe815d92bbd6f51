//go:build cluster

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/image"
	"github.com/headgate/headgate/test/apiserver"
)

// nextTag is a second tag of Headgate's images, for upgrades.
const nextTag = "next"

// ofEnvoys selects the pods of Gateways.
const ofEnvoys = "app.kubernetes.io/name=headgate,app.kubernetes.io/component=envoy"

// helm runs a command of Helm on the release headgate.
func (s *space) helm(args ...string) {
	s.t.Helper()
	binaries, err := apiserver.Build(context.WithoutCancel(s.t.Context()), root, os.Stderr, "helm")
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 10*time.Minute) // cleanups run it, too
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(binaries, "helm"),
		append(args, "--namespace", s.name, "--kubeconfig", k8s.Kubeconfig())...)
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+s.t.TempDir(), "HELM_CONFIG_HOME="+s.t.TempDir(), "HELM_DATA_HOME="+s.t.TempDir())
	if out, err := command.CombinedOutput(); err != nil {
		s.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// runs fails the test if a pod of Headgate has another image than those with a tag.
func (s *space) runs(tag string) {
	s.t.Helper()
	images := strings.Fields(s.kubectl("get", "pods", "--selector", "app.kubernetes.io/name=headgate", "--output",
		`jsonpath={range .items[*]}{range .spec.initContainers[*]}{.image} {end}{range .spec.containers[*]}{.image} {end}{end}`))
	if len(images) == 0 {
		s.t.Error("Headgate has no pods")
	}
	for _, i := range images {
		if !strings.HasSuffix(i, ":"+tag) {
			s.t.Errorf("a pod has the image %s, want the tag %s", i, tag)
		}
	}
}

// The chart is installed, upgraded to other images and rolled back under load. No request fails and
// no stream is cut. Without the release, the CRDs and the objects of users are still there.
func TestChartUpgradesCostNoRequest(t *testing.T) {
	sys := &space{t, system}
	gatewayAPI(t)
	for _, name := range []string{image.Program, image.Envoy} {
		tagged := strings.TrimSuffix(name, ":dev") + ":" + nextTag
		if out, err := k8s.Enter(t.Context(), "ctr", "--namespace", "k8s.io", "images", "tag", "--force", name, tagged).CombinedOutput(); err != nil {
			t.Fatalf("tag %s: %v\n%s", tagged, err, out)
		}
	}
	tag := func(tag string) []string {
		return []string{"--set", fmt.Sprintf("image.tag=%s,envoyImage.tag=%s", tag, tag), "--wait", "--timeout", "5m"}
	}
	chart := filepath.Join(root, "packaging", "chart")
	// A cluster that stays up between runs may have the objects of manifests/base.
	sys.helm(append([]string{"upgrade", "headgate", chart, "--install", "--create-namespace", "--take-ownership", "--force-conflicts"},
		tag("dev")...)...)
	uninstall := true
	t.Cleanup(func() {
		if uninstall {
			sys.helm("uninstall", "headgate", "--ignore-not-found")
		}
	})
	logsIfFailed(t) // after the cleanup that uninstalls, because cleanups run in reverse order
	if out, err := k8s.Kubectl(t.Context(), clusterIP, "apply", "--filename", "-"); err != nil {
		t.Fatal(out, err)
	}
	llm := &space{t, example}
	if out, err := k8s.Kubectl(t.Context(), "", "apply", "--kustomize", "../../../manifests/examples/simulated"); err != nil {
		t.Fatal(out, err)
	}
	ready(sys, llm)
	sys.runs("dev")

	ended := streams(t, 8, 600)
	l := pour(t, 8, "llama", "adapter-01", "adapter-02")
	l.goesOn(t, 10)
	replaced := func(tag string) {
		t.Helper()
		l.goesOn(t, 10)
		envoys := sys.envoysOf("headgate")
		await(t, "control has changed the image of the Envoys", time.Minute, func() bool {
			return strings.Contains(sys.kubectl("get", envoys, "--output", "yaml"), strings.TrimSuffix(image.Envoy, "dev")+tag)
		})
		sys.kubectl("rollout", "status", envoys, "--timeout", "5m")
		await(t, "the pods of before have ended", 6*time.Minute, func() bool { return len(sys.pods(ofEnvoys)) == 2 })
		sys.runs(tag)
		l.goesOn(t, 10)
	}
	sys.helm(append([]string{"upgrade", "headgate", chart, "--force-conflicts"}, tag(nextTag)...)...)
	replaced(nextTag)
	sys.helm("rollback", "headgate", "--force-conflicts", "--wait", "--timeout", "5m")
	replaced("dev")
	l.none(t, "while the chart was upgraded and rolled back")
	ended()

	// These are the commands of docs/kubernetes.md. Control deletes the pods of the Gateway, and
	// removes the finalizer of the GatewayClass. Uninstalling the release also deletes control,
	// which could then do neither.
	sys.kubectl("delete", "gateway/headgate", "gatewayclass/headgate")
	sys.kubectl("wait", "--for=delete", "deployment", "-l", "headgate.dev/gateway")
	if left := sys.kubectl("get", "deployments", "--selector", ofEnvoys, "--output", "name"); left != "" {
		t.Errorf("control has not deleted %s", left)
	}
	sys.helm("uninstall", "headgate", "--wait")
	uninstall = false
	if routes := llm.kubectl("get", "llmroutes", "--output", "name"); routes == "" {
		t.Error("the LLMRoutes have gone with the release")
	}
}
