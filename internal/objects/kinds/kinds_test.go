package kinds

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/internal/objects"
)

// both returns the kinds of both tables that are read from API servers.
func both() []Kind { return WithNetwork() }

// every is the kinds of all tables.
func every() []Kind { return slices.Concat(both(), ByName()) }

// Every kind in a Set or a Network has exactly one row.
func TestEachKindOfTheWorldHasARow(t *testing.T) {
	for _, table := range [][]Kind{All(), every()} {
		lacking := objects.Build(objects.Set{Network: NewNetwork(table)}).Objects
		for _, k := range table {
			if _, ok := lacking[k.Kind]; !ok {
				t.Errorf("%s has no place in a Set, or two rows", k.Kind)
			}
			delete(lacking, k.Kind)
		}
		if len(lacking) > 0 {
			t.Errorf("there is no row for %v", lacking)
		}
	}
}

// A row stores an object in its own field of a Set, of its Network, or of both.
func TestObjectsAreStoredByKind(t *testing.T) {
	const set, network = 1, 2 // 3 is both
	where := map[string]int{
		"GatewaySettings": network, "LLMRoute": 3, "PoolSettings": 3, "InferencePool": 3, "Model": set, "VModel": set, "EndpointList": set,
		"Pod": set, "EndpointSlice": set,
		"GatewayClass": network, "Gateway": network, "ListenerSet": network, "HTTPRoute": network, "GRPCRoute": network,
		"ReferenceGrant": network, "BackendTLSPolicy": network, "Namespace": network, "Service": network, "Secret": network,
		"ConfigMap": network,
	}
	for _, k := range every() {
		kept, _ := k.Server(k.New())
		got := 0
		var alone objects.Set
		if k.Keep(&alone, kept); objects.Build(alone).Objects[k.Kind] == 1 {
			got += set
		}
		if alone.Network != nil {
			t.Errorf("%s makes a Network where nobody asked for one", k.Kind)
		}
		with := objects.Set{Network: new(objects.Network)}
		if k.Keep(&with, kept); !cmp.Equal(with.Network, new(objects.Network)) {
			got += network
		}
		if n := objects.Build(with).Objects; n[k.Kind] != 1 {
			t.Errorf("with one object of %s there are %v", k.Kind, n)
		}
		if got != where[k.Kind] || k.InSet != (got&set != 0) || k.InNetwork != (got&network != 0) {
			t.Errorf("%s is kept in %d, and it is said in a Set %v, in a Network %v", k.Kind, got, k.InSet, k.InNetwork)
		}
	}
	var asked []string
	for _, k := range OfServers(every()) {
		asked = append(asked, k.Kind)
	}
	if len(asked) != len(both()) || slices.Contains(asked, "Secret") {
		t.Errorf("API servers are asked for %v", asked)
	}
	if NewNetwork(All()) != nil || NewNetwork(both()) == nil {
		t.Error("a table has a Network that has none of what a Network alone has, or has none")
	}
}

// A change of an unused field, such as status, makes no new World.
func TestUnusedFieldsMakeNoNewWorld(t *testing.T) {
	for _, k := range both() {
		var kept [2]any
		for i, version := range []string{"1", "2"} {
			o := k.New()
			o.SetName("x")
			o.SetResourceVersion(version)
			o.SetAnnotations(map[string]string{"version": version})
			if version == "1" { // the first is listed, the next is watched
				o.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
			}
			k.Trim(o)
			if o.GetResourceVersion() != version || o.GetName() != "x" {
				t.Errorf("%s: trimmed it is %v, so that its versions cannot be told apart", k.Kind, o)
			}
			kept[i], _ = k.Server(o)
		}
		if diff := cmp.Diff(kept[0], kept[1], cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: two versions differ:\n%s", k.Kind, diff)
		}
	}
}

// An endpoint protocol that only newer CRDs have is reported in the pool's status; a folder, which
// has no status, refuses the file.
func TestProtocolThatHeadgateDoesNotSpeak(t *testing.T) {
	i := slices.IndexFunc(All(), func(k Kind) bool { return k.Kind == pool.Kind })
	is := &pool.InferencePool{Spec: pool.Spec{
		Selector: pool.LabelSelector{MatchLabels: map[string]string{"app": "llama"}}, TargetPorts: []pool.Port{{Number: 8000}},
		AppProtocol: "kubernetes.io/h3",
	}}
	is.Name = "llama"
	if _, faults := All()[i].Server(is); len(faults) > 0 {
		t.Errorf("of an API server it is refused: %v", faults)
	}
	if _, faults := All()[i].Folder(is); len(faults) != 1 || faults[0].Field != "spec.appProtocol" {
		t.Errorf("of a folder it gets %v", faults)
	}
}
