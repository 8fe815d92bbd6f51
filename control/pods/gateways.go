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
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/pods/gateway"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// ControlName is the name of the Service by which Envoys of Gateways reach one of the controls.
const ControlName = "headgate-control"

const (
	// renewInterval is how often the certificates of Gateways are checked. A certificate is renewed
	// a month before it expires.
	renewInterval = time.Hour
	// firstRetry and lastRetry bound the delay between retries.
	firstRetry, lastRetry = time.Second, time.Minute
)

// Gateways makes the pods of Gateways' Envoys, and their Services. It needs, in its namespace, the
// verbs list, watch, create, patch and delete of deployments, services, poddisruptionbudgets and
// networkpolicies, get of deployments, create of secrets, and get and update of [gateway.Secret].
type Gateways struct {
	Pod
	// EnvoyImage and ExtprocImage are the images of the pods.
	EnvoyImage, ExtprocImage string
	// Port is the port of the Service [ControlName].
	Port uint16
}

// Run keeps the objects of Gateways up to date while leads is true, until ctx ends. A Gateway gets
// its objects with its first valid listener. It keeps them until it is deleted, since an error in a
// listener should not cut its other clients or lose its address. Run deletes
// objects of Gateways that are gone, whichever control made them. It calls next to get the Gateways
// (nil before they are known) and a channel that is closed when they change. It calls tell with the
// Gateways after it has added their addresses and faults.
func (g Gateways) Run(ctx context.Context, leads func() bool, next func() (*conditions.Input, <-chan struct{}),
	tell func(conditions.Input),
) error {
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
		changed: make(chan struct{}, 1), wanted: make(map[string]*attach.Gateway), faults: make(map[string]attach.Verdict),
		applied: make(map[string]applied),
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

// reconciler is the state of one call of [Gateways.Run].
type reconciler struct {
	Gateways
	template  *gateway.Template
	start     *envoy.Template
	authority *pki.Authority
	leads     func() bool
	kinds     []kind
	queue     workqueue.TypedRateLimitingInterface[string] // names of the objects of Gateways to reconcile
	changed   chan struct{}                                // capacity 1: full if an address or fault has changed

	mu     sync.Mutex // guards the fields below
	known  *conditions.Input
	wanted map[string]*attach.Gateway // Gateways, by the name of their objects
	valid  map[string]bool            // Gateways with a valid listener, by the name of their objects
	faults map[string]attach.Verdict  // faults of Gateways, by the name of their objects

	applied map[string]applied // last applied state, by kind and name; only work uses it
}

// follow queues the names of objects of a kind when they change.
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

// notify makes watch report the Gateways again.
func (k *reconciler) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// watch follows the Gateways, and calls tell with the Gateways, their addresses and faults.
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

// setWanted sets the Gateways, and queues those that have changed.
func (k *reconciler) setWanted(known *conditions.Input) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known == k.known {
		return
	}
	k.known = known
	was, valid := k.wanted, k.valid
	k.wanted, k.valid = make(map[string]*attach.Gateway), make(map[string]bool)
	for _, g := range known.Attachments.Gateways {
		if name := gateway.Name(g.Name); g.Managed() {
			k.wanted[name], k.valid[name] = g, known.Plans.Valid(g)
			if g != was[name] && !reflect.DeepEqual(g, was[name]) || k.valid[name] != valid[name] {
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

// with adds the addresses and faults of Gateways to known, and returns the result.
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

// statusAddresses returns the addresses that a Gateway requests, in the form of a Gateway's status.
func statusAddresses(g *attach.Gateway) []gatewayv1.GatewayStatusAddress {
	var all []gatewayv1.GatewayStatusAddress
	for _, a := range g.Spec.Addresses[:min(len(g.Spec.Addresses), 16)] {
		if a.Value != "" {
			all = append(all, gatewayv1.GatewayStatusAddress(a))
		}
	}
	return all
}

// work reconciles one Gateway after another until ctx ends.
func (k *reconciler) work(ctx context.Context) error {
	for _, of := range k.kinds {
		if !cache.WaitForCacheSync(ctx.Done(), of.informer.HasSynced) {
			return nil
		}
	}
	left, err := retry(ctx, k.identities, func(err error) {
		k.Log.Warn("cannot read the Secret with the certificates of Gateways; retrying", "secret", k.Namespace+"/"+gateway.Secret,
			"err", err)
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

// reconcile makes the objects of a Gateway, or deletes them.
func (k *reconciler) reconcile(ctx context.Context, name string) {
	k.mu.Lock()
	known, g, valid := k.known != nil, k.wanted[name], k.valid[name]
	k.mu.Unlock()
	switch {
	case !known || !k.leads():
		k.queue.AddAfter(name, retryInterval)
		return
	case g != nil && g.Refused != (attach.Verdict{}): // a refused Gateway keeps its objects
		return
	case g != nil && !valid && k.there(deployments, name) == nil && k.there(services, name) == nil:
		return // it gets its objects with its first valid listener, and keeps them
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
	if apierrors.IsConflict(err) { // the object has changed meanwhile
		k.queue.AddRateLimited(name)
		return
	}
	if err != nil && ctx.Err() == nil {
		if k.queue.NumRequeues(name) == 0 {
			k.Log.Warn("cannot create or delete the objects of a Gateway; retrying", "gateway", gatewayOf(g), "name", name, "err", err)
		}
		if fault == (attach.Verdict{}) {
			fault = attach.Verdict{Reason: string(gatewayv1.GatewayReasonNoResources), Message: err.Error()}
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
		return "deleted"
	}
	return g.Name.String()
}

// make applies the objects of a Gateway. The fault is the reason if something that the Gateway
// requests is impossible; otherwise it is zero.
func (k *reconciler) make(ctx context.Context, g *attach.Gateway) (fault attach.Verdict, err error) {
	bootstrap, err := k.start.Bootstrap(envoy.Place{
		Gateway: g.Name, Admin: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), gateway.Admin), Probe: gateway.Probe,
		Extproc:     gateway.Extproc,
		ControlHost: ControlName + "." + k.Namespace + ".svc", ControlPort: k.Port, Identity: gateway.Folder,
	})
	if err != nil {
		return fault, err
	}
	name, is := gateway.Name(g.Name), k.template.Of(g,
		gateway.Options{Namespace: k.Namespace, EnvoyImage: k.EnvoyImage, ExtprocImage: k.ExtprocImage, Bootstrap: bootstrap})
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

// unusable returns the verdict on a Gateway whose requested address the API server rejects.
func unusable(g *attach.Gateway, err error) attach.Verdict {
	if asked := g.Asked(); asked != "" && apierrors.IsInvalid(err) {
		return attach.Verdict{
			Reason:  string(gatewayv1.GatewayReasonAddressNotUsable),
			Message: fmt.Sprintf("the Service cannot have the address %s: %v", asked, err),
		}
	}
	return attach.Verdict{}
}
