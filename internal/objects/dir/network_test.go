package dir_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// withNetwork is both tables.
var withNetwork = kinds.WithNetwork()

const gatewayAPI = "---\napiVersion: gateway.networking.k8s.io/v1\n"

func class(name string) string {
	return gatewayAPI + "kind: GatewayClass\nmetadata: {name: " + name + "}\nspec: {controllerName: headgate.dev/control}\n"
}

func gateway(name string, port int) string {
	return gatewayAPI +
		fmt.Sprintf("kind: Gateway\nmetadata: {name: %s}\nspec: {gatewayClassName: headgate, listeners: [{name: http, port: %d, protocol: HTTP}]}\n",
			name, port)
}

func namespace(name string) string {
	return "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + ", labels: {team: red}}\n"
}

func service(name string) string {
	return "---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {ports: [{port: 80}]}\n"
}

func slice(address string) string {
	return "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s-1, labels: {kubernetes.io/service-name: s}}\n" +
		"addressType: IPv4\nendpoints: [{addresses: [" + address + "]}]\nports: [{port: 8080}]\n"
}

// attached lists the names of a Network's objects, in its order.
func attached(n *objects.Network) string {
	if n == nil {
		return "none"
	}
	var all []string
	for _, c := range n.Classes {
		all = append(all, objects.Name{Namespace: c.Namespace, Name: c.Name}.String())
	}
	for _, g := range n.Gateways {
		all = append(all, fmt.Sprintf("%s/%s:%d", g.Namespace, g.Name, g.Spec.Listeners[0].Port))
	}
	for _, ns := range n.Namespaces {
		all = append(all, ns.Name+"="+ns.Labels["team"])
	}
	for _, s := range n.Services {
		all = append(all, s.Name.String())
	}
	for _, p := range n.Pools {
		all = append(all, p.Namespace+"/"+p.Name)
	}
	for _, r := range n.Routes {
		all = append(all, r.Namespace+"/"+r.Name)
	}
	return strings.Join(all, " ")
}

func TestNetworkOfAFolderChangesWithItsObjects(t *testing.T) {
	folder := t.TempDir()
	f := followKinds(t, folder, withNetwork)
	was := f.await("").Network
	for i, step := range []struct {
		what, file, text string
		want             string
		anew             bool
	}{
		{"a pod", "pods.yaml", aPod, "", false},
		{"a Gateway and its class", "a.yaml", gateway("z", 80) + class("headgate"), "headgate default/z:80", true},
		{"more of another file goes before it, in order of name", "b.yaml", namespace("red") + gateway("b", 81) + gateway("a", 82) +
			namespace("blue"), "headgate default/a:82 default/b:81 default/z:80 blue=red red=red", true},
		{
			"the same in another order, with a comment", "a.yaml", "# ours\n" + class("headgate") + gateway("z", 80),
			"headgate default/a:82 default/b:81 default/z:80 blue=red red=red", false,
		},
		{
			"another pod", "pods.yaml", strings.Replace(aPod, "10.0.0.1", "10.0.0.2", 1),
			"headgate default/a:82 default/b:81 default/z:80 blue=red red=red", false,
		},
		{
			"another port", "a.yaml", class("headgate") + gateway("z", 90),
			"headgate default/a:82 default/b:81 default/z:90 blue=red red=red", true,
		},
		{
			"a Gateway that is refused", "a.yaml", strings.Replace(gateway("z", 91), "port: 91", "port: many", 1),
			"headgate default/a:82 default/b:81 default/z:90 blue=red red=red", false,
		},
		{
			"a namespace that has other labels, and one that is gone", "b.yaml",
			strings.Replace(namespace("red"), "team: red", "team: blue", 1), "headgate default/z:90 red=blue", true,
		},
		{"a Service", "c.yaml", service("s"), "headgate default/z:90 red=blue default/s", true},
		{
			"a pool and a route", "d.yaml", pool + "---\n" + route("r"),
			"headgate default/z:90 red=blue default/s default/base default/r", true,
		},
		{
			"an EndpointSlice, which is none of it", "e.yaml", slice("10.0.0.1"),
			"headgate default/z:90 red=blue default/s default/base default/r", false,
		},
		{"another endpoint", "e.yaml", slice("10.0.0.2"), "headgate default/z:90 red=blue default/s default/base default/r", false},
		{"nothing any more", "b.yaml", "", "headgate default/z:90 default/s default/base default/r", true},
	} {
		f.write(step.file, step.text)
		turn := fmt.Sprint("turn-", i)
		f.write("turn.yaml", "{apiVersion: inference.x-k8s.io/v1alpha1, kind: Model, metadata: {name: "+turn+
			"}, spec: {poolRef: {name: base}}}\n")
		w := f.awaitModel(turn)
		if got := attached(w.Network); got != step.want {
			t.Errorf("%s: the Network has %q, want %q", step.what, got, step.want)
		}
		if anew := w.Network != was; anew != step.anew {
			t.Errorf("%s: the Network is another, %v, want %v", step.what, anew, step.anew)
		}
		was = w.Network
		if step.what == "another endpoint" && (len(w.Slices) != 1 || w.Slices[0].Endpoints[0].Address.String() != "10.0.0.2") {
			t.Errorf("the World has the slices %+v", w.Slices)
		}
		if step.what == "another port" {
			if got, want := w.Where("GatewayClass", objects.Name{Name: "headgate"}), "GatewayClass headgate, "+
				filepath.Join(folder, "a.yaml")+":4"; got != want {
				t.Errorf("it is said to be %q, want %q", got, want)
			}
		}
	}
}

const aPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus: {podIP: 10.0.0.1}\n"

// awaitModel returns the first World that has a model for requests.
func (f *follower) awaitModel(name string) *objects.World {
	f.t.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case w := <-f.worlds:
			if w.Route(name) != nil {
				return w
			}
		case <-limit:
			f.t.Fatalf("no World with the model %q came; the log says:\n%s", name, f.log.String())
		}
	}
}

// A folder without any objects of a Network still has a Network.
func TestFolderHasANetwork(t *testing.T) {
	for _, row := range []struct {
		table []kinds.Kind
		want  string
	}{{kinds.All(), "none"}, {withNetwork, ""}} {
		folder := t.TempDir()
		set, err := dir.Read(folder, row.table)
		if err != nil || attached(set.Network) != row.want || (set.Network == nil) != (row.want == "none") {
			t.Errorf("of an empty folder the Network is %q, %v, want %q", attached(set.Network), err, row.want)
		}
		if got := attached(followKinds(t, folder, row.table).await("").Network); got != row.want {
			t.Errorf("of an empty folder that is followed the Network is %q, want %q", got, row.want)
		}
	}
}

// A folder refuses what an API server's CRD refuses, with file and line. It also reports the
// modification time of an object's file.
func TestFolderRefusesAnHTTPRouteOfSeventeenRules(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "route.yaml")
	route := func(rules int) string {
		return gatewayAPI + "kind: HTTPRoute\nmetadata: {name: r}\nspec:\n  rules:\n" +
			strings.Repeat("  - {backendRefs: [{name: s, port: 80}]}\n", rules)
	}
	if err := os.WriteFile(file, []byte(route(17)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Read(folder, withNetwork); err == nil ||
		!strings.Contains(err.Error(), "spec.rules: Too many: 17: must have at most 16 items") {
		t.Errorf("17 rules: %v", err)
	}
	if err := os.WriteFile(file, []byte(route(16)), 0o644); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0)
	if err := os.Chtimes(file, at, at); err != nil {
		t.Fatal(err)
	}
	set, err := dir.Read(folder, withNetwork)
	if err != nil || len(set.Network.HTTPRoutes) != 1 {
		t.Fatalf("16 rules: %v", err)
	}
	if got := set.Written[objects.Object{
		Kind: objects.HTTPRouteKind,
		Name: objects.Name{Namespace: "default", Name: "r"},
	}]; !got.Equal(at) {
		t.Errorf("it was written %v, want %v: %v", got, at, set.Written)
	}
}
