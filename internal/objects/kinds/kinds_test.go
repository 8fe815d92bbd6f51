package kinds

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/headgate/headgate/internal/objects"
)

// What a Set can keep has a row, and no kind has two.
func TestEachKindOfTheWorldHasARow(t *testing.T) {
	lacking := objects.Build(objects.Set{}).Objects
	for _, k := range All() {
		if _, ok := lacking[k.Kind]; !ok {
			t.Errorf("%s has no place in a Set, or two rows", k.Kind)
		}
		delete(lacking, k.Kind)
	}
	if len(lacking) > 0 {
		t.Errorf("there is no row for %v", lacking)
	}
}

// What a row does with an object is in its own field of a Set.
func TestWhatIsKeptIsCountedAsItsKind(t *testing.T) {
	for _, k := range All() {
		kept, _ := k.Server(k.New())
		var set objects.Set
		k.Keep(&set, kept)
		if n := objects.Build(set).Objects; n[k.Kind] != 1 {
			t.Errorf("with one object of %s there are %v", k.Kind, n)
		}
	}
}

// A change of what nobody reads, such as that of a status, makes no other World.
func TestVersionsThatDifferInWhatNobodyReadsAreTheSame(t *testing.T) {
	for _, k := range All() {
		var kept [2]any
		for i, version := range []string{"1", "2"} {
			o := k.New()
			o.SetName("x")
			o.SetResourceVersion(version)
			o.SetAnnotations(map[string]string{"version": version})
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
