package statuswriter_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
)

const eventRules = writerRules + `
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
`

// events returns the Events of all namespaces in the order of their creation, but for those that
// the API server writes itself when it is slow to start (about the addresses of its Service).
func (c cluster) events() (all []eventsv1.Event) {
	c.Helper()
	var list eventsv1.EventList
	if err := c.typed(c.Admin()).List(c.Context(), &list); err != nil {
		c.Fatal(err)
	}
	all = slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.ReportingController == "ipallocator-repair-controller" })
	slices.SortFunc(all, func(a, b eventsv1.Event) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// The Writer writes an Event at the object whose condition it makes worse, and one when the
// condition recovers. When that repeats, it increases the count of both.
func TestChangesOfConditionsAreEvents(t *testing.T) {
	c := newCluster(t)
	c.Apply(route("r", "{modelNames: [m], backendRefs: [{name: p}]}"))
	r := c.open(c.typed(c.Allowed("writer", eventRules)), always)
	r.ReportChanges("control-0")
	texts := func() (all []string) {
		for _, e := range c.events() {
			if e.Regarding.Kind != v1alpha1.LLMRouteKind || e.Regarding.Name != "r" || e.Namespace != "default" ||
				e.Regarding.UID != c.routeNamed("r").UID || e.Regarding.APIVersion != "inference.x-k8s.io/v1alpha1" ||
				e.ReportingInstance != "control-0" || e.ReportingController != "headgate.dev/control" {
				t.Errorf("an Event is %+v", e)
			}
			if !strings.HasPrefix(e.Note, "ResolvedRefs") {
				continue
			}
			count := int32(1)
			if e.Series != nil {
				count = e.Series.Count
			}
			all = append(all, fmt.Sprintf("%s %s ×%d", e.Type, e.Reason, count))
		}
		return all
	}
	want := func(want ...string) {
		t.Helper()
		r.SetWorld(c.world())
		r.SetObserved(standalone)
		c.Await(fmt.Sprint("the Events are ", want), func() bool { return slices.Equal(texts(), want) })
	}
	want("Warning BackendNotFound ×1")
	c.Apply(inferencePool(""))
	want("Warning BackendNotFound ×1", "Normal ResolvedRefs ×1")
	c.Delete(inferencePool(""))
	want("Warning BackendNotFound ×2", "Normal ResolvedRefs ×1")
	// The next leader writes no Event for what has not changed.
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = c.open(c.typed(c.Allowed("writer", eventRules)), always)
	r.ReportChanges("control-0")
	want("Warning BackendNotFound ×2", "Normal ResolvedRefs ×1")
	c.Apply(inferencePool(""))
	want("Warning BackendNotFound ×2", "Normal ResolvedRefs ×1", "Normal ResolvedRefs ×1")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	c.NothingDenied("writer")
}

// If the API server rejects Events, statuses are still written, and the log says so once. If it is
// away, the Event is written afterwards.
func TestStatusesDoNotDependOnEvents(t *testing.T) {
	for name, fault := range map[string]error{
		"forbidden": apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil), "away": errors.New("connection refused"),
	} {
		t.Run(name, func(t *testing.T) {
			paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, logged func() string) {
				r.ReportChanges("control-0")
				s.mu.Lock()
				s.create = fault
				s.mu.Unlock()
				for i := range 3 {
					w := worldWith(fmt.Sprint("r", i), fmt.Sprint("m", i))
					w.Faults = []objects.Fault{{
						Kind: v1alpha1.LLMRouteKind, Object: w.Routes[0].Name, Reason: v1alpha1.ReasonBackendNotFound, Words: "no pool",
					}}
					r.SetWorld(w)
					r.SetObserved(standalone)
					time.Sleep(5 * time.Second)
					synctest.Wait()
				}
				calls := s.noted()
				if updates := slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return c == "create" }); len(updates) != 3 {
					t.Errorf("the writes of statuses are %v", updates)
				}
				if n := strings.Count(logged(), "cannot write an Event"); n != 1 {
					t.Errorf("it is logged %d times: %s", n, logged())
				}
				s.mu.Lock()
				s.create = nil
				s.mu.Unlock()
				before := len(calls)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if n := count(s.noted()[before:], "create"); (n > 0) != (name == "away") {
					t.Errorf("%d Events are written afterwards", n)
				}
			})
		})
	}
}
