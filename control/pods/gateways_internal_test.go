package pods

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/pods/gateway"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// silent is an API server that never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// newReconciler returns a reconciler of a control that leads. Its informers are empty, and its API
// server never answers.
func newReconciler(t *testing.T) *reconciler {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1", Transport: silent{}})
	if err != nil {
		t.Fatal(err)
	}
	template, err := gateway.Read(headgate.GatewayYAML)
	if err != nil {
		t.Fatal(err)
	}
	start, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		t.Fatal(err)
	}
	k := &reconciler{
		Gateways: Gateways{Pod: Pod{Client: client, Namespace: "headgate-system", Log: slog.New(slog.DiscardHandler)}, Port: 8035},
		template: template, start: start, leads: func() bool { return true },
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		changed: make(chan struct{}, 1), wanted: make(map[string]*attach.Gateway), faults: make(map[string]attach.Verdict),
		applied: make(map[string]applied),
	}
	k.kinds = k.kindsOf(informers.NewSharedInformerFactory(client, 0))
	return k
}

// known parses the Gateways in a YAML text.
func known(t *testing.T, yaml string) *conditions.Input {
	n := network.Read(t,
		"kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n"+yaml)
	return &conditions.Input{Attachments: attach.Of(n), Network: n}
}

// queued removes and returns the queued names.
func (k *reconciler) queued() []string {
	var all []string
	for k.queue.Len() > 0 {
		name, _ := k.queue.Get()
		k.queue.Done(name)
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

const twoGateways = `kind: Gateway
metadata: {namespace: ns, name: a}
spec: {gatewayClassName: headgate, listeners: [{name: a, port: 80, protocol: HTTP}]}
---
kind: Gateway
metadata: {namespace: ns, name: b}
spec: {gatewayClassName: headgate, listeners: [{name: a, port: 80, protocol: HTTP}]}
`

// A reconciliation reads a Secret, so a new route must not queue Gateways that it does not change.
func TestOnlyChangedGatewaysAreReconciled(t *testing.T) {
	k := newReconciler(t)
	defer k.queue.ShutDown()
	a, b := gateway.Name(objects.Name{Namespace: "ns", Name: "a"}), gateway.Name(objects.Name{Namespace: "ns", Name: "b"})
	for _, c := range []struct {
		what, yaml string
		want       []string
	}{
		{"at first", twoGateways, []string{a, b}},
		{"other objects have changed", twoGateways +
			"---\nkind: Service\nmetadata: {namespace: ns, name: s}\nspec: {ports: [{port: 80}]}\n", nil},
		{"one has another port", strings.Replace(twoGateways, "port: 80", "port: 81", 1), []string{a}},
		{"one is gone", strings.SplitN(twoGateways, "---\n", 2)[1], []string{a}},
	} {
		k.setWanted(known(t, c.yaml))
		if got := k.queued(); !slices.Equal(got, c.want) {
			t.Errorf("%s: queued: %v, want %v", c.what, got, c.want)
		}
	}
}

// Objects of a deleted Gateway may be seen before the Gateways are known. Their names stay queued
// until then, and the objects are not deleted.
func TestLeftoversWaitUntilGatewaysAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newReconciler(t)
		defer k.queue.ShutDown()
		begin := time.Now()
		k.reconcile(t.Context(), "left")
		if got := k.queued(); len(got) > 0 {
			t.Errorf("queued before Gateways are known: %v", got)
		}
		if took := time.Since(begin); took > 0 { // a call to this API server would block
			t.Errorf("the API server is called, for %v", took)
		}
		time.Sleep(retryInterval)
		synctest.Wait()
		if got := k.queued(); !slices.Equal(got, []string{"left"}) {
			t.Errorf("queued afterwards: %v", got)
		}
	})
}

// An API server that does not answer is reported like one that rejects the call.
func TestGatewayReportsAnAPIServerOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newReconciler(t)
		defer k.queue.ShutDown()
		k.setWanted(known(t, twoGateways))
		name := objects.Name{Namespace: "ns", Name: "a"}
		k.reconcile(t.Context(), gateway.Name(name))
		in := k.with(*k.known)
		if fault := in.Gateways[name].Fault; fault.Reason != "NoResources" || !strings.Contains(fault.Message, "deadline") {
			t.Errorf("the fault is %+v", fault)
		}
	})
}

// A new Gateway does not inherit the fault of a deleted Gateway with the same name.
func TestFaultOfADeletedGatewayIsRemoved(t *testing.T) {
	k := newReconciler(t)
	defer k.queue.ShutDown()
	of := objects.Name{Namespace: "ns", Name: "a"}
	k.setWanted(known(t, twoGateways))
	k.faults[gateway.Name(of)] = attach.Verdict{Reason: "NoResources", Message: "no"}
	if in := k.with(*k.known); in.Gateways[of].Fault.Reason != "NoResources" {
		t.Errorf("the fault is %+v", in.Gateways[of])
	}
	k.setWanted(known(t, strings.SplitN(twoGateways, "---\n", 2)[1]))
	k.setWanted(known(t, twoGateways))
	if in := k.with(*k.known); in.Gateways[of].Fault != (attach.Verdict{}) {
		t.Errorf("the new Gateway has the fault %+v", in.Gateways[of])
	}
}

// answers is an API server that answers everything with one JSON object.
type answers struct {
	code int
	text string
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	is := httptest.NewRecorder()
	is.Header().Set("Content-Type", "application/json")
	is.WriteHeader(a.code)
	is.Body.WriteString(a.text)
	return is.Result(), nil
}

func (a answers) client(t *testing.T) kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1", Transport: a})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Scaling a Deployment during a reconciliation is not undone: the apply succeeds only for the
// version of the Deployment that was read.
func TestDeploymentIsAppliedToTheVersionWithItsReplicas(t *testing.T) {
	k := newReconciler(t)
	defer k.queue.ShutDown()
	k.Client = answers{
		http.StatusOK,
		`{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","resourceVersion":"7"},"spec":{"replicas":5}}`,
	}.client(t)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
	if err := k.scale(t.Context(), d); err != nil || d.Spec.Replicas == nil || *d.Spec.Replicas != 5 || d.ResourceVersion != "7" {
		t.Errorf("%+v, %v", d, err)
	}
}

// The reconciler keeps nothing of a deleted Gateway, since a control runs for a long time, and many
// Gateways are created and deleted meanwhile.
func TestResourcesOfADeletedGatewayAreDropped(t *testing.T) {
	k := newReconciler(t)
	defer k.queue.ShutDown()
	k.Client = answers{http.StatusOK, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"headgate-identities"}}`}.client(t)
	var err error
	if k.authority, err = pki.New(time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, of := range k.kinds {
		k.applied[of.name+"/gone"], k.applied[of.name+"/other"] = applied{}, applied{}
	}
	if err := k.remove(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if len(k.applied) != len(k.kinds) {
		t.Errorf("still remembered: %v", k.applied)
	}
}

// A conflict is not reported as a fault of the Gateway; the write is retried.
func TestConflictIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newReconciler(t)
		defer k.queue.ShutDown()
		k.Client = answers{
			http.StatusConflict,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`,
		}.client(t)
		k.setWanted(known(t, twoGateways))
		k.queued()
		name := gateway.Name(objects.Name{Namespace: "ns", Name: "a"})
		k.reconcile(t.Context(), name)
		if len(k.faults) > 0 {
			t.Errorf("the faults are %v", k.faults)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := k.queued(); !slices.Equal(got, []string{name}) {
			t.Errorf("queued again: %v", got)
		}
	})
}

// A success resets the retry delay: the next failure is retried as soon as the first one was.
func TestSuccessResetsTheRetryDelay(t *testing.T) {
	k := newReconciler(t)
	defer k.queue.ShutDown()
	var err error
	if k.authority, err = pki.New(time.Now()); err != nil {
		t.Fatal(err)
	}
	k.setWanted(known(t, twoGateways))
	k.Client = answers{
		http.StatusConflict,
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`,
	}.client(t)
	for range 3 {
		k.reconcile(t.Context(), "gone")
	}
	if n := k.queue.NumRequeues("gone"); n != 3 {
		t.Fatalf("%d failures are counted, want 3", n)
	}
	k.Client = answers{http.StatusOK, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"headgate-identities"}}`}.client(t)
	k.reconcile(t.Context(), "gone")
	if n := k.queue.NumRequeues("gone"); n != 0 {
		t.Errorf("after a success %d failures are counted, want 0", n)
	}
}

// An address is unusable only if the API server calls it invalid, and not after other errors.
func TestOnlyInvalidAddressesAreUnusable(t *testing.T) {
	in := known(t, strings.Replace(twoGateways, "spec: {", "spec: {addresses: [{value: 10.0.0.1}], ", 1))
	asks, asksNot := in.Attachments.Gateways[0], in.Attachments.Gateways[1]
	invalid, forbidden := apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "s", nil),
		apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "s", nil)
	for _, c := range []struct {
		of   *attach.Gateway
		err  error
		want string
	}{{asks, invalid, "AddressNotUsable"}, {asks, forbidden, ""}, {asksNot, invalid, ""}} {
		if is := unusable(c.of, c.err); is.Reason != c.want {
			t.Errorf("for %v, the verdict on %s is %+v, want %q", c.err, c.of.Name, is, c.want)
		}
	}
}

// Certificates expire, so every Gateway is checked periodically.
func TestGatewaysAreReconciledForCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newReconciler(t)
		ctx, cancel := context.WithCancel(t.Context())
		in, ended := known(t, twoGateways), make(chan error)
		go func() {
			ended <- k.watch(ctx, func() (*conditions.Input, <-chan struct{}) { return in, nil }, func(conditions.Input) {})
		}()
		synctest.Wait()
		all := k.queued()
		for range 3 {
			time.Sleep(renewInterval)
			synctest.Wait()
			if got := k.queued(); len(got) != 2 || !slices.Equal(got, all) {
				t.Errorf("after %v queued: %v, want %v", renewInterval, got, all)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// If the settings of a Gateway are gone, it is unknown whether control made pods for the Gateway.
// So the objects stay.
func TestNothingIsDeletedWithoutSettings(t *testing.T) {
	k := newReconciler(t)
	defer k.queue.ShutDown()
	n := network.Read(t, `kind: GatewayClass
metadata: {name: headgate}
spec: {controllerName: headgate.dev/gateway-controller, parametersRef: {group: inference.x-k8s.io, kind: GatewaySettings, namespace: ns, name: class}}
---
kind: GatewaySettings
metadata: {namespace: ns, name: class}
spec: {managed: false}
---
kind: Gateway
metadata: {namespace: ns, name: g}
spec:
  gatewayClassName: headgate
  listeners: [{name: a, port: 80, protocol: HTTP}]
  infrastructure: {parametersRef: {group: inference.x-k8s.io, kind: GatewaySettings, name: gone}}
`)
	k.setWanted(&conditions.Input{Attachments: attach.Of(n), Network: n})
	g := k.wanted[gateway.Name(objects.Name{Namespace: "ns", Name: "g"})]
	if g == nil || g.Refused == (attach.Verdict{}) {
		t.Errorf("the Gateway without settings is %+v", g)
	}
}

// A control that does not lead, or no longer leads, changes nothing, and retries.
func TestOnlyTheLeaderWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newReconciler(t)
		defer k.queue.ShutDown()
		k.leads = func() bool { return false }
		k.setWanted(known(t, twoGateways))
		all := append(k.queued(), "left")
		begin := time.Now()
		for _, name := range all {
			k.reconcile(t.Context(), name)
		}
		if took := time.Since(begin); took > 0 || len(k.faults) > 0 { // a call to this API server would block
			t.Errorf("it took %v, with the faults %v", took, k.faults)
		}
		time.Sleep(retryInterval)
		synctest.Wait()
		if got := k.queued(); !slices.Equal(got, all) {
			t.Errorf("queued again: %v, want %v", got, all)
		}
	})
}

// store is an API server with one Secret. It counts writes.
type store struct {
	secret []byte
	writes int
}

func (s *store) RoundTrip(r *http.Request) (*http.Response, error) {
	is := httptest.NewRecorder()
	is.Header().Set("Content-Type", "application/json")
	if r.Method != http.MethodGet {
		s.writes++
		var err error
		if s.secret, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	if s.secret == nil {
		is.WriteHeader(http.StatusNotFound)
		is.Body.WriteString(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	} else {
		is.Body.Write(s.secret)
	}
	return is.Result(), nil
}

// A certificate is made once, and renewed before it expires or when the authority changes.
func TestCertificatesOfGatewaysAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := new(store)
		client, err := kubernetes.NewForConfig(&rest.Config{
			Host: "http://127.0.0.1", Transport: server,
			ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		})
		if err != nil {
			t.Fatal(err)
		}
		of := objects.Name{Namespace: "ns", Name: "g"}
		k := &reconciler{Gateways: Gateways{Pod: Pod{Client: client, Namespace: "headgate-system"}}}
		authority := func() {
			if k.authority, err = pki.New(time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		step := func(what string, writes int) {
			t.Helper()
			server.writes = 0
			if err := k.identify(t.Context(), of, "name"); err != nil {
				t.Fatal(err)
			}
			s, err := client.CoreV1().Secrets("headgate-system").Get(t.Context(), gateway.Secret, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if server.writes != writes || !k.authority.Fresh(s.Data["name.crt"], of, time.Now()) {
				t.Errorf("%s: the Secret was written %d times, want %d", what, server.writes, writes)
			}
		}
		authority()
		step("at first", 1)
		step("again", 0)
		time.Sleep(59 * 24 * time.Hour)
		step("after 59 days", 0)
		time.Sleep(2 * 24 * time.Hour)
		step("29 days before its end", 1)
		authority()
		step("of another authority", 1)
		step("of the same", 0)
		s, err := client.CoreV1().Secrets("headgate-system").Get(t.Context(), gateway.Secret, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		delete(s.Data, "name.key")
		if _, err := client.CoreV1().Secrets("headgate-system").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		step("without its key", 1)
	})
}
