// Package kinds is the tables of the kinds of objects that Headgate reads. A kind's row is
// everything that the sources of objects need to know: to add a kind, add a row to [All], [Network]
// or [ByName], and use its objects in package objects.
package kinds

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// All is the table of the kinds in a Set outside its Network. Each call returns a new slice, to
// which the caller may append rows, such as those of [Network].
func All() []Kind {
	return []Kind{
		Of(Row[v1alpha1.LLMRoute, v1alpha1.LLMRoute]{
			Resource: v1alpha1.SchemeGroupVersion.WithResource("llmroutes"), Kind: v1alpha1.LLMRouteKind, List: new(v1alpha1.LLMRouteList),
			Strict: true,
			Folder: checked(objects.CheckRoute),
			Trim: func(r *v1alpha1.LLMRoute) {
				TrimMeta(&r.ObjectMeta)
				r.Status = v1alpha1.LLMRouteStatus{}
			},
			In:  func(s *objects.Set) *[]v1alpha1.LLMRoute { return &s.Routes },
			Net: func(n *objects.Network) *[]v1alpha1.LLMRoute { return &n.Routes },
		}),
		Of(Row[v1alpha1.Model, *v1alpha1.Model]{
			Resource: v1alpha1.SchemeGroupVersion.WithResource("models"), Kind: v1alpha1.ModelKind, List: new(v1alpha1.ModelList),
			Strict: true,
			Folder: func(m *v1alpha1.Model) (*v1alpha1.Model, field.ErrorList) { return m, objects.CheckModelObject(m) },
			Change: objects.CheckModelChange,
			Trim: func(m *v1alpha1.Model) {
				TrimMeta(&m.ObjectMeta)
				m.Status = v1alpha1.ModelStatus{}
			},
			In: func(s *objects.Set) *[]*v1alpha1.Model { return &s.Models },
		}),
		Of(Row[v1alpha1.VModel, v1alpha1.VModel]{
			Resource: v1alpha1.SchemeGroupVersion.WithResource("vmodels"), Kind: v1alpha1.VModelKind, List: new(v1alpha1.VModelList),
			Strict: true,
			Folder: checked(objects.CheckVModel),
			Change: objects.CheckVModelChange,
			Trim: func(v *v1alpha1.VModel) {
				TrimMeta(&v.ObjectMeta)
				v.Status = v1alpha1.VModelStatus{}
			},
			In: func(s *objects.Set) *[]v1alpha1.VModel { return &s.VModels },
		}),
		Of(Row[v1alpha1.EndpointList, objects.List]{
			Resource: v1alpha1.SchemeGroupVersion.WithResource("endpointlists"), Kind: v1alpha1.EndpointListKind,
			List:   new(v1alpha1.EndpointListList),
			Strict: true,
			Folder: func(l *v1alpha1.EndpointList) (objects.List, field.ErrorList) {
				return objects.List{EndpointList: *l, Loopback: true}, objects.CheckList(l)
			},
			Server: func(l *v1alpha1.EndpointList) (objects.List, field.ErrorList) {
				return objects.List{EndpointList: *l}, objects.CheckClusterList(l)
			},
			Trim: func(l *v1alpha1.EndpointList) {
				TrimMeta(&l.ObjectMeta)
				l.Status = v1alpha1.EndpointListStatus{}
			},
			In: func(s *objects.Set) *[]objects.List { return &s.Lists },
		}),
		Of(Row[v1alpha1.PoolSettings, v1alpha1.PoolSettings]{
			Resource: v1alpha1.SchemeGroupVersion.WithResource("poolsettings"), Kind: v1alpha1.PoolSettingsKind,
			List:   new(v1alpha1.PoolSettingsList),
			Strict: true,
			Folder: checked(objects.CheckFolderSettings),
			Server: checked(objects.CheckServerSettings),
			Trim: func(s *v1alpha1.PoolSettings) {
				TrimMeta(&s.ObjectMeta)
				s.Status = v1alpha1.PoolSettingsStatus{}
			},
			In:  func(s *objects.Set) *[]v1alpha1.PoolSettings { return &s.Settings },
			Net: func(n *objects.Network) *[]v1alpha1.PoolSettings { return &n.Settings },
		}),
		Of(Row[pool.InferencePool, pool.InferencePool]{
			Resource: pool.SchemeGroupVersion.WithResource("inferencepools"), Kind: pool.Kind, List: new(pool.InferencePoolList),
			Folder: checked(objects.CheckFolderPool),
			Server: checked(objects.CheckPool),
			Trim: func(p *pool.InferencePool) {
				TrimMeta(&p.ObjectMeta)
				p.Status = pool.Status{}
			},
			In:  func(s *objects.Set) *[]pool.InferencePool { return &s.Pools },
			Net: func(n *objects.Network) *[]pool.InferencePool { return &n.Pools },
		}),
		Of(Row[corev1.Pod, objects.Pod]{
			Resource: corev1.SchemeGroupVersion.WithResource("pods"), Kind: objects.PodKind, List: new(corev1.PodList),
			Folder: podOf,
			Server: podOfServer,
			Trim:   trimPod,
			In:     func(s *objects.Set) *[]objects.Pod { return &s.Pods },

			AnyOrder: true,
		}),
	}
}

// Object is a decoded object: a pointer to its Go type.
type Object interface {
	metav1.Object
	runtime.Object
}

// List is an API server's list of a kind.
type List interface {
	metav1.ListInterface
	runtime.Object
}

// Row describes a kind whose objects have the Go type O and are kept in a Set as K. [Of] makes a
// Kind of it.
type Row[O, K any] struct {
	// Resource is the kind's resource in API servers; Kind is its name in YAML, with the same group
	// and version.
	Resource schema.GroupVersionResource
	Kind     string
	// ClusterScoped says that its objects have no namespace.
	ClusterScoped bool
	// Optional says that nothing is wrong if an API server lacks the kind.
	Optional bool
	// FolderOnly says that the kind is read only from folders: List, Server and Trim are nil.
	FolderOnly bool
	// List is an empty list of its objects.
	List List
	// Strict says that a field that O lacks is an error in a folder, as for our own kinds, where it
	// is a typo. Otherwise it is ignored with a warning.
	Strict bool
	// Folder converts an object of a folder to what a Set keeps, and returns what is invalid in it.
	Folder func(*O) (K, field.ErrorList)
	// Server is Folder for an object of an API server; nil means Folder.
	Server func(*O) (K, field.ErrorList)
	// Change returns the forbidden changes of an object of a folder; nil allows all. API servers
	// validate changes themselves.
	Change func(was, is *O) field.ErrorList
	// Trim removes what Server does not read from an object of an API server, before it is kept in
	// memory. The name and the resource version must stay.
	Trim func(*O)
	// AnyOrder says that nothing depends on the kind's order in a Set, so that thousands of objects
	// need not be sorted.
	AnyOrder bool
	// In returns where a Set keeps the kind; nil for a kind that only its Network has.
	In func(*objects.Set) *[]K
	// Net returns where a Network keeps the kind; nil for a kind that is not part of a Network.
	// Unless AnyOrder is set, the objects are sorted by name.
	Net func(*objects.Network) *[]K
}

// checked validates objects that a Set keeps unchanged.
func checked[O any](check func(*O) field.ErrorList) func(*O) (O, field.ErrorList) {
	return func(o *O) (O, field.ErrorList) { return *o, check(o) }
}

// TrimMeta keeps only the metadata that Headgate reads and that distinguishes versions.
func TrimMeta(m *metav1.ObjectMeta) {
	*m = metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, Labels: m.Labels, CreationTimestamp: m.CreationTimestamp,
		Generation: m.Generation, ResourceVersion: m.ResourceVersion,
	}
}

// Kind is a Row with its types hidden, so that kinds can be in one table. Its functions must be
// called with objects of its type. Make one with [Of].
type Kind struct {
	schema.GroupVersionKind
	Resource      schema.GroupVersionResource
	ClusterScoped bool
	Optional      bool
	FolderOnly    bool
	Strict        bool
	AnyOrder      bool
	// InSet and InNetwork say which of them keeps the kind.
	InSet, InNetwork bool
	// New returns an empty object, NewList an empty list.
	New     func() Object
	NewList func() List
	// Folder and Server return what a Set keeps of an object, for Keep, and what is invalid in it.
	// Server returns the same for versions of an object that differ only in trimmed fields, whether
	// listed or watched.
	Folder, Server func(Object) (kept any, _ field.ErrorList)
	Change         func(was, is Object) field.ErrorList
	Trim           func(Object)
	// Keep adds the result of Folder or Server to a Set, and to the Set's Network if there is one
	// ([NewNetwork] makes it).
	Keep func(s *objects.Set, kept any)
}

// pointer is an Object by the type that it points to.
type pointer[O any] interface {
	*O
	Object
}

// Of makes a Kind from its row.
func Of[O, K any, P pointer[O]](r Row[O, K]) Kind {
	if r.Server == nil {
		r.Server = r.Folder
	}
	of := func(o Object) *O { return (*O)(o.(P)) }
	return Kind{
		GroupVersionKind: r.Resource.GroupVersion().WithKind(r.Kind), Resource: r.Resource,
		ClusterScoped: r.ClusterScoped, Optional: r.Optional, FolderOnly: r.FolderOnly, Strict: r.Strict, AnyOrder: r.AnyOrder,
		InSet: r.In != nil, InNetwork: r.Net != nil,
		New:     func() Object { return P(new(O)) },
		NewList: func() List { return r.List.DeepCopyObject().(List) },
		Folder:  func(o Object) (any, field.ErrorList) { return r.Folder(of(o)) },
		Server: func(o Object) (any, field.ErrorList) {
			is := *of(o)
			P(&is).SetResourceVersion("")
			P(&is).GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // set in lists, not in watches
			return r.Server(&is)
		},
		Change: func(was, is Object) field.ErrorList {
			if r.Change == nil {
				return nil
			}
			return r.Change(of(was), of(is))
		},
		Trim: func(o Object) { r.Trim(of(o)) },
		Keep: func(s *objects.Set, kept any) {
			if r.In != nil {
				all := r.In(s)
				*all = append(*all, kept.(K))
			}
			if r.Net != nil && s.Network != nil {
				all := r.Net(s.Network)
				*all = append(*all, kept.(K))
			}
		},
	}
}

// CRD returns the name of the CustomResourceDefinition that the kind needs; empty for a built-in
// kind.
func (k Kind) CRD() string {
	if k.Group == corev1.GroupName || k.Group == discoveryv1.GroupName {
		return ""
	}
	return k.Resource.GroupResource().String()
}

// Plural is the kind's plural for people: its resource, capitalized like the kind.
func (k Kind) Plural() string {
	kind, resource, same := strings.ToLower(k.Kind), k.Resource.Resource, 0
	for same < min(len(kind), len(resource)) && kind[same] == resource[same] {
		same++
	}
	return k.Kind[:same] + resource[same:]
}

// OfServers returns the kinds of a table that are read from API servers.
func OfServers(table []Kind) []Kind {
	return slices.DeleteFunc(slices.Clone(table), func(k Kind) bool { return k.FolderOnly })
}

// Absent is the message that an API server lacks the kind.
func (k Kind) Absent() string {
	return "the API server has no " + k.Plural() + " (CRD " + k.CRD() + "): Headgate reads them once it has"
}
