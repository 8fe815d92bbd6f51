package pods

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/control/pods/gateway"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// ControlName is of the Service by which Envoys of Gateways reach any control.
const ControlName = "headgate-control"

const (
	// renewInterval is how often certificates of Gateways are looked at: they are renewed a month before they end.
	renewInterval = time.Hour
	// Between tries of what an API server refused.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Gateways makes the pods of Gateways' Envoys, and what clients reach them by. It needs, in its namespace, the verbs list, watch,
// create, patch and delete of deployments, services, poddisruptionbudgets and networkpolicies, get of deployments, create of secrets, and
// get and update of that of the name [gateway.Secret].
type Gateways struct {
	Pod
	// Images are those of the pods.
	EnvoyImage, ExtprocImage string
	// Port is where the Service [ControlName] has controls that serve Envoys.
	Port uint16
}

// Run keeps what Gateways run in true to them while leads is true, until ctx ends: what is no Gateway's any more is deleted, whoever
// made it. Next returns what is known of the Gateways, nil before anything is, and what is closed when that is something else. Tell is
// told the same with what came of it: addresses, and faults.
func (g Gateways) Run(ctx context.Context, leads func() bool, next func() (*conditions.Input, <-chan struct{}), tell func(conditions.Input)) error {
	template, err := gateway.Read(headgate.GatewayYAML)
	if err != nil {
		return err
	}
	start, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		return err
	}
	authority, err := g.Authority(ctx)
	if err != nil {
		return nil // ctx has ended
	}
	k := &reconciler{
		Gateways: g, template: template, start: start, authority: authority, leads: leads,
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
		changed: make(chan struct{}, 1), wanted: make(map[string]*attach.Gateway), faults: make(map[string]attach.Verdict), applied: make(map[string]applied),
	}
	defer k.queue.ShutDown()
	factory := informers.NewSharedInformerFactoryWithOptions(g.Client, 0, informers.WithNamespace(g.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = gateway.Selector }))
	k.kinds = k.kindsOf(factory)
	for _, kind := range k.kinds {
		if err := k.follow(kind); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.watch(ctx, next, tell) })
	group.Go(func() error { return k.work(ctx) })
	return group.Wait()
}

// reconciler is a run of [Gateways.Run].
type reconciler struct {
	Gateways
	template  *gateway.Template
	start     *envoy.Template
	authority *pki.Authority
	leads     func() bool
	kinds     []kind
	queue     workqueue.TypedRateLimitingInterface[string] // names of what is made
	changed   chan struct{}                                // capacity 1: what became of a Gateway is something else

	mu     sync.Mutex // guards the following
	known  *conditions.Input
	wanted map[string]*attach.Gateway // by the name of what is made
	faults map[string]attach.Verdict  // why it is not, by the same

	applied map[string]applied // what each object was made, by kind and name; of work alone
}

// follow has what was changed looked at.
func (k *reconciler) follow(of kind) error {
	changed := func(o any) {
		if gone, is := o.(cache.DeletedFinalStateUnknown); is {
			o = gone.Obj
		}
		k.queue.Add(o.(metav1.Object).GetName())
		k.notify()
	}
	_, err := of.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(was, is any) {
			if of.version(was.(metav1.Object)) != of.version(is.(metav1.Object)) {
				changed(is)
			}
		},
		DeleteFunc: changed,
	})
	return err
}

// say has what is known told again.
func (k *reconciler) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// hear follows what is known of Gateways, and tells it with what came of it.
func (k *reconciler) watch(ctx context.Context, next func() (*conditions.Input, <-chan struct{}), tell func(conditions.Input)) error {
	renew := time.NewTicker(renewInterval)
	defer renew.Stop()
	for known, newer := next(); ; {
		if known != nil {
			k.setWanted(known)
			tell(k.with(*known))
		}
		select {
		case <-newer:
			known, newer = next()
		case <-k.changed:
		case <-renew.C:
			k.mu.Lock()
			for name := range k.wanted {
				k.queue.Add(name)
			}
			k.mu.Unlock()
		case <-ctx.Done():
			k.queue.ShutDown()
			return nil
		}
	}
}

// want notes which Gateways there are, and has those looked at that are another now.
func (k *reconciler) setWanted(known *conditions.Input) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known == k.known {
		return
	}
	another := k.known == nil || known.Network != k.known.Network
	k.known = known
	if !another {
		return
	}
	was := k.wanted
	k.wanted = make(map[string]*attach.Gateway)
	for _, g := range known.Attachments.Gateways {
		if name := gateway.Name(g.Name); g.Managed() {
			k.wanted[name] = g
			if !reflect.DeepEqual(g, was[name]) {
				k.queue.Add(name)
			}
		}
	}
	for name := range was {
		if k.wanted[name] == nil {
			k.queue.Add(name)
			delete(k.faults, name)
		}
	}
}

// with returns what is known, with the addresses of Gateways and why they are not served.
func (k *reconciler) with(known conditions.Input) conditions.Input {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := maps.Clone(known.Gateways)
	if all == nil {
		all = make(map[objects.Name]conditions.Gateway)
	}
	for _, g := range known.Attachments.Gateways {
		is, name := all[g.Name], gateway.Name(g.Name)
		if !g.Managed() {
			is.Addresses = statusAddresses(g)
		} else if s, there := k.there(services, name).(*corev1.Service); there {
			is.Addresses = gateway.Addresses(s)
		}
		is.Fault = k.faults[name]
		all[g.Name] = is
	}
	known.Gateways = all
	return known
}

// statusAddresses are those that a Gateway asks for, in the words of its status.
func statusAddresses(g *attach.Gateway) []gatewayv1.GatewayStatusAddress {
	var all []gatewayv1.GatewayStatusAddress
	for _, a := range g.Spec.Addresses[:min(len(g.Spec.Addresses), 16)] {
		if a.Value != "" {
			all = append(all, gatewayv1.GatewayStatusAddress(a))
		}
	}
	return all
}

// work makes and deletes, one Gateway after another, until ctx ends.
func (k *reconciler) work(ctx context.Context) error {
	for _, of := range k.kinds {
		if !cache.WaitForCacheSync(ctx.Done(), of.informer.HasSynced) {
			return nil
		}
	}
	left, err := retry(ctx, k.identities, func(err error) {
		k.Log.Warn("cannot read the Secret with the certificates of Gateways; retrying", "secret", k.Namespace+"/"+gateway.Secret, "err", err)
	})
	if err != nil {
		return nil // ctx has ended
	}
	for _, name := range left {
		k.queue.Add(name)
	}
	for {
		name, end := k.queue.Get()
		if end {
			return nil
		}
		k.reconcile(ctx, name)
		k.queue.Done(name)
	}
}

// one makes what a Gateway runs in as it is to be, or deletes it.
func (k *reconciler) reconcile(ctx context.Context, name string) {
	k.mu.Lock()
	known, g := k.known != nil, k.wanted[name]
	k.mu.Unlock()
	switch {
	case !known || !k.leads():
		k.queue.AddAfter(name, retryInterval)
		return
	case g != nil && g.Refused != (attach.Verdict{}): // what runs goes on as it was
		return
	}
	bounded, cancel := context.WithTimeout(ctx, announceInterval)
	defer cancel()
	var fault attach.Verdict
	var err error
	if g == nil {
		err = k.remove(bounded, name)
	} else {
		fault, err = k.make(bounded, g)
	}
	if apierrors.IsConflict(err) { // somebody has written meanwhile
		k.queue.AddRateLimited(name)
		return
	}
	if err != nil && ctx.Err() == nil {
		if k.queue.NumRequeues(name) == 0 {
			k.Log.Warn("cannot make or delete what the Envoys of a Gateway run in; retrying", "gateway", gatewayOf(g), "name", name, "err", err)
		}
		if fault == (attach.Verdict{}) {
			fault = attach.Verdict{Reason: string(gatewayv1.GatewayReasonNoResources), Words: err.Error()}
		}
	}
	if err == nil {
		k.queue.Forget(name)
	} else {
		k.queue.AddRateLimited(name)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if g != nil && k.wanted[name] != nil && k.faults[name] != fault {
		k.faults[name] = fault
		k.notify()
	}
}

func gatewayOf(g *attach.Gateway) string {
	if g == nil {
		return "none any more"
	}
	return g.Name.String()
}

// make makes what a Gateway runs in. The fault is why it cannot be as the Gateway asks.
func (k *reconciler) make(ctx context.Context, g *attach.Gateway) (fault attach.Verdict, err error) {
	bootstrap, err := k.start.Bootstrap(envoy.Place{
		Gateway: g.Name, Admin: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), gateway.Admin), Probe: gateway.Probe, Extproc: gateway.Extproc,
		ControlHost: ControlName + "." + k.Namespace + ".svc", ControlPort: k.Port, Identity: gateway.Folder,
	})
	if err != nil {
		return fault, err
	}
	name, is := gateway.Name(g.Name), k.template.Of(g, gateway.Options{Namespace: k.Namespace, EnvoyImage: k.EnvoyImage, ExtprocImage: k.ExtprocImage, Bootstrap: bootstrap})
	if err := k.identify(ctx, g.Name, name); err != nil {
		return fault, fmt.Errorf("the Secret %s: %w", gateway.Secret, err)
	}
	if is.Service != nil {
		if err := k.move(ctx, is.Service); err != nil {
			return unusable(g, err), fmt.Errorf("the Service: %w", err)
		}
		if err := k.apply(ctx, services, is.Service); err != nil {
			return unusable(g, err), fmt.Errorf("the Service: %w", err)
		}
	}
	for of, o := range map[int]metav1.Object{deployments: is.Deployment, budgets: is.Budget, policies: is.Policy} {
		if err := k.apply(ctx, of, o); err != nil {
			return fault, fmt.Errorf("the %s: %w", k.kinds[of].name, err)
		}
	}
	return fault, nil
}

// unusable says that a Gateway cannot have the address that it asks for, where the API server says so.
func unusable(g *attach.Gateway, err error) attach.Verdict {
	if asked := g.Asked(); asked != "" && apierrors.IsInvalid(err) {
		return attach.Verdict{Reason: string(gatewayv1.GatewayReasonAddressNotUsable), Words: fmt.Sprintf("the Service cannot have the address %s: %v", asked, err)}
	}
	return attach.Verdict{}
}
