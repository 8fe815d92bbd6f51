// Package kube reads objects from a Kubernetes API server into a Set, follows every change, and
// writes status there.
//
// The next Set reflects objects that are deleted, terminating or not ready. While the API server is
// away, the last state stays in effect. A kind whose CRD the API server lacks is empty until the
// CRD appears. It needs the verbs list and watch for every kind of its table, cluster-wide for
// cluster-scoped kinds, and get for each named Secret.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

const (
	// gather is how long a change waits for further ones: kubectl apply writes one object after the
	// other.
	gather = 5 * time.Millisecond
	// interval is the minimum time between two Sets, which limits the cost of building Worlds while
	// much changes.
	interval = 50 * time.Millisecond
)

// Meter receives metrics of reading the API server. It must be safe for concurrent use.
type Meter interface {
	// Refused sets the number of objects that are left out because they are invalid.
	Refused(objects int)
	// Readable is called when it changes whether all objects are known and the API server answers
	// every request.
	Readable(ok bool)
}

// Source reads one API server. Make one with [New].
type Source struct {
	cache   cache.Cache
	link    *link
	log     *slog.Logger
	meter   Meter
	changed chan struct{} // capacity 1: there is something to publish; never closed

	mu      sync.Mutex // guards the fields below
	known   []collection
	refused map[string]string // why an object is left out, by kind and name
	network *objects.Network  // last published; nil if something in it has changed since
}

// New returns a Source for the objects of a namespace, or of all namespaces if it is empty, with
// the kinds of a table. Cluster-scoped objects are always included. Log is that of Kubernetes'
// libraries, see [UseLog].
func New(c *rest.Config, namespace string, table []kinds.Kind, log *slog.Logger, meter Meter) (*Source, error) {
	table = kinds.OfServers(table)
	UseLog(log)
	s := &Source{
		log: log, meter: meter, changed: make(chan struct{}, 1),
		known: newShelves(table), refused: make(map[string]string),
	}
	s.link = newLink(table, log, meter.Readable)
	c = rest.CopyConfig(c)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		s.link.next = next
		return s.link
	})
	caller, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("the API server: %w", err)
	}
	options := cache.Options{
		HTTPClient: caller, Scheme: schemeOf(table), Mapper: mapperOf(table), ByObject: make(map[client.Object]cache.ByObject),
		// The cache is only read through its events, whose handlers must not change the objects.
		DefaultUnsafeDisableDeepCopy: new(true),
	}
	for _, k := range table {
		options.ByObject[k.New()] = cache.ByObject{Transform: func(o any) (any, error) {
			if object, ok := o.(kinds.Object); ok {
				k.Trim(object)
			}
			return o, nil
		}}
	}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	if s.cache, err = cache.New(c, options); err != nil {
		return nil, fmt.Errorf("the API server: %w", err)
	}
	return s, nil
}

// Run publishes the objects once all are known, and again soon after each change, until ctx ends.
// If the API server does not answer at the start, it waits and logs that. It calls publish from one
// goroutine.
func (s *Source) Run(ctx context.Context, publish func(objects.Set)) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	loops.Go(func() {
		failed = s.cache.Start(ctx)
		cancel()
	})
	if err := s.follow(ctx); err != nil {
		if ctx.Err() != nil { // the source is stopping
			err = nil
		}
		return err
	}
	s.link.sync()
	s.each(ctx, publish)
	loops.Wait()
	return failed
}

// each publishes the objects, and again soon after each change, until ctx ends.
func (s *Source) each(ctx context.Context, publish func(objects.Set)) {
	for {
		publish(s.set())
		if wait(ctx, interval) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		if wait(ctx, gather) != nil {
			return
		}
		select { // changes up to now are in the Set
		case <-s.changed:
		default:
		}
	}
}

// follow starts watching every kind and returns when all existing objects are known.
func (s *Source) follow(ctx context.Context) error {
	var known []toolscache.InformerSynced
	for _, collection := range s.known {
		k := collection.kind
		informer, err := s.cache.GetInformer(ctx, k.New(), cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("follow %s: %w", k.Plural(), err)
		}
		registration, err := informer.AddEventHandler(s.events(collection))
		if err != nil {
			return fmt.Errorf("follow %s: %w", k.Plural(), err)
		}
		known = append(known, func() bool { return registration.HasSynced() || s.link.lacks(k) })
	}
	toolscache.WaitForCacheSync(ctx.Done(), known...)
	return ctx.Err()
}

// events updates the collection of one kind as objects are added, changed and deleted.
func (s *Source) events(collection collection) toolscache.ResourceEventHandler {
	put := func(o any) {
		object, ok := o.(client.Object)
		if !ok {
			return
		}
		name := nameOf(object)
		is, faults := collection.kind.Server(object)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refuse(collection.kind.Kind, name, faults.ToAggregate())
		was, had := collection.objects[name]
		switch {
		case len(faults) > 0 && had:
			delete(collection.objects, name)
			s.touch(collection.kind)
		case len(faults) == 0 && (!had || !reflect.DeepEqual(was, is)):
			collection.objects[name] = is
			s.touch(collection.kind)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    put,
		UpdateFunc: func(_, o any) { put(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			object, ok := o.(client.Object)
			if !ok {
				return
			}
			name := nameOf(object)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.refuse(collection.kind.Kind, name, nil)
			if _, had := collection.objects[name]; had {
				delete(collection.objects, name)
				s.touch(collection.kind)
			}
		},
	}
}

// refuse records why an object is left out, nil if it is not. The caller holds mu.
func (s *Source) refuse(kind string, name objects.Name, why error) {
	key := kind + " " + name.String()
	was, is := s.refused[key], ""
	if why != nil {
		is = why.Error()
	}
	if was == is {
		return
	}
	if is == "" {
		delete(s.refused, key)
	} else {
		s.refused[key] = is
		s.log.Warn("ignoring an invalid object that the API server's CRDs accepted; run kubectl apply -k manifests/crds", "kind",
			kind, "name", name.String(), "fault", is)
	}
	s.meter.Refused(len(s.refused))
}

// touch marks that an object of a kind has changed and must be published. The caller holds mu.
func (s *Source) touch(k kinds.Kind) {
	if k.InNetwork {
		s.network = nil
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Source) set() objects.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := setOf(s.known, s.network)
	s.network = set.Network
	return set
}
