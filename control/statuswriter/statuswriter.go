// Package statuswriter writes the status of objects into an API server: what control says of LLMRoutes and Models, for people and
// for the control that leads next, and of Gateways and what attaches to them; and the finalizer of GatewayClasses. One [Writer] at a time
// writes, that of the leader; it writes each status only where it differs, some 20 in a second, Models last.
package statuswriter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
)

const (
	// writeInterval is between two writes of status that nobody waits for.
	writeInterval = 50 * time.Millisecond
	// usedInterval is how old the time of a model's last use may be in its status, where nothing else changed.
	usedInterval = time.Minute
	// retryInterval is after which what could not be written is tried again, and whether this control leads now.
	retryInterval = time.Second
	// statusTimeout bounds a write of status: one that begins when this control stops leading, 12 s after it last renewed its
	// Lease at the latest, has ended when another begins, at 15 s.
	statusTimeout = 2 * time.Second
	// writeTimeout bounds other writes, closeTimeout all that are made when it closes: a process that ends has 30 s.
	writeTimeout = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// patience is after which time a status of a kind goes before one of others that has just become due; those that are missing go at once.
// So people see what became of a Gateway or an LLMRoute that they have just written, however many HTTPRoutes and Models wait; and
// HTTPRoutes have their turn though their Gateway changes with each of them.
var patience = map[string]time.Duration{
	objects.HTTPRouteKind: 5 * time.Second, objects.GRPCRouteKind: 5 * time.Second, pool.Kind: 5 * time.Second, v1alpha1.ModelKind: time.Hour,
}

// Writer is what a control that leads says in status, and the [store.Memory] of that control: a registered model is a Model,
// and what was asked of a model runtime, which cannot list what it has, is in the status of its Model before the call. The rest
// of the status follows when there is time.
//
// Open one with [Open]. It is safe for concurrent use. It needs the verbs create, delete and list of models and vmodels, patch of
// vmodels and of the status of both, get and list of llmroutes, and update of llmroutes/status; patch of pods/status where pods have our readiness
// gate; and for [Writer.SetGateways] get and list of
// gatewayclasses, gateways, listenersets, httproutes, grpcroutes, backendtlspolicies and inferencepools, update of their status, patch of
// gatewayclasses, and get of the customresourcedefinition of gateways.
type Writer struct {
	client    client.Client
	namespace string
	log       *slog.Logger
	leads     func() bool
	kinds     map[string]kinds.Kind
	ctx       context.Context // until Close
	stop      context.CancelFunc
	writes    context.Context // until Close has waited for closeTimeout
	abort     context.CancelFunc
	done      chan struct{} // closed when the last write is
	due       chan struct{} // capacity 1; never closed

	registered []v1alpha1.Model     // at the start
	defined    []v1alpha1.VModel    // at the start, by clients
	recorded   []store.Copy         // at the start
	since      map[string]time.Time // at the start: of the latest copy at a runtime

	looked time.Time // at the CRDs; of run, as the next is
	blind  bool      // whether they could not be read

	mu         sync.Mutex // guards the following
	models     map[modelKey]*model
	runtimes   map[string]store.Runtime
	routes     map[objects.Name]*route
	duplicates map[objects.Object]duplicate
	gateways   *conditions.Input // nil before there is one
	release    []string          // what the CRDs say, nil while that is not known
	attached   map[objects.Object]*attached
	surveyed   map[string]bool       // kinds of them, whose status was read
	dirty      map[subject]time.Time // those that are due, and since when they go before others
	resting    map[string]time.Time  // until when no status of a kind is tried
	told       map[subject]string    // why a status could not be written last
	vmodels    map[modelKey]*vmodel
	gates      map[objects.Name]store.Gate      // that are to be written
	uids       map[objects.Object]types.UID     // of registered Models and VModels that are known
	turns      map[objects.Object]chan struct{} // closed when the last call that makes, changes or deletes an object has ended
}

var _ store.Memory = (*Writer)(nil)

// subject is whose status is written: a model by its key, a duplicate and all else by its name. With a kind alone it is all of that
// kind.
type subject struct {
	kind string
	name objects.Name
	key  modelKey
}

// Open reads what earlier controls wrote into the objects of a namespace or, if that is empty, of all, when the API server
// answers. Nothing is written while leads is false: another control may lead.
func Open(ctx context.Context, c client.Client, namespace string, log *slog.Logger, leads func() bool) (*Writer, error) {
	var models v1alpha1.ModelList
	var vmodels v1alpha1.VModelList
	var routes v1alpha1.LLMRouteList
	for told := false; ; told = true {
		err := errors.Join(list(ctx, c, namespace, &models), list(ctx, c, namespace, &vmodels), list(ctx, c, namespace, &routes))
		if err == nil {
			break
		}
		if !told && ctx.Err() == nil {
			log.Warn("cannot read the status of Models, VModels and LLMRoutes; retrying", "err", fmt.Sprint(err, kube.HintFor(err)))
		}
		retry := time.NewTimer(retryInterval)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return nil, fmt.Errorf("read the status of Models, VModels and LLMRoutes: %w", ctx.Err())
		}
	}
	r := &Writer{
		client: c, namespace: namespace, log: log, leads: leads, kinds: make(map[string]kinds.Kind), done: make(chan struct{}), due: make(chan struct{}, 1),
		since: make(map[string]time.Time), models: make(map[modelKey]*model), runtimes: make(map[string]store.Runtime),
		routes: make(map[objects.Name]*route), dirty: make(map[subject]time.Time),
		attached: make(map[objects.Object]*attached), surveyed: make(map[string]bool),
		resting: make(map[string]time.Time), told: make(map[subject]string), turns: make(map[objects.Object]chan struct{}), uids: make(map[objects.Object]types.UID),
		vmodels: make(map[modelKey]*vmodel), gates: make(map[objects.Name]store.Gate),
	}
	for _, k := range kinds.WithNetwork() {
		r.kinds[k.Kind] = k
	}
	r.ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.writes, r.abort = context.WithCancel(context.WithoutCancel(ctx))
	slices.SortFunc(models.Items, func(a, b v1alpha1.Model) int { // of two of one id the older one has it
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for i := range models.Items {
		r.recall(&models.Items[i])
	}
	for i := range vmodels.Items {
		r.recallVModel(&vmodels.Items[i])
	}
	for _, o := range routes.Items {
		r.routes[nameOf(&o)] = &route{uid: string(o.UID), written: o.Status}
	}
	go r.run()
	return r, nil
}

// list reads all objects of a kind. A kind that the API server does not have has none.
func list(ctx context.Context, c client.Client, namespace string, all client.ObjectList) error {
	err := c.List(ctx, all, client.InNamespace(namespace))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func nameOf(o client.Object) objects.Name {
	return objects.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Close writes what is still to be written, if this control leads and the API server answers in time, and ends.
func (r *Writer) Close() error {
	r.stop()
	defer r.abort()
	defer time.AfterFunc(closeTimeout, r.abort).Stop()
	<-r.done
	return nil
}

// run writes what is due, not too much at once.
func (r *Writer) run() {
	defer close(r.done)
	timer := time.NewTimer(writeInterval)
	defer timer.Stop()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for last := false; !last; {
		select {
		case <-r.due:
		case <-retry.C:
		case <-r.ctx.Done():
			last = true
		}
		r.lookAtRelease()
		for s, due := r.next(); due; s, due = r.next() {
			ctx, cancel := context.WithTimeout(r.writes, statusTimeout)
			err := r.write(ctx, s)
			cancel()
			r.note(s, err)
			timer.Reset(writeInterval)
			select {
			case <-timer.C:
			case <-r.ctx.Done(): // quickly now
			}
		}
	}
}

// next takes what is due, with the least patience first.
func (r *Writer) next() (subject, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads() {
		return subject{}, false
	}
	var found subject
	now := time.Now()
	for s, since := range r.dirty {
		if now.Before(r.resting[s.kind]) {
			continue
		}
		if found.kind == "" || since.Before(r.dirty[found]) {
			found = s
		}
	}
	delete(r.dirty, found)
	return found, found.kind != ""
}

// mark makes a status due. The caller holds mu.
func (r *Writer) mark(s subject) {
	if _, due := r.dirty[s]; !due {
		r.dirty[s] = time.Now().Add(patience[s.kind])
	}
	select {
	case r.due <- struct{}{}:
	default:
	}
}

// describe names an object for people. The caller holds mu.
func (r *Writer) describe(s subject) string {
	if m := r.models[s.key]; m != nil && m.object.Name != "" && s.kind == v1alpha1.ModelKind {
		s.name = m.object
	}
	if v := r.vmodels[s.key]; v != nil && s.kind == v1alpha1.VModelKind {
		s.name = v.object
	}
	return s.kind + " " + s.name.String()
}

func (r *Writer) write(ctx context.Context, s subject) error {
	switch {
	case s.kind == objects.PodKind:
		return r.writeGate(ctx, s.name)
	case s.kind == v1alpha1.LLMRouteKind:
		return r.writeRoute(ctx, s.name)
	case (s.kind == v1alpha1.ModelKind || s.kind == v1alpha1.VModelKind) && s.name.Name != "":
		return r.writeDouble(ctx, objects.Object{Kind: s.kind, Name: s.name})
	case s.kind == v1alpha1.VModelKind:
		return r.writeVModel(ctx, s.key)
	case s.name.Name != "":
		return r.writeAttached(ctx, objects.Object{Kind: s.kind, Name: s.name})
	}
	return r.writeModel(ctx, s.key)
}

// note keeps how a write went, and tells of it once. What the API server refuses in an object is not written again until it
// changes; after any other error its whole kind waits for the next retry.
func (r *Writer) note(s subject, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := subject{kind: s.kind}
	switch {
	case err == nil:
		delete(r.told, s)
		if r.told[kind] != "" {
			delete(r.told, kind)
			r.log.Info("can update the status of objects again", "kind", s.kind)
		}
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		if r.told[s] != err.Error() {
			r.told[s] = err.Error()
			r.log.Warn("cannot update the status of an object; retrying when it changes", "object", r.describe(s), "err", err)
		}
	default:
		r.mark(s)
		r.resting[s.kind] = time.Now().Add(retryInterval - writeInterval) // the next retry finds it
		if r.told[kind] == "" {
			r.told[kind] = err.Error()
			r.log.Warn("cannot update the status of an object; retrying", "object", r.describe(s), "err", err)
		}
	}
}
