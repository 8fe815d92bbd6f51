package kube_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/test/apiserver"
)

// followed is a running Source and what it last published.
type followed struct {
	set      atomic.Pointer[objects.Set]
	world    atomic.Pointer[objects.World]
	refused  atomic.Int64
	readable atomic.Bool
}

func (f *followed) Refused(n int)    { f.refused.Store(int64(n)) }
func (f *followed) Readable(ok bool) { f.readable.Store(ok) }

// follow runs a Source until the test ends.
func follow(t testing.TB, c *rest.Config, namespace string) *followed {
	t.Helper()
	return followKinds(t, c, namespace, kinds.All(), slog.New(slog.DiscardHandler))
}

// followKinds is follow with the kinds of a table and a log.
func followKinds(t testing.TB, c *rest.Config, namespace string, table []kinds.Kind, log *slog.Logger) *followed {
	t.Helper()
	f := new(followed)
	f.world.Store(objects.Build(objects.Set{}))
	s, err := kube.New(c, namespace, table, log, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx, func(set objects.Set) {
			f.set.Store(&set)
			f.world.Store(objects.Build(set))
		}); err != nil {
			t.Errorf("following the API server ends with %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return f
}

// endpoints lists the endpoints of a pool in the namespace default, with + if ready and - if not.
func (f *followed) endpoints(pool string) string {
	p := f.world.Load().Pools[objects.Name{Namespace: "default", Name: pool}]
	if p == nil {
		return "no pool"
	}
	var all []string
	for _, e := range p.Endpoints {
		sign := "-"
		if e.Ready {
			sign = "+"
		}
		all = append(all, sign+e.Address)
	}
	return strings.Join(all, " ")
}

func (f *followed) models() string {
	var all []string
	for _, m := range f.world.Load().Models() {
		all = append(all, m.Name)
	}
	return strings.Join(all, " ")
}

// pod is the YAML of a pod with a status as its kubelet would write it.
func pod(name, ip, ready string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: llama}}
spec: {containers: [{name: engine, image: none}]}
status: {podIP: %s, podIPs: [{ip: %[2]s}], phase: Running, conditions: [{type: Ready, status: "%s"}]}
`, name, ip, ready)
}

func TestWorldMatchesTheAPIServer(t *testing.T) {
	c := newCluster(t)
	f := follow(t, reader(c), "")
	c.Await("it is readable without any object", f.readable.Load)
	c.Apply(inferencePool("{"+base+"}") + "\n---\n" + route("{backendRefs: [{name: p}], modelNames: [sql]}") + "\n---\n" +
		model("{poolRef: {name: p}}") + "\n" +
		pod("a", "10.0.0.1", "True") + pod("b", "10.0.0.2", "False"))
	c.Await("all is in force", func() bool {
		return f.endpoints("p") == "+10.0.0.1:8000 -10.0.0.2:8000" && f.models() == "m sql" && len(f.world.Load().Catalogue) == 1
	})

	c.Apply(route("{backendRefs: [{name: p}], modelNames: [text-to-sql]}"))
	c.Await("an edit is in force", func() bool { return f.models() == "m text-to-sql" })

	c.Apply(pod("b", "10.0.0.2", "True"))
	c.Await("a pod that is ready gets requests", func() bool { return f.endpoints("p") == "+10.0.0.1:8000 +10.0.0.2:8000" })

	// A finalizer keeps the pod in the state terminating.
	a := apiserver.ReadObjects(t, pod("a", "", ""))[0]
	hold := []byte(`{"metadata": {"finalizers": ["example.com/wait"]}}`)
	if _, err := c.At(a).Patch(t.Context(), "a", types.MergePatchType, hold, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	grace := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	if err := c.At(a).Delete(t.Context(), "a", grace); err != nil {
		t.Fatal(err)
	}
	c.Await("a pod that is terminating gets nothing new", func() bool { return f.endpoints("p") == "-10.0.0.1:8000 +10.0.0.2:8000" })
	if _, err := c.At(a).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Await("a pod that is gone is none", func() bool { return f.endpoints("p") == "+10.0.0.2:8000" })

	c.Apply(list(`{addresses: ["10.0.0.9:1"]}`) + "\n---\n" + settings(`{poolRef: {name: p}, policy: random}`))
	labels := []byte(`{"metadata": {"labels": {"app": "llama"}}}`)
	l := apiserver.ReadObjects(t, list("{}"))[0]
	if _, err := c.At(l).Patch(t.Context(), "l", types.MergePatchType, labels, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Await("lists and settings are in force", func() bool {
		p := f.world.Load().Pools[objects.Name{Namespace: "default", Name: "p"}]
		return f.endpoints("p") == "+10.0.0.2:8000 +10.0.0.9:1" && p.Settings != nil && *p.Settings.Policy == "random"
	})
	r := apiserver.ReadObjects(t, route("{}"))[0]
	if err := c.At(r).Delete(t.Context(), "r", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Await("a route that is gone admits nothing", func() bool { return f.models() == "m" })

	set, err := kube.Read(t.Context(), reader(c), "", kinds.All())
	if err != nil || len(set.Pods) != 1 || len(set.Pools) != 1 || len(set.Models) != 1 || len(set.Lists) != 1 || len(set.Settings) != 1 ||
		!set.Pods[0].Ready {
		t.Errorf("read once, there are %+v, %v", set, err)
	}
	c.NothingDenied("reader")
}

// A pod without any report from its kubelet is not ready.
func TestUnreportedPodGetsNoRequests(t *testing.T) {
	c := newCluster(t)
	f := follow(t, c.Admin(), "default")
	c.Apply(inferencePool("{"+base+"}") + "\n" + strings.Replace(pod("a", "10.0.0.1", "True"),
		`, conditions: [{type: Ready, status: "True"}]`, "", 1))
	c.Await("it is known", func() bool { return f.endpoints("p") != "no pool" && f.endpoints("p") != "" })
	if got := f.endpoints("p"); got != "-10.0.0.1:8000" {
		t.Errorf("the endpoints are %s", got)
	}
}

func TestOnlyOneNamespaceIsRead(t *testing.T) {
	c := newCluster(t)
	c.Apply(`apiVersion: v1
kind: Namespace
metadata: {name: other}`)
	f, all := follow(t, c.Admin(), "default"), follow(t, c.Admin(), "")
	c.Apply(strings.Replace(inferencePool("{"+base+"}"), "name: p", "name: p, namespace: other", 1) + "\n---\n" +
		inferencePool("{"+base+"}"))
	c.Await("both pools are known to who follows all", func() bool { return len(all.world.Load().Pools) == 2 })
	c.Await("one is known to who follows one", func() bool { return f.endpoints("p") == "" })
	if n := len(f.world.Load().Pools); n != 1 {
		t.Errorf("who follows one namespace has %d pools", n)
	}
}

func TestOutageKeepsTheWorld(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool("{"+base+"}") + "\n---\n" + route("{backendRefs: [{name: p}]}") + "\n" + pod("a", "10.0.0.1", "True"))
	f := follow(t, c.Admin(), "")
	c.Await("all is in force", func() bool { return f.endpoints("p") == "+10.0.0.1:8000" && f.readable.Load() })

	c.Outage()
	c.Await("it is said that the API server is away", func() bool { return !f.readable.Load() })
	if f.endpoints("p") != "+10.0.0.1:8000" || f.models() != "r" {
		t.Errorf("in the outage there are %s and %s", f.endpoints("p"), f.models())
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Apply(pod("b", "10.0.0.2", "True"))
	c.Await("a change after the outage is in force", func() bool { return f.endpoints("p") == "+10.0.0.1:8000 +10.0.0.2:8000" })
	c.Await("it is said that the API server is back", f.readable.Load)
}

func TestChangesDuringAnOutageAreReadAfterwards(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool("{"+base+"}") + "\n" + pod("a", "10.0.0.1", "True") + pod("b", "10.0.0.2", "True"))
	w := newWire(t, net.JoinHostPort(c.Address, apiserver.Port))
	through := c.Admin()
	through.Host, through.ServerName = "https://"+w.address(), "kubernetes"
	f := follow(t, through, "")
	c.Await("all is in force", func() bool { return f.endpoints("p") == "+10.0.0.1:8000 +10.0.0.2:8000" })

	w.cut()
	c.Await("it is said that the API server is away", func() bool { return !f.readable.Load() })
	if err := c.At(apiserver.ReadObjects(t, pod("a", "", ""))[0]).Delete(t.Context(), "a",
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	c.Apply(pod("c", "10.0.0.3", "True"))
	if got := f.endpoints("p"); got != "+10.0.0.1:8000 +10.0.0.2:8000" {
		t.Errorf("out of reach there are %s", got)
	}
	w.mend()
	c.Await("the changes are in force", func() bool { return f.endpoints("p") == "+10.0.0.2:8000 +10.0.0.3:8000" && f.readable.Load() })
}

// The CRDs may be of an older Headgate that validates less.
func TestInvalidObjectIsLeftOut(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool("{" + base + "}"))
	c.lenient("llmroutes")
	f := follow(t, c.Admin(), "")
	bad := apiserver.ReadObjects(t, route("{backendRefs: []}"))[0]
	c.Await("the API server takes it", func() bool {
		_, err := c.At(bad).Create(t.Context(), bad, metav1.CreateOptions{})
		return err == nil
	})
	c.Apply(strings.Replace(route("{backendRefs: [{name: p}]}"), "name: r}", "name: good}", 1))
	c.Await("it is left out, and nothing else", func() bool { return f.models() == "good" && f.refused.Load() == 1 })
	c.Apply(route("{backendRefs: [{name: p}]}"))
	c.Await("once valid it is in force", func() bool { return f.models() == "good r" && f.refused.Load() == 0 })
}

// lenient makes a CRD accept any spec.
func (c cluster) lenient(resource string) {
	c.Helper()
	crd := apiserver.ReadObjects(c, "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition}")[0]
	all := []byte(`[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec", "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}]`)
	if _, err := c.At(crd).Patch(c.Context(), resource+".inference.x-k8s.io", types.JSONPatchType, all, metav1.PatchOptions{}); err != nil {
		c.Fatal(err)
	}
}

// A list accepted by an older CRD reaches nothing in Headgate's own pod, not even by names.
func TestOldListsCannotReachHeadgatesPod(t *testing.T) {
	c := newCluster(t)
	c.lenient("endpointlists")
	named := func(name, spec string) string {
		return strings.Replace(list(spec), "name: l}", "name: "+name+", labels: {app: llama}}", 1)
	}
	for _, text := range []string{
		named("loopback", `{addresses: ["127.0.0.1:1"]}`),
		named("socket", `{addresses: ["10.0.0.1:1"], management: "unix:/x"}`),
	} {
		o := apiserver.ReadObjects(t, text)[0]
		c.Await("the API server takes it", func() bool {
			_, err := c.At(o).Create(t.Context(), o, metav1.CreateOptions{})
			return err == nil || apierrors.IsAlreadyExists(err)
		})
	}
	c.Apply(inferencePool("{"+base+"}") + "\n---\n" + named("name", `{addresses: ["engine:2", "10.0.0.2:2"]}`))
	f := follow(t, c.Admin(), "")
	c.Await("two are left out", func() bool { return f.refused.Load() == 2 && f.endpoints("p") == "+10.0.0.2:2" })

	set := f.set.Load()
	set.Hosts = map[string][]netip.Addr{"engine": {netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}}
	w := objects.Build(*set)
	if got := w.Addresses(); !slices.Equal(got, []string{"10.0.0.2:2", "10.0.0.3:2"}) {
		t.Errorf("with a name the endpoints are %v", got)
	}
	const want = "EndpointList default/name: engine resolves to 127.0.0.1: in a cluster, a loopback address is Headgate's own pod, not an engine's: use the engine's address; Headgate ignores this address"
	if !slices.Contains(w.Problems, want) {
		t.Errorf("the problems are %q", w.Problems)
	}
}

// API servers before 1.34 do not stream lists: each kind is listed first, which requires the right
// to list.
func TestServerWithoutStreamingLists(t *testing.T) {
	c := newCluster(t, "--feature-gates", "WatchList=false")
	c.Apply(inferencePool("{"+base+"}") + "\n---\n" + route("{backendRefs: [{name: p}]}"))
	f := follow(t, reader(c), "")
	c.Await("all is known", func() bool { return f.endpoints("p") == "" && f.models() == "r" })
	requests := c.Requests()
	for _, kind := range []string{"pods", "inferencepools", "llmroutes", "models", "vmodels", "poolsettings", "endpointlists"} {
		for _, verb := range []string{"list", "watch"} {
			if !slices.ContainsFunc(requests, func(r apiserver.Request) bool {
				return r.User.Name == "reader" && r.Verb == verb && r.Object.Resource == kind && !r.Denied()
			}) {
				t.Errorf("the right to %s %s is granted and never used", verb, kind)
			}
		}
	}
}

// reader has exactly the rights that the package comment lists.
func reader(c cluster) *rest.Config {
	return c.Allowed("reader", `
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [list, watch]}
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes, models, vmodels, poolsettings, endpointlists], verbs: [list, watch]}
`)
}
