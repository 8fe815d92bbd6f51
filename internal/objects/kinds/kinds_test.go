package kinds

import (
	"testing"

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
