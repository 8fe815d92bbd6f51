package eds_test

import (
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/internal/objects"
)

// Endpoints that share a port are listed once, and every list is sorted, for any ports.
func TestSharedPortsAreListedOnce(t *testing.T) {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}}
	p.Spec.Selector.MatchLabels, p.Spec.TargetPorts = map[string]string{"app": "one"}, []pool.Port{{Number: 8000}, {Number: 8001}}
	list := objects.List{Loopback: true}
	list.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "more", Labels: p.Spec.Selector.MatchLabels}
	grpc, other := int32(9001), int32(7000)
	list.Spec.Addresses, list.Spec.Ports = []string{"10.0.0.1:8500"}, &v1alpha1.Ports{GRPC: &other}
	settings := v1alpha1.PoolSettings{ObjectMeta: p.ObjectMeta}
	settings.Spec.PoolRef.Name, settings.Spec.Ports = "one", &v1alpha1.Ports{GRPC: &grpc}
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{p}, Lists: []objects.List{list}, Settings: []v1alpha1.PoolSettings{settings},
		Pods: []objects.Pod{{
			Name: objects.Name{Namespace: "ns", Name: "one"}, IP: netip.MustParseAddr("10.0.0.1"), Ready: true,
			Labels: p.Spec.Selector.MatchLabels,
		}},
	})
	for name, want := range map[string][]string{
		"calls": {"10.0.0.1:7000", "10.0.0.1:9001"}, "calls/ns/one": {"10.0.0.1:7000", "10.0.0.1:9001"},
		"endpoints": {"10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.1:8500"},
	} {
		var got []string
		for _, e := range eds.Endpoints(w, "")[name] {
			got = append(got, e.Address)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s lists %v, want %v", name, got, want)
		}
	}
}
