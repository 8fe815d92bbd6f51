package kinds

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

var condition = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "fine"}

func aPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "engine-1", Labels: map[string]string{"app": "llama"},
			Annotations: map[string]string{"note": "long", "inference.networking.k8s.io/active-ports": "8000, 8001"},
		},
		Spec: corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.7",
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, condition},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "a", ContainerID: "containerd://1"},
				{Name: "b"},
				{Name: "c", ContainerID: "containerd://2"},
			},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

// migrating marks a pod as being deleted, with 90 s of grace, and as serving until its models are
// elsewhere.
func migrating(p *corev1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(90, 0)}, new(int64(90))
	p.Annotations[v1alpha1.PreStop] = v1alpha1.PreStopMigrate
}

// gate adds a readiness gate to a pod and, with a status, its condition.
func gate(p *corev1.Pod, name string, is corev1.ConditionStatus) {
	p.Spec.ReadinessGates = append(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(name)})
	if is != "" {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(name), Status: is})
	}
}

// onTrialBut is a pod on trial with a change.
func onTrialBut(change func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions[1].Status = corev1.ConditionFalse
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue})
		gate(p, v1alpha1.ModelsLoad, "")
		if change != nil {
			change(p)
		}
	}
}

// A pod is on trial while only Headgate's readiness gate keeps it from being ready.
func TestPodsOnTrial(t *testing.T) {
	condition := func(p *corev1.Pod, name corev1.PodConditionType, is corev1.ConditionStatus) {
		p.Status.Conditions = append([]corev1.PodCondition{{Type: name, Status: is}}, p.Status.Conditions...)
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		is     bool
	}{
		"nobody said anything yet": {nil, true},
		"loads fail there":         {func(p *corev1.Pod) { condition(p, v1alpha1.ModelsLoad, corev1.ConditionFalse) }, true},
		"models load there":        {func(p *corev1.Pod) { condition(p, v1alpha1.ModelsLoad, corev1.ConditionTrue) }, false},
		"another gate is closed":   {func(p *corev1.Pod) { gate(p, "example.com/gate", corev1.ConditionFalse) }, false},
		"another gate is open":     {func(p *corev1.Pod) { gate(p, "example.com/gate", corev1.ConditionTrue) }, true},
		"without our gate":         {func(p *corev1.Pod) { p.Spec.ReadinessGates[0].ConditionType = "example.com/gate" }, false},
		"without gates":            {func(p *corev1.Pod) { p.Spec.ReadinessGates = nil }, false},
		"containers not ready":     {func(p *corev1.Pod) { p.Status.Conditions[2].Status = corev1.ConditionFalse }, false},
		"being deleted":            {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, false},
		"ended":                    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	} {
		p, _ := podOf(aPod(onTrialBut(c.change)))
		if p.OnTrial != c.is || p.OnTrial && p.Ready {
			t.Errorf("%s: a pod is on trial: %v, ready: %v", name, p.OnTrial, p.Ready)
		}
	}
}

// made gives a pod an owner and a label with its version.
func made(by, label, template string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.CreationTimestamp, p.UID = metav1.Unix(7, 0), "u"
		p.Labels[label] = template
		p.OwnerReferences = []metav1.OwnerReference{{Name: "nobody"}, {Name: by, Controller: new(true)}}
	}
}

func TestVersionOfAPod(t *testing.T) {
	for _, c := range []struct {
		change func(*corev1.Pod)
		want   objects.Version
	}{
		{nil, objects.Version{}},
		{made("engines-7d4f", "pod-template-hash", "7d4f"), objects.Version{Workload: "engines", Template: "7d4f", Made: time.Unix(7, 0)}},
		{
			made("engines", "controller-revision-hash", "engines-7d4f"),
			objects.Version{Workload: "engines", Template: "engines-7d4f", Made: time.Unix(7, 0)},
		},
		{made("engines", "app", "llama"), objects.Version{}},
		{func(p *corev1.Pod) { p.Labels["pod-template-hash"] = "7d4f" }, objects.Version{}},
	} {
		if p, _ := podOf(aPod(c.change)); p.Version != c.want {
			t.Errorf("%+v, want %+v", p.Version, c.want)
		}
	}
}

// A hook returns 5 s before the pod is killed, or as soon as the pod's annotation says.
func TestMigrationTimeOfAPod(t *testing.T) {
	for _, c := range []struct {
		says  string
		until int64 // seconds after the deletion; 0: not at all
	}{
		{"migrate", 85}, {"migrate 60s", 60}, {"migrate 1m", 60}, {"migrate 2m", 85}, {"migrate soon", 85}, {"migrates", 0}, {"", 0},
	} {
		p, faults := podOf(aPod(func(p *corev1.Pod) {
			migrating(p)
			p.Annotations[v1alpha1.PreStop] = c.says
		}))
		if want := c.until; len(faults) > 0 || p.Migrates.IsZero() != (want == 0) || want != 0 && p.Migrates.Unix() != want {
			t.Errorf("%q: it migrates until %v, %v", c.says, p.Migrates, faults)
		}
	}
	if p, _ := podOf(aPod(func(p *corev1.Pod) { // from a folder, without a grace period
		migrating(p)
		p.Annotations[v1alpha1.PreStop], p.DeletionGracePeriodSeconds = "migrate 60s", nil
	})); p.Migrates.Unix() != 85 {
		t.Errorf("a pod that is deleted nobody knows when migrates until %v", p.Migrates)
	}
	if p, _ := podOf(aPod(func(p *corev1.Pod) { p.Annotations[v1alpha1.PreStop] = "migrate" })); !p.Migrates.IsZero() {
		t.Errorf("a pod that stays migrates until %v", p.Migrates)
	}
}

func TestOnlyReadyPodsGetRequests(t *testing.T) {
	contained := func(status corev1.ConditionStatus, p *corev1.Pod) {
		p.Status.Conditions[1].Status = corev1.ConditionFalse
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady, Status: status})
	}
	for name, c := range map[string]struct {
		change     func(*corev1.Pod)
		ready      bool
		nodeSilent bool
	}{
		"ready":                {nil, true, false},
		"by hand":              {func(p *corev1.Pod) { p.Status.Conditions = nil }, true, false},
		"not ready":            {func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }, false, false},
		"unknown":              {func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionUnknown }, false, false},
		"being deleted":        {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, false, false},
		"failed":               {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false, false},
		"ended":                {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false, false},
		"containers not ready": {func(p *corev1.Pod) { contained(corev1.ConditionFalse, p) }, false, false},
		"node silent":          {func(p *corev1.Pod) { contained(corev1.ConditionTrue, p) }, true, true},
		"a gate is closed": {func(p *corev1.Pod) {
			contained(corev1.ConditionTrue, p)
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
		}, false, false},
		"a gate is open on a silent node": {func(p *corev1.Pod) {
			contained(corev1.ConditionTrue, p)
			gate(p, "example.com/gate", corev1.ConditionTrue)
		}, true, true},
		"deleted on a silent node": {func(p *corev1.Pod) {
			contained(corev1.ConditionTrue, p)
			p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}, false, false},
		"deleted, and migrates": {migrating, true, false},
		"deleted, and migrates, not ready": {func(p *corev1.Pod) {
			migrating(p)
			p.Status.Conditions[1].Status = corev1.ConditionFalse
		}, false, false},
		"deleted, and another hook": {func(p *corev1.Pod) {
			migrating(p)
			p.Annotations[v1alpha1.PreStop] = "another"
		}, false, false},
	} {
		p, faults := podOf(aPod(c.change))
		if p.Ready != c.ready || p.NodeSilent != c.nodeSilent || len(faults) > 0 {
			t.Errorf("%s: ready is %v, the node's silence %v, faults are %v", name, p.Ready, p.NodeSilent, faults)
		}
		if over := name == "failed" || name == "ended"; p.IP.IsValid() == over {
			t.Errorf("%s: its address is %v", name, p.IP)
		}
		if deleted := strings.Contains(name, "deleted"); p.Terminating != deleted {
			t.Errorf("%s: terminating is %v", name, p.Terminating)
		}
	}
}

func TestPodAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.7": "10.0.0.7", "fd00::7": "fd00::7", "::ffff:10.0.0.7": "10.0.0.7", "127.0.0.11": "127.0.0.11", "": "",
		"169.254.169.254": "-", "::ffff:169.254.169.254": "-", "fe80::1": "-", "fe80::1%eth0": "-", "0.0.0.0": "-", "::": "-",
		"224.0.0.1":       "-",
		"255.255.255.255": "-", "ff02::1": "-", "10.0.0": "-",
	} {
		p, faults := podOf(aPod(func(p *corev1.Pod) { p.Status.PodIP = text }))
		switch {
		case want == "-" && len(faults) != 1:
			t.Errorf("%s: %v", text, faults)
		case want != "-" && (len(faults) != 0 || p.IP.IsValid() != (want != "") || p.IP.IsValid() && p.IP.String() != want):
			t.Errorf("%s: the address is %v, %v", text, p.IP, faults)
		}
	}
}

// restarts is the restart policy of a native sidecar.
const restarts = corev1.ContainerRestartPolicyAlways

// withPorts adds containers that declare ports: the engine, a native sidecar and an init container.
func withPorts(p *corev1.Pod) {
	port := func(n int32) []corev1.ContainerPort { return []corev1.ContainerPort{{Name: "p", ContainerPort: n}} }
	p.Spec.Containers = []corev1.Container{{Name: "a", Image: "engine", Ports: port(8000)}, {Name: "c", Image: "other"}}
	p.Spec.InitContainers = []corev1.Container{
		{Name: "agent", Ports: append(port(8086), port(8001)...), RestartPolicy: new(restarts)},
		{Name: "init", Ports: port(8000)},
	}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: "agent", ContainerID: "containerd://3"}, {Name: "init", ContainerID: "containerd://4"},
	}
}

// The containers of a pod that run are known with their ports. An init container that has ended is
// none of them.
func TestContainersOfAPod(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*corev1.Pod)
		want   []objects.Container
	}{
		"without ports": {nil, []objects.Container{{ID: "containerd://1"}, {ID: "containerd://2"}}},
		"with ports": {withPorts, []objects.Container{
			{ID: "containerd://1", Ports: []int32{8000}},
			{ID: "containerd://2"},
			{ID: "containerd://3", Ports: []int32{8086, 8001}, Sidecar: true},
		}},
		"none runs": {func(p *corev1.Pod) { withPorts(p); p.Status = corev1.PodStatus{} }, nil},
	} {
		p, _ := podOf(aPod(row.change))
		if diff := cmp.Diff(row.want, p.Containers); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestTrimmedPod(t *testing.T) {
	for _, change := range []func(*corev1.Pod){
		nil,
		withPorts,
		func(p *corev1.Pod) { migrating(p); p.Annotations[v1alpha1.PreStop] = "migrate 60s" },
		func(p *corev1.Pod) { p.Annotations = nil; p.Status.Conditions = nil; p.Status.ContainerStatuses = nil },
		func(p *corev1.Pod) { p.Annotations["llm-d.ai/active-ports"] = "1"; p.Status.PodIP = "" },
		func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		made("engines-7d4f", "pod-template-hash", "7d4f"),
		onTrialBut(nil),
		onTrialBut(func(p *corev1.Pod) { gate(p, "example.com/gate", corev1.ConditionTrue) }),
		func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse },
		func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionFalse},
				{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
			}
		},
		func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionFalse},
				{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
			}
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
		},
	} {
		whole, trimmed := aPod(change), aPod(change)
		trimPod(trimmed)
		want, _ := podOf(whole)
		got, _ := podOf(trimmed)
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("(-whole +trimmed):\n%s", diff)
		}
		for _, c := range trimmed.Spec.Containers {
			if c.Image != "" {
				t.Errorf("it keeps the container %+v", c)
			}
		}
		if trimmed.Spec.NodeName != "" || trimmed.Annotations["note"] != "" || len(trimmed.Status.Conditions) > 3 ||
			len(trimmed.OwnerReferences) > 1 {
			t.Errorf("it keeps %+v", trimmed)
		}
	}
}
