package statuswriter_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/test/apiserver"
)

// cluster is an API server with Headgate's CRDs.
type cluster struct{ apiserver.Cluster }

func newCluster(t testing.TB) cluster {
	t.Helper()
	return cluster{apiserver.RunCluster(t)}
}

const ours = "apiVersion: inference.x-k8s.io/v1alpha1\n"

func route(name, spec string) string {
	return ours + "kind: LLMRoute\nmetadata: {name: " + name + "}\nspec: " + spec
}

func model(name, spec string) string {
	return ours + "kind: Model\nmetadata: {name: " + name + "}\nspec: " + spec
}

// inferencePool returns the InferencePool p in YAML. The argument is added to its spec, and begins
// with a comma.
func inferencePool(more string) string {
	return "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\n" +
		"spec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}]" + more + "}"
}

// writer returns the config of a user with exactly the permissions that the comment of Writer
// lists.
func writer(c cluster) *rest.Config {
	return c.Allowed("writer", writerRules)
}

const writerRules = `
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes, poolsettings, endpointlists], verbs: [get, list]}
- {apiGroups: [inference.x-k8s.io], resources: [models], verbs: [list, create, delete]}
- {apiGroups: [inference.x-k8s.io], resources: [vmodels], verbs: [list, create, delete, patch]}
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes/status, poolsettings/status, endpointlists/status], verbs: [update]}
- {apiGroups: [inference.x-k8s.io], resources: [models/status, vmodels/status], verbs: [patch]}
`

// typed returns a client that knows the kinds to which a Writer writes.
func (c cluster) typed(as *rest.Config) client.Client {
	c.Helper()
	typed, err := kube.Client(as)
	if err != nil {
		c.Fatal(err)
	}
	return typed
}

func (c cluster) open(typed client.Client, leads func() bool) *statuswriter.Writer {
	c.Helper()
	r, err := statuswriter.Open(c.Context(), typed, "", slog.New(slog.NewTextHandler(c.Output(), nil)), leads)
	if err != nil {
		c.Fatal(err)
	}
	return r
}

func always() bool { return true }

// standalone is a standalone data plane, which serves every route, and no endpoints.
var standalone = conditions.Observed{Extprocs: []conditions.Extproc{{Process: "x", Standalone: true}}}

// world returns a World of all objects in the API server.
func (c cluster) world() *objects.World {
	c.Helper()
	set, err := kube.Read(c.Context(), c.Admin(), "", kinds.All())
	if err != nil {
		c.Fatal(err)
	}
	return objects.Build(set)
}

// report writes the statuses for a World with a new Writer, then closes it. It returns the number
// of requests, without the two lists of Open.
func (c cluster) report(w *objects.World) int {
	c.Helper()
	before := c.Asked("writer")
	r := c.open(c.typed(writer(c)), always)
	r.SetWorld(w)
	r.SetObserved(standalone)
	if err := r.Close(); err != nil { // waits until everything is written
		c.Fatal(err)
	}
	return c.Asked("writer") - before - 2
}

// columns returns the output of kubectl get for a kind, without the column AGE.
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
	request, err := http.NewRequestWithContext(c.Context(), http.MethodGet,
		fmt.Sprintf("%s/apis/%s/namespaces/default/%s", c.Admin().Host, group, kind), nil)
	if err != nil {
		c.Fatal(err)
	}
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
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

// routeNamed reads an LLMRoute.
func (c cluster) routeNamed(name string) (r v1alpha1.LLMRoute) {
	c.Helper()
	if err := c.typed(c.Admin()).Get(c.Context(), client.ObjectKey{Namespace: "default", Name: name}, &r); err != nil {
		c.Fatal(err)
	}
	return r
}

// modelNamed reads a Model.
func (c cluster) modelNamed(name string) (m v1alpha1.Model) {
	c.Helper()
	if err := c.typed(c.Admin()).Get(c.Context(), client.ObjectKey{Namespace: "default", Name: name}, &m); err != nil {
		c.Fatal(err)
	}
	return m
}
