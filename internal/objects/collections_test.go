package objects

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
)

// A field of Set that is not a collection would be neither counted nor joined, and its objects
// would be lost on the way to the World.
func TestSetHasOnlyCollections(t *testing.T) {
	var s Set
	var n Network
	for _, keeps := range []struct {
		collections map[string]collection
		fields      reflect.Value
	}{{s.collections(), reflect.ValueOf(&s).Elem()}, {n.collections(), reflect.ValueOf(&n).Elem()}} {
		shelved := make(map[any]bool)
		for _, collection := range keeps.collections {
			shelved[reflect.ValueOf(collection).FieldByName("all").UnsafePointer()] = true
		}
		v := keeps.fields
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct && !shelved[v.Field(i).Addr().UnsafePointer()] {
				t.Errorf("%v.%s is in no collection", v.Type(), f.Name)
			}
		}
	}
}

func TestJoinHasTheObjectsOfBoth(t *testing.T) {
	one := Set{Pods: make([]Pod, 1, 8), Models: []*v1alpha1.Model{{}}, At: map[Object]string{{PodKind, Name{}}: "a:1"}}
	two := Set{Pods: make([]Pod, 2), At: map[Object]string{{PodKind, Name{}}: "b:1", {PodKind, Name{Name: "x"}}: "b:2"}}
	all := one.Join(two)
	if len(all.Pods) != 3 || len(all.Models) != 1 || all.At[Object{PodKind, Name{}}] != "a:1" || len(all.At) != 2 || len(one.At) != 1 {
		t.Errorf("joined they are %+v", all)
	}
	if all.Pods[0].Name.Name = "changed"; one.Pods[0].Name.Name != "" {
		t.Error("who changes what is joined changes what it was joined of")
	}
}

// Users of the Network compare pointers, so joining a Set without a Network keeps the other's
// pointer.
func TestJoinKeepsTheNetwork(t *testing.T) {
	n := &Network{Namespaces: []Namespace{{Name: "b"}, {Name: "a"}}}
	with, without := Set{Network: n}, Set{Pods: make([]Pod, 1)}
	if with.Join(without).Network != n || without.Join(with).Network != n || Build(with.Join(without)).Network != n {
		t.Error("there is another Network")
	}
	if without.Join(without).Network != nil || Build(without).Network != nil {
		t.Error("of none there is a Network")
	}
}

// The oracle is an exchange sort.
func TestJoinOfTwoNetworksIsSorted(t *testing.T) {
	names := func(n *Network) (all [][]Name) {
		all = make([][]Name, 3)
		for _, g := range n.Gateways {
			all[0] = append(all[0], Name{g.Namespace, g.Name})
		}
		for _, ns := range n.Namespaces {
			all[1] = append(all[1], Name{Name: ns.Name})
		}
		for _, s := range n.Services {
			all[2] = append(all[2], s.Name)
		}
		return all
	}
	random := rand.New(rand.NewPCG(1, 2))
	some := func() *Network {
		n := new(Network)
		for range random.IntN(6) {
			name := Name{fmt.Sprint("n", random.IntN(3)), strconv.Itoa(random.IntN(5))}
			switch random.IntN(3) {
			case 0:
				meta := metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}
				n.Gateways = append(n.Gateways, gatewayv1.Gateway{ObjectMeta: meta})
			case 1:
				n.Namespaces = append(n.Namespaces, Namespace{Name: name.Name})
			case 2:
				n.Services = append(n.Services, Service{Name: name})
			}
		}
		return n
	}
	for range 500 {
		one, two := some(), some()
		ones, twos := names(one), names(two)
		s := Set{Network: one}.Join(Set{Network: two})
		if s.Network == one || s.Network == two {
			t.Fatal("a Network has changed")
		}
		if !reflect.DeepEqual([][][]Name{names(one), names(two)}, [][][]Name{ones, twos}) {
			t.Fatal("the Networks that were joined are not as they were")
		}
		got := names(s.Network)
		for i := range got {
			want := slices.Concat(ones[i], twos[i])
			for a := range want {
				for b := range a {
					if want[a].Namespace < want[b].Namespace || want[a].Namespace == want[b].Namespace && want[a].Name < want[b].Name {
						want[a], want[b] = want[b], want[a]
					}
				}
			}
			if diff := cmp.Diff(want, got[i]); diff != "" && len(want)+len(got[i]) > 0 {
				t.Fatalf("joined (-want +got):\n%s", diff)
			}
		}
	}
}
