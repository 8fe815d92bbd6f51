package kube_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/apiserver"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// writer may do what the comments of Status and Memory say that they need, and no more.
func writer(c cluster) *rest.Config {
	return c.allowed("writer", `
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes], verbs: [get, list]}
- {apiGroups: [inference.x-k8s.io], resources: [models], verbs: [list, create, delete]}
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes/status], verbs: [update]}
- {apiGroups: [inference.x-k8s.io], resources: [models/status], verbs: [patch]}
`)
}

// columns are what kubectl get prints of objects, without their age.
func (c cluster) columns(kind string) string {
	c.Helper()
	client, err := rest.HTTPClientFor(c.Admin())
	if err != nil {
		c.Fatal(err)
	}
	defer client.CloseIdleConnections()
	group := v1alpha1.GroupVersion
	if kind == "inferencepools" {
		group = pool.GroupVersion
	}
	url := fmt.Sprintf("%s/apis/%s/namespaces/default/%s", c.Admin().Host, group, kind)
	request, err := newRequest(c.Context(), url)
	if err != nil {
		c.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		c.Fatal(err)
	}
	defer response.Body.Close()
	var table metav1.Table
	if err := json.NewDecoder(response.Body).Decode(&table); err != nil {
		c.Fatal(err)
	}
	var text strings.Builder
	line := func(cell func(i int) any) {
		var words []string
		for i, column := range table.ColumnDefinitions {
			if column.Name != "Age" && column.Priority == 0 {
				words = append(words, fmt.Sprint(cell(i)))
			}
		}
		text.WriteString(strings.Join(words, " | ") + "\n")
	}
	line(func(i int) any { return table.ColumnDefinitions[i].Name })
	for _, row := range table.Rows {
		line(func(i int) any { return row.Cells[i] })
	}
	return text.String()
}

// routeNamed reads a route.
func (c cluster) routeNamed(name string) v1alpha1.LLMRoute {
	c.Helper()
	o, err := c.At(apiserver.ReadObjects(c, route("{}"))[0]).Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	var r v1alpha1.LLMRoute
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &r); err != nil {
		c.Fatal(err)
	}
	return r
}

func named(object, name string) string {
	return strings.Replace(object, "metadata: {name: r}", "metadata: {name: "+name+"}", 1)
}

func TestKubectlGetTellsAPersonWhatIsGoingOn(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool("{" + base + ", endpointPickerRef: {name: headgate, port: {number: 9002}}}"))
	c.Apply(named(route("{backendRefs: [{name: p}], modelNames: [sql, text-to-sql], adapter: {name: sql-v2}}"), "a"))
	c.Apply(named(route("{backendRefs: [{name: p}, {name: missing}], modelNames: [chat]}"), "b"))
	c.Apply(model("{poolRef: {name: p}}"))
	s := kube.NewStatus(c.typed(writer(c)), "")
	f := follow(t, c.Admin(), "")
	c.await("all is known", func() bool { return f.models() == "chat m sql text-to-sql" })
	if err := s.Write(t.Context(), f.world.Load()); err != nil {
		t.Fatal(err)
	}
	status := v1alpha1.ModelStatus{
		ObservedGeneration: 1, Loaded: 1, Bytes: 5 << 20, Size: "measured",
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLoaded, ObservedGeneration: 1}},
		Copies:     []v1alpha1.CopyStatus{{Endpoint: "10.0.0.1:8000", State: "loaded", Since: metav1.MicroTime{Time: time.Unix(1e9, 123e3)}}},
		Failures:   []v1alpha1.FailureStatus{{Endpoint: "10.0.0.2:8000", At: metav1.MicroTime{Time: time.Unix(1e9, 0)}, Words: "no"}},
	}
	typed := c.typed(writer(c))
	m := c.memory(typed, always)
	m.PutStatuses([]objects.ModelRecord{{Pool: inPool, ID: "m", Object: objects.Name{Namespace: "default", Name: "m"}, Status: status}})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]string{
		"llmroutes": `Name | Models | Adapter | Pools | Accepted | Ready
a | ["sql","text-to-sql"] | sql-v2 | ["p"] | True | True
b | ["chat"] | <nil> | ["p","missing"] | True | False
`,
		"models": `Name | ID | Pool | Copies | Ready | State | Message
m | <nil> | p | 1 | True | Loaded | <nil>
`,
		"inferencepools": `Name | Selector | Ports | Picker
p | {"app":"llama"} | [{"number":8000}] | headgate
`,
	} {
		if got := c.columns(kind); got != want {
			t.Errorf("of %s kubectl prints\n%swant\n%s", kind, got, want)
		}
	}
	var read v1alpha1.Model
	if err := c.typed(c.Admin()).Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "m"}, &read); err != nil || !read.Status.Copies[0].Since.Equal(&status.Copies[0].Since) {
		t.Errorf("what was written is read as %+v, %v", read, err)
	}
	nothingDeniedTo(t, c, "writer")
}

func TestConditionsSayWhyARouteIsNotInForceAsItIsWritten(t *testing.T) {
	c := newCluster(t)
	c.Apply(named(route("{backendRefs: [{name: p}], modelNames: [sql]}"), "a"))
	f := follow(t, c.Admin(), "")
	c.await("the older is known", func() bool { return f.models() == "sql" })
	c.await("another second begins: times of creation have no finer grain", func() bool {
		return time.Since(c.routeNamed("a").CreationTimestamp.Time) > 1100*time.Millisecond
	})
	c.Apply(named(route("{backendRefs: [{name: p}], modelNames: [sql, more]}"), "b"))
	c.await("both are known", func() bool { return f.models() == "more sql" })
	s := kube.NewStatus(c.typed(writer(c)), "")
	write := func() {
		t.Helper()
		if err := s.Write(t.Context(), f.world.Load()); err != nil {
			t.Fatal(err)
		}
	}
	write()
	says := func(name, condition, want string) {
		t.Helper()
		r := c.routeNamed(name)
		for _, is := range r.Status.Conditions {
			if is.Type == condition {
				if got := fmt.Sprintf("%s %s: %s", is.Status, is.Reason, is.Message); got != want {
					t.Errorf("%s of %s is %s, want %s", condition, name, got, want)
				}
				if is.ObservedGeneration != r.Generation {
					t.Errorf("%s of %s is of generation %d, and the route's is %d", condition, name, is.ObservedGeneration, r.Generation)
				}
				return
			}
		}
		t.Errorf("%s has no condition %s", name, condition)
	}
	const missing = "False BackendNotFound: spec.backendRefs names InferencePool default/p, which does not exist: its requests get 503"
	says("a", "Accepted", "True Accepted: ")
	says("a", "ResolvedRefs", missing)
	says("b", "Accepted", `False ModelNameTaken: model "sql" is already admitted by LLMRoute default/a, which keeps it`)

	// What is mended is true in the next call, and of the generation that mended it.
	c.Apply(inferencePool("{"+base+"}") + "\n---\n" + named(route("{backendRefs: [{name: p}], modelNames: [more]}"), "b"))
	c.await("all is mended", func() bool { return len(f.world.Load().Problems) == 0 && f.models() == "more sql" })
	write()
	says("a", "ResolvedRefs", "True ResolvedRefs: ")
	says("b", "Accepted", "True Accepted: ")

	// What is written is not written again, by the next who writes neither.
	before := c.asked("writer")
	write()
	if n := c.asked("writer"); n != before {
		t.Errorf("%d requests were made of what was written", n-before)
	}
	s = kube.NewStatus(c.typed(writer(c)), "default")
	write()
	if n := c.asked("writer"); n != before+1 {
		t.Errorf("who begins to write asks %d times, want once for all", n-before)
	}
	nothingDeniedTo(t, c, "writer")
}

// Of two Models of one id the older one has it, and the other says so; when that is gone, its status is the other's to write.
func TestAModelWhoseIDIsAnothersIsNotAccepted(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool("{" + base + "}"))
	twin := func(name string) string {
		return strings.Replace(model("{id: x, poolRef: {name: p}}"), "name: m}", "name: "+name+"}", 1)
	}
	c.Apply(twin("a"))
	f := follow(t, c.Admin(), "")
	c.Apply(twin("b"))
	c.await("both are known", func() bool { return len(f.world.Load().Doubles) == 1 })
	s := kube.NewStatus(c.typed(writer(c)), "")
	for range 2 {
		if err := s.Write(t.Context(), f.world.Load()); err != nil {
			t.Fatal(err)
		}
	}
	var is v1alpha1.Model
	if err := c.typed(c.Admin()).Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "b"}, &is); err != nil {
		t.Fatal(err)
	}
	got := is.Status.Conditions
	if want := `its id "x" in InferencePool default/p is that of Model default/a, which keeps it`; len(got) != 1 || got[0].Type != "Accepted" || got[0].Status != "False" ||
		got[0].Reason != "ModelNameTaken" || got[0].Message != want || got[0].ObservedGeneration != is.Generation || is.Status.Message != want {
		t.Errorf("the status is %+v", is.Status)
	}
	if n := c.asked("writer"); n != 2 {
		t.Errorf("%d requests were made, want one for all routes and one for the Model", n)
	}
	c.Delete(twin("a"))
	c.await("it is the only one", func() bool { return len(f.world.Load().Doubles) == 0 })
	if err := s.Write(t.Context(), f.world.Load()); err != nil || c.asked("writer") != 2 {
		t.Errorf("%v: %d requests were made", err, c.asked("writer"))
	}
	nothingDeniedTo(t, c, "writer")
}

// An API server takes 32768 characters of a condition's message, and nothing of a status that has more.
func TestALongMessageIsCut(t *testing.T) {
	c := newCluster(t)
	var names []string
	for i := range 128 {
		names = append(names, fmt.Sprintf("%03d%s", i, strings.Repeat("m", 300)))
	}
	for _, name := range []string{"a", "b"} {
		c.Apply(named(route("{backendRefs: [{name: p}], modelNames: ["+strings.Join(names, ", ")+"]}"), name))
	}
	f := follow(t, c.Admin(), "")
	c.await("both are known", func() bool { return len(f.world.Load().Routes) == 2 })
	if err := kube.NewStatus(c.typed(writer(c)), "").Write(t.Context(), f.world.Load()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if n := len(c.routeNamed(name).Status.Conditions); n != 2 {
			t.Errorf("%s has %d conditions, want 2", name, n)
		}
	}
}

// An object that is made again with its name (kubectl replace --force) has no status, though nothing else of it is other.
func TestWhatIsMadeAgainGetsItsStatusAgain(t *testing.T) {
	c := newCluster(t)
	f := follow(t, c.Admin(), "")
	s := kube.NewStatus(c.typed(writer(c)), "")
	m := c.memory(c.typed(writer(c)), always)
	defer m.Close()
	made := named(route("{backendRefs: [{name: p}], modelNames: [sql]}"), "a") + "\n---\n" + model("{poolRef: {name: p}}")
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
		c.await("what was made is known", func() bool {
			w := f.world.Load()
			return len(w.Routes) == 2 && w.Routes[0].UID == uids[0] && len(w.Catalogue) == 1 && w.Catalogue[0].UID == uids[1]
		})
		if err := s.Write(t.Context(), f.world.Load()); err != nil {
			t.Fatal(err)
		}
		if n := len(c.routeNamed("a").Status.Conditions); n != 2 {
			t.Errorf("the route has %d conditions, want 2", n)
		}
		m.PutStatuses([]objects.ModelRecord{{
			Pool: inPool, ID: "m", Object: objects.Name{Namespace: "default", Name: "m"}, UID: uids[1],
			Status: v1alpha1.ModelStatus{ObservedGeneration: 1, Message: "no room"},
		}})
		c.await("the Model has its status", func() bool { return c.modelNamed("m").Status.Message == "no room" })
	}
}

// modelNamed reads a Model.
func (c cluster) modelNamed(name string) (m v1alpha1.Model) {
	c.Helper()
	if err := c.typed(c.Admin()).Get(c.Context(), client.ObjectKey{Namespace: "default", Name: name}, &m); err != nil {
		c.Fatal(err)
	}
	return m
}

// asked counts the requests of a user.
func (c cluster) asked(user string) int {
	c.Helper()
	all, err := apiserver.Requests(c.AuditLog)
	if err != nil {
		c.Fatal(err)
	}
	n := 0
	for _, r := range all {
		if r.User.Name == user {
			n++
		}
	}
	return n
}
