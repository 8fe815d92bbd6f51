package pods_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/headgate/headgate/control/attach/controller"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/pods"
	"github.com/headgate/headgate/control/pods/gateway"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/apiserver"
	"github.com/headgate/headgate/test/network"
)

const system = "headgate-system"

// keeping is a running control that makes the pods of Gateways.
type keeping struct {
	*testing.T
	client kubernetes.Interface
	known  *broadcast.Value[conditions.Input]
	told   *broadcast.Value[conditions.Input]
	end    func()
}

// keep runs a control with the objects of a YAML text until the test ends, or until end is called.
func keep(t *testing.T, client kubernetes.Interface, yaml string) *keeping {
	ctx, cancel := context.WithCancel(t.Context())
	k := &keeping{T: t, client: client, known: broadcast.New[conditions.Input](), told: broadcast.New[conditions.Input]()}
	k.set(yaml)
	done := make(chan error)
	go func() {
		done <- pods.Gateways{
			Pod: pods.Pod{Client: client, Namespace: system, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, EnvoyImage: "envoy:1",
			ExtprocImage: "extproc:1", Port: 8035,
		}.Run(ctx, func() bool { return true }, k.known.Get, func(in conditions.Input) { k.told.Set(&in) })
	}()
	k.end = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	return k
}

func (k *keeping) set(yaml string) {
	n := network.Read(k.T,
		"kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n"+yaml)
	a := attach.Of(n)
	k.known.Set(&conditions.Input{Attachments: a, Network: n, Plans: plan.Of(a, n, plan.Known{})})
}

func (k *keeping) await(what string, holds func() bool) {
	k.Helper()
	deadline := time.After(20 * time.Second)
	for tick := time.NewTicker(20 * time.Millisecond); !holds(); {
		select {
		case <-tick.C:
		case <-deadline:
			k.Fatalf("timeout waiting until %s", what)
		}
	}
}

// gateway returns what control reports about a Gateway.
func (k *keeping) gateway(name string) conditions.Gateway {
	in, _ := k.told.Get()
	if in == nil {
		return conditions.Gateway{}
	}
	return in.Gateways[objects.Name{Namespace: "ns", Name: name}]
}

func (k *keeping) address(name string) string {
	if all := k.gateway(name).Addresses; len(all) > 0 {
		return all[0].Value
	}
	return ""
}

// made formats the objects that control has made for a Gateway.
func (k *keeping) made(name string) string {
	ctx, of := k.Context(), gateway.Name(objects.Name{Namespace: "ns", Name: name})
	var all []string
	note := func(kind string, err error) {
		if err == nil {
			all = append(all, kind)
		} else if !apierrors.IsNotFound(err) {
			k.Fatal(err)
		}
	}
	_, err := k.client.AppsV1().Deployments(system).Get(ctx, of, metav1.GetOptions{})
	note("Deployment", err)
	_, err = k.client.CoreV1().Services(system).Get(ctx, of, metav1.GetOptions{})
	note("Service", err)
	_, err = k.client.PolicyV1().PodDisruptionBudgets(system).Get(ctx, of, metav1.GetOptions{})
	note("PodDisruptionBudget", err)
	_, err = k.client.NetworkingV1().NetworkPolicies(system).Get(ctx, of, metav1.GetOptions{})
	note("NetworkPolicy", err)
	s, err := k.client.CoreV1().Secrets(system).Get(ctx, gateway.Secret, metav1.GetOptions{})
	if err == nil && (len(s.Data[of+".crt"]) > 0 || len(s.Data[of+".key"]) > 0) {
		all = append(all, "certificate")
	}
	return strings.Join(all, " ")
}

const everything = "Deployment Service PodDisruptionBudget NetworkPolicy certificate"

func oneGateway(name, more string) string {
	return fmt.Sprintf(`kind: Gateway
metadata: {namespace: ns, name: %s}
spec:
  gatewayClassName: headgate
  listeners: [{name: a, port: 80, protocol: HTTP}]
  infrastructure: {parametersRef: {group: inference.x-k8s.io, kind: GatewaySettings, name: own}}
%s
---
kind: GatewaySettings
metadata: {namespace: ns, name: own}
spec: {service: {type: ClusterIP}}
`, name, more)
}

func systemOf(t *testing.T) kubernetes.Interface {
	client, err := kubernetes.NewForConfig(apiserver.RunCluster(t).Admin())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return client
}

// Control creates the objects of a Gateway, updates them, reverts other changes to them, and
// deletes them with the Gateway, even if no control ran when the Gateway was deleted.
func TestObjectsOfAGatewayFollowIt(t *testing.T) {
	client := systemOf(t)
	ctx := t.Context()
	k := keep(t, client, oneGateway("g", ""))
	k.await("all is made", func() bool { return k.made("g") == everything && k.address("g") != "" })
	name := gateway.Name(objects.Name{Namespace: "ns", Name: "g"})
	service := func() *corev1.Service {
		s, err := client.CoreV1().Services(system).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := service(); s.Spec.ClusterIP != k.address("g") {
		t.Errorf("the address is %s, and that of the Service %s", k.address("g"), s.Spec.ClusterIP)
	}
	authority, err := pods.Pod{Client: client, Namespace: system, Log: slog.New(slog.DiscardHandler)}.Authority(ctx)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := client.CoreV1().Secrets(system).Get(ctx, gateway.Secret, metav1.GetOptions{})
	if err != nil || !authority.Fresh(secret.Data[name+".crt"], objects.Name{Namespace: "ns", Name: "g"}, time.Now()) {
		t.Errorf("the Gateway's certificate is not from control's authority: %v", err)
	}

	// Envoys call the controls of this namespace at their xDS port.
	if d, err := client.AppsV1().Deployments(system).Get(ctx, name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	} else if starts := strings.Join(d.Spec.Template.Spec.Containers[0].Args, " "); !strings.Contains(starts, "headgate-control."+system+
		".svc") || !strings.Contains(starts, "8035") {
		t.Errorf("Envoys start with the arguments %s", starts)
	}

	// The Deployment has two replicas at first, and later as many as it was last scaled to.
	replicas := func() int32 {
		scale, err := client.AppsV1().Deployments(system).GetScale(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return scale.Spec.Replicas
	}
	if n := replicas(); n != 2 {
		t.Errorf("%d replicas at the start", n)
	}
	scale, err := client.AppsV1().Deployments(system).GetScale(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 5
	if _, err := client.AppsV1().Deployments(system).UpdateScale(ctx, name, scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	// Manual changes are reverted. A new listener adds a port to the same Service.
	uid := service().UID
	patch := []byte(`{"spec":{"template":{"spec":{"serviceAccountName":"other"}}}}`)
	if _, err := client.AppsV1().Deployments(system).Patch(ctx, name, "application/merge-patch+json", patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	k.await("the Deployment is put right", func() bool {
		d, err := client.AppsV1().Deployments(system).Get(ctx, name, metav1.GetOptions{})
		return err == nil && d.Spec.Template.Spec.ServiceAccountName == "headgate-gateway"
	})
	if n := replicas(); n != 5 {
		t.Errorf("after scaling to 5 there are %d replicas", n)
	}
	before, err := client.AppsV1().Deployments(system).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Services(system).Patch(ctx, name, "application/merge-patch+json",
		[]byte(`{"spec":{"sessionAffinity":"ClientIP","selector":{"headgate.dev/gateway":"other"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	k.await("the Service is put right", func() bool { return service().Spec.Selector["headgate.dev/gateway"] == name })
	if s := service(); s.Spec.SessionAffinity != "ClientIP" {
		t.Error("a field that control does not set has changed")
	}
	k.set(strings.Replace(oneGateway("g", ""), "listeners: [", "listeners: [{name: b, port: 8080, protocol: HTTP}, ", 1))
	k.await("the Service has another port", func() bool { return len(service().Spec.Ports) == 2 })
	if s := service(); s.UID != uid {
		t.Error("the Service was replaced")
	}
	if d, err := client.AppsV1().Deployments(system).Get(ctx, name, metav1.GetOptions{}); err != nil || d.Generation != before.Generation {
		t.Errorf("a new listener changes the Deployment: %v", err)
	}

	// While no control runs, a Gateway is deleted and another is created.
	k.end()
	left := gateway.Name(objects.Name{Namespace: "ns", Name: "long-gone"})
	if secret, err = client.CoreV1().Secrets(system).Get(ctx, gateway.Secret, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	secret.Data[left+".crt"], secret.Data[left+".key"] = []byte("x"), []byte("y")
	if _, err := client.CoreV1().Secrets(system).Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	seen, err := client.CoreV1().Secrets(system).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + gateway.Secret})
	if err != nil {
		t.Fatal(err)
	}
	k = keep(t, client, oneGateway("h", ""))
	k.await("what was left of a Gateway is gone", func() bool { return k.made("long-gone") == "" })
	k.await("all of one is gone, and the other is there", func() bool { return k.made("g") == "" && k.made("h") == everything })
	if secret, err = client.CoreV1().Secrets(system).Get(ctx, gateway.Secret, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range seen.ResultChan() {
		is := e.Object.(*corev1.Secret)
		if is.Data["ca.crt"] == nil { // without this key, kubelet starts no pod
			t.Errorf("for a while the Secret had only %v", slices.Sorted(maps.Keys(is.Data)))
		}
		if is.ResourceVersion == secret.ResourceVersion {
			seen.Stop()
			break
		}
	}

	// A Gateway with unmanaged Envoys needs none of these objects.
	k.set(strings.Replace(oneGateway("h", "  addresses: [{value: 192.0.2.1}]"), "spec: {service", "spec: {managed: false, service", 1))
	k.await("all is gone, and the address is the one that the Gateway says", func() bool {
		return k.made("h") == "" && k.address("h") == "192.0.2.1"
	})
	k.end()
}

// With missing settings, running objects stay, and no new ones are made.
func TestGatewayKeepsRunningWithoutItsSettings(t *testing.T) {
	client := systemOf(t)
	k := keep(t, client, oneGateway("g", ""))
	k.await("all is made", func() bool { return k.made("g") == everything })
	gone, _, _ := strings.Cut(oneGateway("g", ""), "---\n")
	new, _, _ := strings.Cut(oneGateway("new", ""), "---\n")
	k.set(gone + "---\n" + new + "---\n" + strings.ReplaceAll(oneGateway("marker", ""), "own", "other"))
	k.await("what came later is there", func() bool { return k.made("marker") == everything })
	if is := k.made("g"); is != everything {
		t.Errorf("the remaining objects are %s", is)
	}
	if is := k.made("new"); is != "" {
		t.Errorf("objects were made: %s", is)
	}
	k.end()
}

// A Gateway gets its pods with its first valid listener. If none is valid any more, it keeps them
// and its address, but nothing can reach them.
func TestGatewayWithoutValidListenersKeepsItsAddress(t *testing.T) {
	client := systemOf(t)
	refused := func(name string) string {
		return strings.Replace(oneGateway(name, ""), "protocol: HTTP", "protocol: example.com/OTHER", 1)
	}
	k := keep(t, client, refused("a")+"---\n"+oneGateway("g", ""))
	k.await("all is made", func() bool { return k.made("g") == everything && k.address("g") != "" })
	if is := k.made("a"); is != "" { // it comes before g in the queue
		t.Errorf("control has made %s for a Gateway without a valid listener", is)
	}
	name := gateway.Name(objects.Name{Namespace: "ns", Name: "g"})
	service := func() *corev1.Service {
		s, err := client.CoreV1().Services(system).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	open := func() (all []int) {
		p, err := client.NetworkingV1().NetworkPolicies(system).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range p.Spec.Ingress[0].Ports {
			all = append(all, port.Port.IntValue())
		}
		return all
	}
	was, address := service(), k.address("g")
	k.set(refused("g"))
	k.await("its ports are closed", func() bool { return slices.Equal(open(), []int{9090}) })
	if s := service(); s.UID != was.UID || len(s.Spec.Ports) != 1 || k.address("g") != address {
		t.Errorf("the address is %q, before %q; the Service has the ports %v", k.address("g"), address, s.Spec.Ports)
	}
	k.set(strings.Replace(oneGateway("g", ""), "port: 80,", "port: 81,", 1))
	k.await("another port is served", func() bool { return slices.Equal(open(), []int{81, 9090}) && service().Spec.Ports[0].Port == 81 })
	if s := service(); s.UID != was.UID || len(s.Spec.Ports) != 1 || k.address("g") != address ||
		k.gateway("g").Fault != (attach.Verdict{}) {
		t.Errorf("the address is %q, before %q; the Service has the ports %v, and the fault is %v", k.address("g"), address, s.Spec.Ports,
			k.gateway("g").Fault)
	}
	k.set(oneGateway("a", ""))
	k.await("a listener has become valid", func() bool { return k.made("a") == everything })
	k.end()
}

// A Gateway gets the address that it requests. If that is impossible, it keeps the address that it
// has, and reports the reason.
func TestRequestedAddress(t *testing.T) {
	client := systemOf(t)
	first, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	taken := first.Spec.ClusterIP
	parts := strings.Split(taken, ".")
	asked := strings.Join(append(slices.Clone(parts[:3]), "77"), ".")
	k := keep(t, client, oneGateway("g", ""))
	k.await("it has an address", func() bool { return k.address("g") != "" })
	was := k.address("g")
	k.set(oneGateway("g", "  addresses: [{value: "+taken+"}]"))
	k.await("it is told that the address is taken", func() bool {
		return k.gateway("g").Fault.Reason == "AddressNotUsable" && strings.Contains(k.gateway("g").Fault.Message, taken)
	})
	if is := k.address("g"); is != was {
		t.Errorf("the address is %s, before %s", is, was)
	}
	k.set(oneGateway("g", "  addresses: [{value: "+asked+"}]"))
	k.await("it has the address that it asks for", func() bool {
		return k.address("g") == asked && k.gateway("g").Fault == attach.Verdict{}
	})
	k.end()
}

// Controls share the answers of their Envoys.
func TestControlsShareAnswersOfEnvoys(t *testing.T) {
	client := systemOf(t)
	run := func(name string) *pods.Peers {
		p := pods.Pod{Client: client, Namespace: system, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}.Peers(name)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return p
	}
	a, b := run("a"), run("b")
	hears := func(p *pods.Peers, from, has string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			seen, newer := p.Seen()
			if seen[from]["ns/g"].Has == has {
				return
			}
			select {
			case <-newer:
			case <-deadline:
				t.Fatalf("the reports are %v", seen)
			}
		}
	}
	a.Share(controller.Seen{"ns/g": {Has: "1"}})
	b.Share(controller.Seen{"ns/g": {Has: "2"}})
	hears(a, "b", "2")
	hears(b, "a", "1")
	a.Share(controller.Seen{"ns/g": {Has: "2"}})
	hears(b, "a", "2")
}
