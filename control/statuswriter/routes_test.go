package statuswriter_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/apiserver"
)

func TestKubectlGetColumns(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool(", endpointPickerRef: {name: headgate, port: {number: 9002}}"))
	c.Apply(route("a", "{backendRefs: [{name: p}], modelNames: [sql, text-to-sql], adapter: {name: sql-v2}}"))
	c.Apply(route("b", "{backendRefs: [{name: p}, {name: missing}], modelNames: [chat]}"))
	c.Apply(model("m", "{poolRef: {name: p}}"))
	status := v1alpha1.ModelStatus{
		ObservedGeneration: 1, Loaded: 1, Bytes: 5 << 20, SizeSource: "measured",
		Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLoaded,
			ObservedGeneration: 1,
		}},
		Copies:   []v1alpha1.CopyStatus{{Endpoint: "10.0.0.1:8000", State: "loaded", Since: metav1.MicroTime{Time: time.Unix(1e9, 123e3)}}},
		Failures: []v1alpha1.FailureStatus{{Endpoint: "10.0.0.2:8000", At: metav1.MicroTime{Time: time.Unix(1e9, 0)}, Message: "no"}},
	}
	r := c.open(c.typed(writer(c)), always)
	r.SetWorld(c.world())
	r.SetObserved(standalone)
	r.PutStatuses([]store.Status{{Pool: inPool, ID: "m", Object: objects.Name{Namespace: "default", Name: "m"}, Status: status}})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]string{
		"llmroutes": `Name | Models | Adapter | Pools | Accepted | Ready
a | sql,text-to-sql | sql-v2 | p | True | False
b | chat | <nil> | p,missing | True | False
`,
		"models": `Name | ID | Pool | Copies | Ready | State | Message
m | <nil> | p | 1 | True | Loaded | <nil>
`,
		"inferencepools": `Name | Port | Endpoints | Ready | Picker
p | 8000 | <nil> | <nil> | headgate
`,
	} {
		if got := c.columns(kind); got != want {
			t.Errorf("for %s kubectl prints\n%swant\n%s", kind, got, want)
		}
	}
	if is := c.modelNamed("m"); !is.Status.Copies[0].Since.Equal(&status.Copies[0].Since) {
		t.Errorf("the written status is read as %+v", is)
	}
	c.NothingDenied("writer")
}

func TestConditionsExplainIgnoredParts(t *testing.T) {
	c := newCluster(t)
	c.Apply(route("a", "{backendRefs: [{name: p}], modelNames: [sql]}"))
	c.Await("another second begins: times of creation have no finer grain", func() bool {
		return time.Since(c.routeNamed("a").CreationTimestamp.Time) > 1100*time.Millisecond
	})
	c.Apply(route("b", "{backendRefs: [{name: p}], modelNames: [sql, more]}"))
	c.report(c.world())
	says := func(name, condition, want string) {
		t.Helper()
		r := c.routeNamed(name)
		for _, is := range r.Status.Conditions {
			if is.Type == condition {
				if got := fmt.Sprintf("%s %s: %s", is.Status, is.Reason, is.Message); got != want {
					t.Errorf("%s of %s is %s, want %s", condition, name, got, want)
				}
				if is.ObservedGeneration != r.Generation {
					t.Errorf("condition %s of %s has generation %d, and the route has %d", condition, name, is.ObservedGeneration, r.Generation)
				}
				return
			}
		}
		t.Errorf("%s has no condition %s", name, condition)
	}
	const alone = "True Accepted: it attaches to no Gateway, but the standalone data plane serves it"
	const missing = "False BackendNotFound: spec.backendRefs names InferencePool default/p, which does not exist: its requests get 503"
	says("a", "Accepted", alone)
	says("a", "ResolvedRefs", missing)
	says("b", "Accepted", `False ModelNameTaken: model "sql" is already admitted by LLMRoute default/a, which keeps it`)

	// After route b is corrected, its conditions are true and have the new generation.
	c.Apply(inferencePool("") + "\n---\n" + route("b", "{backendRefs: [{name: p}], modelNames: [more]}"))
	if problems := c.world().Problems; len(problems) > 0 {
		t.Errorf("there are still problems: %q", problems)
	}
	c.report(c.world())
	says("a", "ResolvedRefs", "True ResolvedRefs: ")
	says("b", "Accepted", alone)

	// An unchanged status is not written again, even by the next leader.
	r := c.open(c.typed(writer(c)), always)
	before := c.Asked("writer")
	for range 2 {
		r.SetWorld(c.world())
		r.SetObserved(standalone)
	}
	if err := r.Close(); err != nil || c.Asked("writer") != before+1 {
		t.Errorf("%v: %d requests for unchanged statuses, want a list", err, c.Asked("writer")-before)
	}
	c.NothingDenied("writer")
}

// If two Models have the same id, the older one uses it, and the status of the other reports that.
// When the older one is deleted, the other gets a normal status. A new leader repeats nothing.
func TestModelWithATakenIDIsNotAccepted(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool(""))
	twin := func(name string) string {
		return model(name, "{id: x, poolRef: {name: p}}")
	}
	c.Apply(twin("a"))
	c.Await("another second begins: times of creation have no finer grain", func() bool {
		return time.Since(c.modelNamed("a").CreationTimestamp.Time) > 1100*time.Millisecond
	})
	c.Apply(twin("b"))
	both := c.world()
	open := func() *statuswriter.Writer {
		r := c.open(c.typed(c.Allowed("writer", eventRules)), always)
		r.ReportChanges("control-0")
		return r
	}
	r := open()
	r.SetWorld(both)
	r.SetObserved(standalone)
	r.SetWorld(both)
	c.Await("it is told", func() bool { return c.modelNamed("b").Status.Message != "" })
	is := c.modelNamed("b")
	got := is.Status.Conditions
	if want := `its id "x" in InferencePool default/p is that of Model default/a, which keeps it`; len(got) != 2 ||
		got[0].Type != "Accepted" || got[0].Status != "False" ||
		got[0].Reason != "ModelNameTaken" || got[0].Message != want || got[0].ObservedGeneration != is.Generation ||
		is.Status.Message != want {
		t.Errorf("the status is %+v", is.Status)
	}
	c.Await("Events report both conditions", func() bool { return len(c.events()) == 2 })
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = open()
		before := c.Asked("writer")
		r.SetWorld(both)
		r.SetObserved(standalone)
		if err := r.Close(); err != nil || c.Asked("writer") != before {
			t.Errorf("%v: a new leader sends %d requests", err, c.Asked("writer")-before)
		}
		r = open()
	}
	before := c.Asked("writer")
	c.Delete(twin("a"))
	r.SetWorld(c.world())
	r.SetObserved(standalone)
	if err := r.Close(); err != nil || c.Asked("writer") != before {
		t.Errorf("%v: %d requests, want none: placement writes the status of the Model that has its id", err, c.Asked("writer")-before)
	}
	if n := len(c.events()); n != 2 {
		t.Errorf("%d Events, want 2", n)
	}
	c.NothingDenied("writer")
}

// An API server accepts at most 32768 characters of a message, else it rejects the whole status.
func TestLongMessageIsTruncated(t *testing.T) {
	c := newCluster(t)
	var names []string
	for i := range 128 {
		names = append(names, fmt.Sprintf("%03d%s", i, strings.Repeat("m", 300)))
	}
	for _, name := range []string{"a", "b"} {
		c.Apply(route(name, "{backendRefs: [{name: p}], modelNames: ["+strings.Join(names, ", ")+"]}"))
	}
	c.report(c.world())
	for _, name := range []string{"a", "b"} {
		if n := len(c.routeNamed(name).Status.Conditions); n != 3 {
			t.Errorf("%s has %d conditions, want 3", name, n)
		}
	}
}

// A replaced object (kubectl replace --force) gets its status again, although nothing else has
// changed.
func TestReplacedObjectGetsItsStatus(t *testing.T) {
	c := newCluster(t)
	r := c.open(c.typed(writer(c)), always)
	defer r.Close()
	made := route("a", "{backendRefs: [{name: p}], modelNames: [sql]}") + "\n---\n" + model("m", "{poolRef: {name: p}}")
	for range 2 {
		var uids []string
		for _, o := range apiserver.ReadObjects(t, made) {
			_ = c.At(o).Delete(t.Context(), o.GetName(), metav1.DeleteOptions{})
			is, err := c.At(o).Create(t.Context(), o, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			uids = append(uids, string(is.GetUID()))
		}
		r.SetWorld(c.world())
		r.SetObserved(standalone)
		c.Await("the LLMRoute has its status", func() bool { return len(c.routeNamed("a").Status.Conditions) > 0 })
		if n := len(c.routeNamed("a").Status.Conditions); n != 3 {
			t.Errorf("the route has %d conditions, want 3", n)
		}
		r.PutStatuses([]store.Status{{
			Pool: inPool, ID: "m", Object: objects.Name{Namespace: "default", Name: "m"}, UID: uids[1],
			Status: v1alpha1.ModelStatus{ObservedGeneration: 1, Message: "no room"},
		}})
		c.Await("the Model has its status", func() bool { return c.modelNamed("m").Status.Message == "no room" })
	}
}
