package statuswriter_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// namesake is an API server that has an object of every kind and name. All have the same UID.
type namesake struct {
	client.Client
	listed []v1alpha1.Model

	mu     sync.Mutex // guards the fields below
	uid    types.UID
	writes int // number of accepted status writes
	gone   int // number of deleted objects
}

func (n *namesake) Delete(_ context.Context, o client.Object, options ...client.DeleteOption) error {
	var all client.DeleteOptions
	all.ApplyOptions(options)
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := all.Preconditions; p != nil && p.UID != nil && *p.UID != n.uid {
		return apierrors.NewConflict(schema.GroupResource{Resource: "models"}, o.GetName(), nil)
	}
	n.gone++
	return nil
}

// is replaces all objects by new ones with another UID.
func (n *namesake) is(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.uid, n.writes = uid, 0
}

func (n *namesake) wrote() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.writes
}

func (n *namesake) List(_ context.Context, all client.ObjectList, _ ...client.ListOption) error {
	if models, ok := all.(*v1alpha1.ModelList); ok {
		models.Items = n.listed
	}
	return nil
}

func (n *namesake) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	o.SetUID(n.uid)
	return nil
}

func (n *namesake) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	o.SetUID(n.uid)
	return nil
}

func (n *namesake) Status() client.SubResourceWriter { return namesakeStatus{of: n} }

type namesakeStatus struct {
	client.SubResourceWriter
	of *namesake
}

func (s namesakeStatus) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.writes++
	return nil
}

// Patch rejects a wrong UID with the same error as an API server: Invalid, without causes.
func (s namesakeStatus) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	text, err := p.Data(o)
	if err != nil {
		return err
	}
	var steps []struct {
		Op, Path string
		Value    any
	}
	if err := json.Unmarshal(text, &steps); err != nil {
		return err
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	for _, step := range steps {
		if step.Op == "test" && step.Path == "/metadata/uid" && step.Value != string(s.of.uid) {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Model"}, o.GetName(), nil)
		}
	}
	s.of.writes++
	o.SetUID(s.of.uid)
	return nil
}

// empty returns an input without objects.
func empty() conditions.Input {
	return conditions.Input{
		Attachments: &attach.Attachments{Parents: make(map[objects.Object][]attach.Parent)}, Plans: new(plan.Plans),
		Network: new(objects.Network),
	}
}

// After a World was read, an object in it may be deleted and another created with its name. The new
// object does not get the old object's status.
func TestReplacedObjectGetsNoOldStatus(t *testing.T) {
	object := objects.Name{Namespace: "default", Name: "a"}
	const at = "10.0.0.1:8033"
	for name, write := range map[string]func(*testing.T, *namesake, *statuswriter.Writer, string){
		"a route": func(_ *testing.T, _ *namesake, r *statuswriter.Writer, uid string) {
			r.SetWorld(&objects.World{Offer: objects.Offer{Routes: []*objects.Route{{
				Name: object, Kind: v1alpha1.LLMRouteKind, UID: uid,
				Models: []string{"sql"},
			}}}})
			r.SetObserved(standalone)
		},
		"the parents of an LLMRoute": func(_ *testing.T, _ *namesake, r *statuswriter.Writer, uid string) {
			in := empty()
			in.Network.Routes = []v1alpha1.LLMRoute{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: types.UID(uid)}}}
			in.Attachments.Parents[objects.Object{
				Kind: v1alpha1.LLMRouteKind,
				Name: object,
			}] = []attach.Parent{{Ref: gatewayv1.ParentReference{Name: "g"}}}
			in.World = new(objects.World)
			setAll(r, in)
		},
		"a Gateway": func(_ *testing.T, _ *namesake, r *statuswriter.Writer, uid string) {
			in := empty()
			in.Attachments.Gateways = []*attach.Gateway{{
				Name:    object,
				Gateway: &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: types.UID(uid)}},
			}}
			r.SetGateways(in)
		},
		"a Model whose id is another's": func(_ *testing.T, _ *namesake, r *statuswriter.Writer, uid string) {
			r.SetWorld(&objects.World{Doubles: []objects.Entry{{Object: object, UID: uid, Taken: "its id is that of another"}}})
			r.SetObserved(standalone)
		},
		"a Model": func(_ *testing.T, _ *namesake, r *statuswriter.Writer, uid string) {
			status := record("a", "no room for "+uid)
			status.UID = uid
			r.PutStatuses([]store.Status{status})
		},
		"a VModel": func(_ *testing.T, _ *namesake, r *statuswriter.Writer, uid string) {
			r.PutVModelStatuses([]store.VModelStatus{{
				Pool: inPool, ID: "a", Object: object, UID: uid,
				Status: v1alpha1.VModelStatus{Active: uid},
			}})
		},
		"a VModel whose id is another's": func(_ *testing.T, _ *namesake, r *statuswriter.Writer, uid string) {
			r.SetWorld(&objects.World{VModels: []objects.VModel{{Object: object, UID: uid, Taken: "its id is that of another"}}})
			r.SetObserved(standalone)
		},
		"what is asked of a runtime": func(t *testing.T, _ *namesake, r *statuswriter.Writer, uid string) {
			asked := store.Copy{Endpoint: at, Pool: inPool, ID: "a", State: "loading", Object: object, UID: uid}
			if err := r.PutCopy(asked, true); (err == nil) != (uid == "new") {
				t.Errorf("PutCopy for the %s object: %v", uid, err)
			}
			r.DeleteCopy(at, inPool, "a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &namesake{uid: "new"}
				r, err := statuswriter.Open(t.Context(), n, "", slog.New(slog.DiscardHandler), always)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				write(t, n, r, "old")
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := n.wrote(); n != 0 {
					t.Errorf("%d writes for the old object", n)
				}
				write(t, n, r, "new")
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := n.wrote(); n == 0 {
					t.Error("no write for the new object")
				}
			})
		})
	}
}

// The Writer knows the UID of a Model after it has written, read or created the Model, even if the
// status does not contain the UID.
func TestStatusIsWrittenToTheKnownModel(t *testing.T) {
	before := made.DeepCopy()
	before.UID = "old"
	for name, c := range map[string]struct {
		listed []v1alpha1.Model
		know   func(*testing.T, *statuswriter.Writer)
	}{
		"written to": {nil, func(_ *testing.T, r *statuswriter.Writer) { r.PutStatuses([]store.Status{record("a", "no room")}) }},
		"read":       {[]v1alpha1.Model{*before}, func(*testing.T, *statuswriter.Writer) {}},
		"made": {nil, func(t *testing.T, r *statuswriter.Writer) {
			if err := r.PutModel(made)(); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &namesake{uid: "old", listed: c.listed}
				r, err := statuswriter.Open(t.Context(), n, "", slog.New(slog.DiscardHandler), always)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				c.know(t, r)
				time.Sleep(time.Second)
				synctest.Wait()
				n.is("new")
				r.PutStatuses([]store.Status{record("a", "still no room")})
				time.Sleep(time.Second)
				synctest.Wait()
				if n := n.wrote(); n != 0 {
					t.Error("another Model of the same name was written")
				}
			})
		})
	}
}

// If a Model is replaced during a write of its status, the new Model gets the same status.
func TestModelReplacedDuringAWriteGetsItsStatus(t *testing.T) {
	old, anew := record("a", "no room"), record("a", "no room")
	old.UID, anew.UID = "old", "new"
	var open *statuswriter.Writer
	var patches atomic.Int64
	during := func(context.Context) error {
		if patches.Add(1) == 1 {
			open.PutStatuses([]store.Status{anew})
		}
		return nil
	}
	paced(t, during, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		open = r
		r.PutStatuses([]store.Status{old})
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls := s.noted(); !slices.Equal(calls, []string{"patch", "patch"}) || !strings.Contains(s.patched, `"new"`) {
			t.Errorf("the calls are %v, and the last one writes %s", calls, s.patched)
		}
	})
}

// A person may delete a registered Model and create another with its name. Unregistering then
// deletes nothing.
func TestOnlyTheRegisteredModelIsDeleted(t *testing.T) {
	registered := made.DeepCopy()
	registered.UID, registered.Labels = "old", map[string]string{statuswriter.RegisteredLabel: "true"}
	for name, c := range map[string]struct {
		listed []v1alpha1.Model
		make   bool
	}{"by an earlier control": {[]v1alpha1.Model{*registered}, false}, "by this one": {nil, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for uid, want := range map[types.UID]int{"old": 1, "new": 0} {
					n := &namesake{uid: "old", listed: c.listed}
					r, err := statuswriter.Open(t.Context(), n, "", slog.New(slog.DiscardHandler), always)
					if err != nil {
						t.Fatal(err)
					}
					if c.make {
						if err := r.PutModel(made)(); err != nil {
							t.Error(err)
						}
					}
					n.is(uid)
					if err := r.DeleteModel(made)(); err != nil || n.gone != want {
						t.Errorf("%v: for the %s Model there are %d deletions", err, uid, n.gone)
					}
					_ = r.Close()
				}
			})
		})
	}
}
