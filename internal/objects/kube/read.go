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

// shelf is what is in force of one kind, by name.
type shelf struct {
	kind    kinds.Kind
	objects map[objects.Name]any // as the kind keeps them
}

func newShelves(table []kinds.Kind) []shelf {
	all := make([]shelf, len(table))
	for i, k := range table {
		all[i] = shelf{k, make(map[objects.Name]any)}
	}
	return all
}

// networkOf is an empty Network for what is on shelves, nil where none of it is of a Network alone.
func networkOf(shelves []shelf) *objects.Network {
	table := make([]kinds.Kind, len(shelves))
	for i, s := range shelves {
		table[i] = s.kind
	}
	return kinds.NewNetwork(table)
}

// setOf is all that is on shelves, in order of name where anything depends on it. Its Network is the one that is given, if that is
// in force still; where it is nil, the Network is one of what is on the shelves.
func setOf(shelves []shelf, inForce *objects.Network) (set objects.Set) {
	if inForce == nil {
		set.Network = networkOf(shelves)
	}
	for _, s := range shelves {
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

// Read reads the objects of a namespace once, or of all where that is empty, which are of the kinds of a table. Those that are in no
// namespace are read always, those that are not valid are an error. A kind whose CRD the API server does not have is empty; that it
// has none of the CRDs but optional ones is an error.
func Read(ctx context.Context, c *rest.Config, namespace string, table []kinds.Kind) (objects.Set, error) {
	table = kinds.OfServers(table)
	reader, err := clientOf(c, table)
	if err != nil {
		return objects.Set{}, err
	}
	known := newShelves(table)
	var faults []error
	var absent []string
	var lacks error // of the last that is absent
	bare := true    // it has none of the CRDs, optional ones apart
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

// fill puts what a list has onto its shelf.
func (s shelf) fill(list kinds.List) error {
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

// HintFor says what to do about an answer of the API server; empty if nobody knows.
func HintFor(err error) string {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		if hint := hints[int(status.ErrStatus.Code)]; hint != "" {
			return ": " + hint
		}
	}
	return ""
}
