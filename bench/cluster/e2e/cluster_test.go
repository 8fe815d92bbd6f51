//go:build cluster

package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/test/apiserver"
)

func TestServiceIsReachedByItsNameFromAPod(t *testing.T) {
	s := namespace(t)
	s.apply("testdata/engine")
	s.rolledOut("deployment/engine")
	pods := s.pods("app=engine")
	if len(pods) != 2 {
		t.Fatalf("the pods are %v", pods)
	}
	inPod, err := k8s.Pod(t.Context(), s.name, pods[0])
	if err != nil {
		t.Fatal(err)
	}
	names, err := inPod.File("/etc/resolv.conf")
	if err != nil || !strings.Contains(string(names), "nameserver 10.96.0.10") ||
		!strings.Contains(string(names), s.name+".svc.cluster.local") {
		t.Errorf("the pod resolves names as %q says, %v", names, err)
	}
	for from, space := range map[string]podNetwork{"a pod": inPod, "the node": k8s.podNetwork} {
		served := make(map[string]bool)
		await(t, "every pod has answered "+from, 10*time.Second, func() bool { // a Service balances connections, not requests
			client := space.Client()
			defer client.CloseIdleConnections()
			status, body, err := fetch(t.Context(), client, s.url("engine", "/v1/models"))
			if err != nil {
				return false // kube-proxy adds a pod shortly after the pod becomes ready
			}
			for _, pod := range pods {
				served[pod] = served[pod] || status == http.StatusOK && strings.Contains(body, strconv.Quote(pod))
			}
			return served[pods[0]] && served[pods[1]]
		})
	}
}

func TestContainerThatIsKilledIsStartedAgain(t *testing.T) {
	s := namespace(t)
	s.apply("testdata/engine")
	s.rolledOut("deployment/engine")
	pod := s.pods("app=engine")[0]
	if err := k8s.Kill(t.Context(), s.name, pod, "engine"); err != nil {
		t.Fatal(err)
	}
	await(t, "the kubelet has started it once more", time.Minute, func() bool {
		return s.kubectl("get", "pod", pod, "--output", "jsonpath={.status.containerStatuses[0].restartCount}") == "1"
	})
	s.rolledOut("deployment/engine")
	if err := k8s.Kill(t.Context(), s.name, "none", "engine"); err == nil {
		t.Error("a pod that does not exist is killed")
	}
}

func TestTrafficGoesOnWhileTheAPIServerIsDown(t *testing.T) {
	s := namespace(t)
	s.apply("testdata/engine")
	s.rolledOut("deployment/engine")
	client := k8s.Client()
	defer client.CloseIdleConnections()
	await(t, "the Service leads somewhere", 10*time.Second, func() bool {
		status, _, err := fetch(t.Context(), client, s.url("engine", "/v1/models"))
		return err == nil && status == http.StatusOK
	})
	if err := k8s.Outage(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := k8s.Kubectl(t.Context(), "", "get", "nodes", "--request-timeout", "2s"); err == nil {
		t.Errorf("in an outage kubectl says %s", out)
	}
	if status, _ := get(t, client, s.url("engine", "/v1/models")); status != http.StatusOK {
		t.Errorf("in an outage a Service answers %d", status)
	}
	if err := k8s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := s.kubectl("get", "pods", "--no-headers"); strings.Count(out, "Running") != 2 {
		t.Errorf("after the outage there are: %s", out)
	}
}

func TestAuditLogNamesCallers(t *testing.T) {
	s := namespace(t)
	s.kubectl("get", "pods")
	requests, err := apiserver.Requests(k8s.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if r.User.Name == "admin" && r.Verb == "list" && r.Object.Resource == "pods" && r.Object.Namespace == s.name {
			return
		}
	}
	t.Errorf("%d requests are told, and not that this test listed pods", len(requests))
}
