package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// collection is the valid objects of one kind, by name.
type collection struct {
	kind    kinds.Kind
	objects map[objects.Name]any // in the form in which the kind stores them
}

func newShelves(table []kinds.Kind) []collection {
	all := make([]collection, len(table))
	for i, k := range table {
		all[i] = collection{k, make(map[objects.Name]any)}
	}
	return all
}

// networkOf returns an empty Network for the collections, nil if none of their kinds belongs only
// to a Network.
func networkOf(collections []collection) *objects.Network {
	table := make([]kinds.Kind, len(collections))
	for i, s := range collections {
		table[i] = s.kind
	}
	return kinds.NewNetwork(table)
}

// setOf returns all objects in the collections, sorted by name if anything depends on the order.
// Its Network is inForce, or a new one if that is nil.
func setOf(collections []collection, inForce *objects.Network) (set objects.Set) {
	if inForce == nil {
		set.Network = networkOf(collections)
	}
	for _, s := range collections {
		if !s.kind.InSet && inForce != nil {
			continue
		}
		if s.kind.AnyOrder {
			for _, kept := range s.objects {
				s.kind.Keep(&set, kept)
			}
			continue
		}
		for _, name := range slices.SortedFunc(maps.Keys(s.objects), objects.Name.Compare) {
			s.kind.Keep(&set, s.objects[name])
		}
	}
	if inForce != nil {
		set.Network = inForce
	}
	return set
}

func nameOf(o client.Object) objects.Name {
	return objects.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Read reads the objects of a namespace once, or of all namespaces if it is empty, with the kinds
// of a table. Cluster-scoped objects are always included. An invalid object is an error. A kind
// whose CRD is missing is empty; if all non-optional CRDs are missing, that is an error.
func Read(ctx context.Context, c *rest.Config, namespace string, table []kinds.Kind) (objects.Set, error) {
	table = kinds.OfServers(table)
	reader, err := clientOf(c, table)
	if err != nil {
		return objects.Set{}, err
	}
	known := newShelves(table)
	var faults []error
	var absent []string
	var lacks error // for the last missing CRD
	bare := true    // all non-optional CRDs are missing
	for _, s := range known {
		list := s.kind.NewList()
		err := reader.List(ctx, list, client.InNamespace(namespace))
		if apierrors.IsNotFound(err) && s.kind.CRD() != "" {
			if !s.kind.Optional {
				absent, lacks = append(absent, s.kind.Absent()), err
			}
			continue
		}
		if err != nil {
			return objects.Set{}, fmt.Errorf("read objects: %w%s", err, HintFor(err))
		}
		bare = bare && (s.kind.CRD() == "" || s.kind.Optional)
		faults = append(faults, s.fill(list))
	}
	if lacks != nil && bare {
		return objects.Set{}, fmt.Errorf("read objects: %w%s", lacks, HintFor(lacks))
	}
	set := setOf(known, nil)
	set.Absent = absent
	return set, errors.Join(faults...)
}

// fill adds the items of a list to the collection.
func (s collection) fill(list kinds.List) error {
	var errs []error
	err := meta.EachListItem(list, func(item runtime.Object) error {
		o, ok := item.(kinds.Object)
		if !ok {
			return fmt.Errorf("a list of %s has a %T", s.kind.Plural(), item)
		}
		s.kind.Trim(o)
		is, faults := s.kind.Server(o)
		if len(faults) > 0 {
			errs = append(errs, fmt.Errorf("%s %s: %w", s.kind.Kind, nameOf(o), faults.ToAggregate()))
			return nil
		}
		s.objects[nameOf(o)] = is
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// HintFor returns what to do about a response of the API server; empty if unknown.
func HintFor(err error) string {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		if hint := hints[int(status.ErrStatus.Code)]; hint != "" {
			return ": " + hint
		}
	}
	return ""
}
