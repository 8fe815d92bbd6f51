// Package statuswriter writes the status of objects to an API server. People and the next leader
// read it. It writes the status of all kinds of Headgate that have one, of Gateways and of the
// objects that attach to them. It also writes the finalizer of GatewayClasses. Only the [Writer] of
// the leader writes. It writes only statuses that differ from the written ones, 9 per second
// together with Events, and those of Models last.
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
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/events"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
)

const (
	// writeInterval is the minimum time between two queued writes of statuses or Events. So there
	// are at most 10 per second.
	writeInterval = 110 * time.Millisecond
	// lateDelay delays statuses in which only the state of endpoints has changed if others are
	// queued: it may change often, and other statuses must not wait for theirs.
	lateDelay = 5 * time.Minute
	// usedInterval is the minimum time between two writes of a model's status if only its time of
	// last use changes.
	usedInterval = time.Minute
	// retryInterval is the delay before control repeats a failed write, or checks again whether it
	// leads.
	retryInterval = time.Second
	// statusTimeout limits each write of a status. A control stops leading at most 12 s after it
	// renewed its Lease. Another control starts at 15 s, when such a write has ended.
	statusTimeout = 2 * time.Second
	// writeTimeout limits each other write, and closeTimeout all writes of Close together. A pod
	// has 30 s to end.
	writeTimeout = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// maxDelays is the time, by kind, after which a queued status precedes newly queued statuses of all
// kinds. Kinds that are not listed have no delay. So control writes the status of a new Gateway or
// LLMRoute soon, even if many HTTPRoutes and Models are queued. HTTPRoutes are not starved, even if
// their Gateway changes with each of them.
var maxDelays = map[string]time.Duration{
	objects.HTTPRouteKind: 5 * time.Second, objects.GRPCRouteKind: 5 * time.Second, pool.Kind: 5 * time.Second,
	v1alpha1.ModelKind: time.Hour,
}

// Writer writes status for the leader, and implements [store.Memory]. It stores a registered model
// as a Model. A model runtime cannot list its models, so the Writer stores the state of a copy
// there in the Model's status before control calls the runtime. Other statuses are queued.
//
// Open one with [Open]. It is safe for concurrent use. It needs these permissions:
//
//   - models: create, delete, list; models/status: patch
//   - vmodels: create, delete, list, patch; vmodels/status: patch
//   - llmroutes, poolsettings, endpointlists: get, list; their status: update
//   - pods/status: patch, if pods have our readiness gate
//
// [Writer.SetGateways] also needs get and list of gatewayclasses, gateways, listenersets,
// httproutes, grpcroutes, backendtlspolicies and inferencepools, update of their status, patch of
// gatewayclasses, and get of the customresourcedefinition of gateways.
type Writer struct {
	client    client.Client
	namespace string
	log       *slog.Logger
	leads     func() bool
	kinds     map[string]kinds.Kind
	ctx       context.Context // ends when Close is called
	stop      context.CancelFunc
	writes    context.Context // ends when Close has waited for closeTimeout
	abort     context.CancelFunc
	done      chan struct{} // closed after the last write
	due       chan struct{} // signals queued statuses; capacity 1; never closed

	registered []v1alpha1.Model     // Models that existed at the start and that clients had registered
	defined    []v1alpha1.VModel    // VModels that existed at the start and that clients had registered
	recorded   []store.Copy         // copies at model runtimes at the start
	since      map[string]time.Time // time of the latest copy at each runtime at the start

	releaseRead    time.Time // time of the last read of the CRD; only run uses it and releaseUnknown
	releaseUnknown bool      // whether that read failed

	mu         sync.Mutex // guards the fields below
	models     map[modelKey]*model
	runtimes   map[string]store.Runtime
	world      *objects.World                        // World of SetWorld; nil before the first call
	observed   *conditions.Observed                  // input of SetObserved; nil before the first call
	duplicates map[objects.Object]*conditions.Status // statuses that duplicates should have
	refused    map[objects.Object]refusal            // statuses that duplicates have, if known
	gateways   *conditions.Input                     // input of SetGateways; nil before the first call
	release    []string                              // version annotations of the CRDs; nil while unknown
	attached   map[objects.Object]*attached
	surveyed   map[string]bool       // kinds whose objects were listed
	dirty      map[subject]time.Time // queued statuses; the one with the earliest time is next
	resting    map[string]time.Time  // time before which a kind is not written, after an error
	logged     map[subject]string    // last logged error of each status
	vmodels    map[modelKey]*vmodel
	gates      map[objects.Name]store.Gate      // queued pod conditions, by pod
	uids       map[objects.Object]types.UID     // UIDs of known registered Models and VModels
	turns      map[objects.Object]chan struct{} // closed when the last call that changes the object has ended
	events     *events.Aggregator               // changes of conditions; nil: they are not reported
	instance   string                           // name of this control's pod
}

var _ store.Memory = (*Writer)(nil)

// subject identifies a status by its object. A model or VModel has a key, other objects a name. A
// kind with neither means all objects of that kind.
type subject struct {
	kind string
	name objects.Name
	key  modelKey
}

// Open reads the statuses that earlier controls wrote to the objects of a namespace, or of all
// namespaces if it is empty. It waits for the API server. The Writer writes nothing while leads
// returns false.
func Open(ctx context.Context, c client.Client, namespace string, log *slog.Logger, leads func() bool) (*Writer, error) {
	var models v1alpha1.ModelList
	var vmodels v1alpha1.VModelList
	for told := false; ; told = true {
		err := errors.Join(list(ctx, c, namespace, &models), list(ctx, c, namespace, &vmodels))
		if err == nil {
			break
		}
		if !told && ctx.Err() == nil {
			log.Warn("cannot read the status of Models and VModels; retrying", "err", fmt.Sprint(err, kube.HintFor(err)))
		}
		retry := time.NewTimer(retryInterval)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return nil, fmt.Errorf("read the status of Models and VModels: %w", ctx.Err())
		}
	}
	r := &Writer{
		client: c, namespace: namespace, log: log, leads: leads, kinds: make(map[string]kinds.Kind), done: make(chan struct{}),
		due:   make(chan struct{}, 1),
		since: make(map[string]time.Time), models: make(map[modelKey]*model), runtimes: make(map[string]store.Runtime),
		dirty:    make(map[subject]time.Time),
		attached: make(map[objects.Object]*attached), surveyed: make(map[string]bool),
		resting: make(map[string]time.Time), logged: make(map[subject]string), turns: make(map[objects.Object]chan struct{}),
		uids:    make(map[objects.Object]types.UID),
		refused: make(map[objects.Object]refusal),
		vmodels: make(map[modelKey]*vmodel), gates: make(map[objects.Name]store.Gate),
	}
	for _, k := range kinds.WithNetwork() {
		r.kinds[k.Kind] = k
	}
	r.ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.writes, r.abort = context.WithCancel(context.WithoutCancel(ctx))
	slices.SortFunc(models.Items, func(a, b v1alpha1.Model) int { // of two Models with the same id, the older one uses it
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for i := range models.Items {
		r.restore(&models.Items[i])
		r.restoreRefusal(v1alpha1.ModelKind, &models.Items[i], models.Items[i].Status.Conditions)
	}
	for i := range vmodels.Items {
		r.restoreVModel(&vmodels.Items[i])
		r.restoreRefusal(v1alpha1.VModelKind, &vmodels.Items[i], vmodels.Items[i].Status.Conditions)
	}
	go r.run()
	return r, nil
}

// list lists all objects of a kind in a namespace. The list is empty if the API server lacks the
// kind.
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

// Close writes the queued statuses if this control leads and the API server answers in time. Then
// it stops the Writer.
func (r *Writer) Close() error {
	r.stop()
	defer r.abort()
	defer time.AfterFunc(closeTimeout, r.abort).Stop()
	<-r.done
	return nil
}

// run writes the queued statuses at a limited rate until Close is called.
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
		r.readRelease()
		for event := false; r.writeNext(event); event = !event {
			timer.Reset(writeInterval)
			select {
			case <-timer.C:
			case <-r.ctx.Done(): // after Close the rate is not limited
			}
		}
	}
}

// writeNext writes an Event or a status; false if none may be written now. If both are due, event
// decides.
func (r *Writer) writeNext(event bool) bool {
	if event && r.writeEvent() {
		return true
	}
	s, due := r.next()
	if !due {
		return !event && r.writeEvent()
	}
	ctx, cancel := context.WithTimeout(r.writes, statusTimeout)
	defer cancel()
	r.note(s, r.write(ctx, s))
	return true
}

// next removes and returns the queued status with the earliest time; false if none may be written
// now.
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

// mark queues a status. The caller holds mu.
func (r *Writer) mark(s subject) { r.markIn(s, maxDelays[s.kind]) }

// markLate queues a status in which only the state of endpoints has changed. The caller holds mu.
func (r *Writer) markLate(s subject) { r.markIn(s, lateDelay) }

// markIn queues a status that precedes newly queued ones after a delay. The caller holds mu.
func (r *Writer) markIn(s subject, delay time.Duration) {
	at := time.Now().Add(delay)
	if was, due := r.dirty[s]; !due || at.Before(was) {
		r.dirty[s] = at
	}
	select {
	case r.due <- struct{}{}:
	default:
	}
}

// describe returns the kind and name of a status's object, for messages. The caller holds mu.
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
	case (s.kind == v1alpha1.ModelKind || s.kind == v1alpha1.VModelKind) && s.name.Name != "":
		return r.writeDouble(ctx, objects.Object{Kind: s.kind, Name: s.name})
	case s.kind == v1alpha1.VModelKind:
		return r.writeVModel(ctx, s.key)
	case s.name.Name != "":
		return r.writeAttached(ctx, objects.Object{Kind: s.kind, Name: s.name})
	}
	return r.writeModel(ctx, s.key)
}

// note processes the result of a write, and logs each error once. A status that the API server
// rejects is not written again until it changes. After any other error, all statuses of that kind
// wait for the next retry.
func (r *Writer) note(s subject, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := subject{kind: s.kind}
	switch {
	case err == nil:
		delete(r.logged, s)
		if r.logged[kind] != "" {
			delete(r.logged, kind)
			r.log.Info("can update the status of objects again", "kind", s.kind)
		}
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		if r.logged[s] != err.Error() {
			r.logged[s] = err.Error()
			r.log.Warn("cannot update the status of an object; retrying when it changes", "object", r.describe(s), "err", err)
		}
	default:
		r.mark(s)
		r.resting[s.kind] = time.Now().Add(retryInterval - writeInterval) // ends just before the next retry
		if r.logged[kind] == "" {
			r.logged[kind] = err.Error()
			r.log.Warn("cannot update the status of an object; retrying", "object", r.describe(s), "err", err)
		}
	}
}
