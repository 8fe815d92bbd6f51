//go:build cluster

package e2e

import (
	"context"
	"crypto/rand"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/test/apiserver"
)

// documentedExec returns the command in a page of docs that runs a command in control's pod.
func documentedExec(t *testing.T, page, command string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?m)(?:^|`)(kubectl exec [^`\n]* -- " + command + ")(?:$|`)").FindStringSubmatch(string(text))
	if found == nil {
		t.Fatalf("docs/%s does not show how to run %s with kubectl exec", page, command)
	}
	return found[1]
}

// shell runs a command line as an operator of the cluster would.
func shell(t *testing.T, line string) string {
	t.Helper()
	binaries, err := apiserver.Build(t.Context(), root, os.Stderr, "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "sh", "-c", `PATH="$0:$PATH"; `+line, binaries)
	command.Env = append(os.Environ(), "KUBECONFIG="+k8s.Kubeconfig())
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// The documented commands work in the pod of the leading control. They print the state of all
// endpoints, and how the extproc beside a request's Envoy picked the endpoint.
func TestStatusAndExplainInControlsPod(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	status := documentedExec(t, "status.md", "headgate status")
	if other := documentedExec(t, "kubernetes.md", "headgate status"); other != status {
		t.Errorf("docs/kubernetes.md shows %s, and docs/status.md %s", other, status)
	}
	explain := documentedExec(t, "explain.md", "headgate explain ID")

	l := pour(t, 4, "llama", "adapter-01", "adapter-02")
	l.goesOn(t, 3)
	addresses := strings.Fields(llm.kubectl("get", "pods", "--selector", "app=llama", "--output", "jsonpath={.items[*].status.podIP}"))
	await(t, "status shows each engine as healthy, with its models", 30*time.Second, func() bool {
		out := shell(t, status)
		return !slices.ContainsFunc(addresses, func(a string) bool {
			return !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(a) + `:8000 +healthy `).MatchString(out)
		}) && strings.Contains(out, "4 endpoints: 4 healthy") && strings.Contains(out, "adapter-02") &&
			regexp.MustCompile(`llm/llama +4 of 4 `).MatchString(out)
	})

	// Each connection reaches an Envoy at random. Each of the two Envoys gets a request.
	recorded := regexp.MustCompile(`^\[pod/([^/]+)/envoy\].*"endpoint":"([^"]+)"`)
	seen := make(map[string]bool)
	for sent := 0; len(seen) < 2; sent++ {
		if sent == 20 {
			t.Fatalf("20 requests have reached only %v", seen)
		}
		id, client := rand.Text(), k8s.Client()
		code, fault, err := completeAs(t.Context(), client, id, "adapter-01", 2, false)
		client.CloseIdleConnections()
		if err != nil || code != http.StatusOK {
			t.Fatal(code, fault, err)
		}
		story := shell(t, strings.TrimSuffix(explain, "ID")+id)
		pod := regexp.MustCompile(`\(extproc ([^/)]+)`).FindStringSubmatch(story)
		if pod == nil || strings.Count(story, "request "+id) != 1 {
			t.Fatalf("explain prints\n%s", story)
		}
		if seen[pod[1]] {
			continue
		}
		seen[pod[1]] = true
		record := recorded.FindStringSubmatch(accessLog(t.Context(), id))
		if record == nil || record[1] != pod[1] {
			t.Fatalf("the Envoy of %s had the request, and explain prints\n%s", record, story)
		}
		for _, want := range []string{"adapter-01", "llm/llama", "status 200", "served by " + record[2]} {
			if !strings.Contains(story, want) {
				t.Errorf("explain does not print %q:\n%s", want, story)
			}
		}
	}
	l.none(t, "while status and explain ran")
}
