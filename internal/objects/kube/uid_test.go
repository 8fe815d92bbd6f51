package kube_test

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// namesake is an API server that has an object of every name and kind, with one UID.
type namesake struct {
	client.Client
	listed []v1alpha1.Model

	mu     sync.Mutex // guards the following
	uid    types.UID
	writes int // of status, that it took
}

// is makes all its objects others.
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

// Patch answers a test that fails as an API server does: the patch is not valid, for no cause.
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

// A World may be older than what the API server has: an object of it may have been deleted, and another made of its name.
// That one's status is not the old one's.
func TestNothingIsWrittenOfAnObjectToItsNamesake(t *testing.T) {
	object := objects.Name{Namespace: "default", Name: "a"}
	const at = "10.0.0.1:8033"
	inStatus := func(write func(uid string) *objects.World) func(*testing.T, *namesake, *kube.Memory, string) {
		return func(t *testing.T, n *namesake, _ *kube.Memory, uid string) {
			if err := kube.NewStatus(n, "").Write(t.Context(), write(uid)); err != nil {
				t.Error(err)
			}
		}
	}
	for name, write := range map[string]func(*testing.T, *namesake, *kube.Memory, string){
		"a route": inStatus(func(uid string) *objects.World {
			return &objects.World{Routes: []*objects.Route{{Name: object, Kind: v1alpha1.LLMRouteKind, UID: uid, Models: []string{"sql"}}}}
		}),
		"a Model whose id is another's": inStatus(func(uid string) *objects.World {
			return &objects.World{Doubles: []objects.Entry{{Object: object, UID: uid, Taken: "its id is that of another"}}}
		}),
		"a Model": func(_ *testing.T, _ *namesake, m *kube.Memory, uid string) {
			r := record("a", "no room for "+uid)
			r.UID = uid
			m.PutStatuses([]objects.ModelRecord{r})
		},
		"what is asked of a runtime": func(t *testing.T, _ *namesake, m *kube.Memory, uid string) {
			asked := objects.CopyRecord{Endpoint: at, Pool: inPool, ID: "a", State: "loading", Object: object, UID: uid}
			if err := m.PutCopy(asked, true); (err == nil) != (uid == "new") {
				t.Errorf("of the %s one: %v", uid, err)
			}
			m.DeleteCopy(at, inPool, "a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &namesake{uid: "new"}
				m, err := kube.OpenMemory(t.Context(), n, "", slog.New(slog.DiscardHandler), always)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				write(t, n, m, "old")
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := n.wrote(); n != 0 {
					t.Errorf("of the old one it wrote %d times", n)
				}
				write(t, n, m, "new")
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := n.wrote(); n == 0 {
					t.Error("of the new one it wrote nothing")
				}
			})
		})
	}
}

// Which Model is meant is known once it was written to, read or made, though nobody says so with its status.
func TestAStatusGoesToTheModelThatIsKnown(t *testing.T) {
	before := made.DeepCopy()
	before.UID = "old"
	for name, c := range map[string]struct {
		listed []v1alpha1.Model
		know   func(*testing.T, *kube.Memory)
	}{
		"written to": {nil, func(_ *testing.T, m *kube.Memory) { m.PutStatuses([]objects.ModelRecord{record("a", "no room")}) }},
		"read":       {[]v1alpha1.Model{*before}, func(*testing.T, *kube.Memory) {}},
		"made": {nil, func(t *testing.T, m *kube.Memory) {
			if err := m.PutModel(made)(); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &namesake{uid: "old", listed: c.listed}
				m, err := kube.OpenMemory(t.Context(), n, "", slog.New(slog.DiscardHandler), always)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				c.know(t, m)
				time.Sleep(time.Second)
				synctest.Wait()
				n.is("new")
				m.PutStatuses([]objects.ModelRecord{record("a", "still no room")})
				time.Sleep(time.Second)
				synctest.Wait()
				if n := n.wrote(); n != 0 {
					t.Error("it wrote to another Model of the name")
				}
			})
		})
	}
}

// A Model may be made anew while the status of the one before is being written. What was written is not the new one's, which
// is to have the same.
func TestAModelThatIsMadeAnewDuringAWriteGetsItsStatus(t *testing.T) {
	old, anew := record("a", "no room"), record("a", "no room")
	old.UID, anew.UID = "old", "new"
	var memory *kube.Memory
	var patches atomic.Int64
	during := func(context.Context) error {
		if patches.Add(1) == 1 {
			memory.PutStatuses([]objects.ModelRecord{anew})
		}
		return nil
	}
	paced(t, during, func(t *testing.T, s *slow, m *kube.Memory, _ *atomic.Bool, _ func() string) {
		memory = m
		m.PutStatuses([]objects.ModelRecord{old})
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls := s.noted(); !slices.Equal(calls, []string{"patch", "patch"}) || !strings.Contains(s.patched, `"new"`) {
			t.Errorf("the calls are %v, and the last writes %s", calls, s.patched)
		}
	})
}
