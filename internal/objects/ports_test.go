package objects_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// An endpoint has its list's ports, and otherwise those of its pool's settings. Without either, its
// address serves everything. EndpointAt inverts Reached.
func TestPortsOfAnEndpoint(t *testing.T) {
	ports := func(grpc, http, metrics int32) *v1alpha1.Ports {
		var p v1alpha1.Ports
		for _, of := range []struct {
			to **int32
			n  int32
		}{{&p.GRPC, grpc}, {&p.HTTP, http}, {&p.Metrics, metrics}} {
			if of.n != 0 {
				*of.to = &of.n
			}
		}
		return &p
	}
	list := objects.List{Loopback: true}
	list.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: "triton", Labels: llama}
	list.Spec.Addresses, list.Spec.Ports = []string{"10.0.0.1:8000", "[fd00::1]:8000"}, ports(8001, 0, 0)
	settings := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "base"}}
	settings.Spec.PoolRef.Name, settings.Spec.Ports = "base", ports(9001, 9000, 9002)
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000), aPool("other", map[string]string{"app": "other"}, 8000)},
		Lists: []objects.List{list}, Settings: []v1alpha1.PoolSettings{settings},
		Pods: []objects.Pod{aPod("a", "10.0.0.2", true, llama), aPod("b", "10.0.0.3", true, map[string]string{"app": "other"})},
	})
	for _, c := range []struct{ endpoint, grpc, http string }{
		{"10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.1:9000"},
		{"[fd00::1]:8000", "[fd00::1]:8001", "[fd00::1]:9000"},
		{"10.0.0.2:8000", "10.0.0.2:9001", "10.0.0.2:9000"},
		{"10.0.0.3:8000", "10.0.0.3:8000", "10.0.0.3:8000"},
		{"10.9.9.9:8000", "10.9.9.9:8000", "10.9.9.9:8000"}, // no endpoint's
	} {
		if grpc, http := w.Reached(c.endpoint, objects.GRPC), w.Reached(c.endpoint, objects.HTTP); grpc != c.grpc || http != c.http {
			t.Errorf("%s takes gRPC at %s, want %s, and all else at %s, want %s", c.endpoint, grpc, c.grpc, http, c.http)
		}
		for _, at := range []string{c.endpoint, c.grpc, c.http} {
			if got := w.EndpointAt(at); got != c.endpoint {
				t.Errorf("%s is a port of %s, want %s", at, got, c.endpoint)
			}
		}
	}
	if i := slices.IndexFunc(w.Engines, func(e objects.Engine) bool {
		return e.Address == "10.0.0.2:8000"
	}); w.Engines[i].Ports != (objects.Ports{GRPC: 9001, HTTP: 9000, Metrics: 9002}) {
		t.Errorf("the engine has the ports %+v", w.Engines[i].Ports)
	}
	if !w.HasPorts() || len(w.Problems) > 0 {
		t.Errorf("ports: %v, problems %q", w.HasPorts(), w.Problems)
	}
}

// Two endpoints on one host cannot share a port: their requests could not be told apart.
func TestEndpointsCannotShareAPort(t *testing.T) {
	grpc := int32(9001)
	settings := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "base"}}
	settings.Spec.PoolRef.Name, settings.Spec.Ports = "base", &v1alpha1.Ports{GRPC: &grpc}
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000, 8001)}, Settings: []v1alpha1.PoolSettings{settings},
		Pods: []objects.Pod{aPod("a", "10.0.0.2", true, llama)},
	})
	want := []string{"endpoints 10.0.0.2:8000 and 10.0.0.2:8001 both receive requests at 10.0.0.2:9001: pods with several target ports cannot have ports of their own"}
	if !slices.Equal(w.Problems, want) {
		t.Errorf("problems %q, want %q", w.Problems, want)
	}
	if got := w.EndpointAt("10.0.0.2:9001"); got != "10.0.0.2:8000" {
		t.Errorf("the port is that of %s", got)
	}
}

func TestPortIsAPort(t *testing.T) {
	for _, n := range []int32{0, -1, 65536} {
		var s v1alpha1.PoolSettings
		s.Name, s.Spec.PoolRef.Name = "a", "a"
		s.Spec.Ports = &v1alpha1.Ports{GRPC: &n, HTTP: &n, Metrics: &n}
		if errs := objects.CheckSettings(&s); len(errs) != 3 {
			t.Errorf("port %d: %v", n, errs)
		}
		l := v1alpha1.EndpointList{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		l.Spec.Addresses, l.Spec.Ports = []string{"10.0.0.1:1"}, &v1alpha1.Ports{Metrics: &n}
		if errs := objects.CheckList(&l); len(errs) != 1 {
			t.Errorf("port %d: %v", n, errs)
		}
	}
}

// One endpoint may serve both protocols on one other port, or name its own.
func TestOnePortForBothProtocols(t *testing.T) {
	for _, n := range []int32{9001, 8000} {
		settings := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "base"}}
		settings.Spec.PoolRef.Name, settings.Spec.Ports = "base", &v1alpha1.Ports{GRPC: &n, HTTP: &n}
		w := objects.Build(objects.Set{
			Pools: []pool.InferencePool{aPool("base", llama, 8000)}, Settings: []v1alpha1.PoolSettings{settings},
			Pods: []objects.Pod{aPod("a", "10.0.0.2", true, llama)},
		})
		if len(w.Problems) > 0 {
			t.Errorf("port %d: problems %q", n, w.Problems)
		}
	}
}

// A model runtime serves only gRPC, unless a port for HTTP is configured. One such runtime is
// enough for its pool.
func TestModelRuntimesServeOnlyGRPC(t *testing.T) {
	at := func(name, address string, kind engine.Kind, http int32) objects.List {
		l := objects.List{}
		l.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: name, Labels: llama}
		l.Spec.Addresses, l.Spec.Engine = []string{address}, string(kind)
		if http != 0 {
			l.Spec.Ports = &v1alpha1.Ports{HTTP: &http}
		}
		return l
	}
	for _, c := range []struct {
		what  string
		lists []objects.List
		alone bool
	}{
		{"a runtime", []objects.List{at("a", "10.0.0.1:8000", engine.ModelRuntime, 0)}, true},
		{"a runtime that takes HTTP at its address", []objects.List{at("a", "10.0.0.1:8000", engine.ModelRuntime, 8000)}, false},
		{"another engine", []objects.List{at("a", "10.0.0.1:8000", engine.Triton, 0)}, false},
		{"one whose kind nobody says", []objects.List{at("a", "10.0.0.1:8000", "", 0)}, false},
		{"a runtime beside another engine", []objects.List{
			at("a", "10.0.0.1:8000", engine.Triton, 0),
			at("b", "10.0.0.2:8000", engine.ModelRuntime, 0),
		}, true},
		{"nothing", nil, false},
	} {
		w := objects.Build(objects.Set{Pools: []pool.InferencePool{aPool("base", llama, 8000)}, Lists: c.lists})
		if got := w.Pools[objects.Name{Namespace: "default", Name: "base"}].CallsOnly; got != c.alone {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}
