package objects_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// The containers that declare a port of the engine are its incarnation. Where none does, all are,
// without sidecars.
func TestIncarnationOfAPod(t *testing.T) {
	container := func(id string, ports ...int32) objects.Container { return objects.Container{ID: id, Ports: ports} }
	proxy := container("proxy", 15090)
	sidecar := objects.Container{ID: "sidecar", Ports: []int32{9000}, Sidecar: true}
	placement := v1alpha1.PoolSettingsSpec{Placement: &v1alpha1.Placement{Management: "port:8085"}}
	ports := v1alpha1.PoolSettingsSpec{Ports: &v1alpha1.Ports{GRPC: new(int32(8001))}}
	type containers = []objects.Container
	served := container("a", 8000)
	managed := containers{served, container("m", 8085), proxy}
	for name, row := range map[string]struct {
		kind       engine.Kind
		containers containers
		settings   v1alpha1.PoolSettingsSpec
		want       string
	}{
		"none runs":                    {want: ""},
		"one without ports":            {containers: containers{container("a")}, want: "a"},
		"none declares the port":       {containers: containers{container("a"), proxy, sidecar}, want: "a,proxy"},
		"one declares the port":        {containers: containers{served, container("b"), proxy}, want: "a"},
		"a sidecar declares the port":  {containers: containers{served, {ID: "s", Ports: []int32{8000}, Sidecar: true}}, want: "a,s"},
		"management port of another":   {containers: managed, want: "a"},
		"its management port":          {containers: managed, settings: placement, want: "a,m"},
		"an agent's port, for vLLM":    {kind: engine.VLLM, containers: managed, settings: placement, want: "a"},
		"only the management port":     {containers: containers{container("a"), container("m", 8085)}, settings: placement, want: "m"},
		"the port for gRPC":            {containers: containers{container("a", 8001), container("b", 1)}, settings: ports, want: "a"},
		"the same order as the status": {containers: containers{container("z", 8000), container("a", 8000)}, want: "z,a"},
	} {
		labels := map[string]string{"app": "llama"}
		if row.kind != "" {
			labels[engine.KindLabel] = string(row.kind)
		}
		pod := aPod("pod", "10.0.0.1", true, labels)
		pod.Containers = row.containers
		row.settings.PoolRef.Name = "p"
		w := objects.Build(objects.Set{
			Pools: []pool.InferencePool{aPool("p", llama, 8000)}, Pods: []objects.Pod{pod},
			Settings: []v1alpha1.PoolSettings{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: row.settings}},
		})
		if len(w.Engines) != 1 || w.Engines[0].Incarnation != row.want {
			t.Errorf("%s: the engines are %+v, want the incarnation %q", name, w.Engines, row.want)
		}
	}
}
