package place

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

type labels = map[string]v1alpha1.LabelValue

// TestConstraints checks at which of four endpoints models may be loaded, and which endpoints are
// preferred. e1 and e2 have GPUs, and e2 and e4 have a disk.
func TestConstraints(t *testing.T) {
	endpoints := []objects.Endpoint{
		{Address: "e1", Labels: map[string]string{"gpu": "yes"}},
		{Address: "e2", Labels: map[string]string{"gpu": "yes", "disk": "fast"}},
		{Address: "e3"},
		{Address: "e4", Labels: map[string]string{"disk": "fast", "gpu": "no"}},
	}
	gpu, disk := labels{"gpu": "yes"}, labels{"disk": "fast"}
	for _, test := range []struct {
		name        string
		constraints []v1alpha1.Constraint
		modelType   string
		want        string // the allowed endpoints and the preferred ones
	}{
		{"none", nil, "sklearn", "anywhere"},
		{"every label is required", []v1alpha1.Constraint{{ModelType: "t", Required: labels{"gpu": "yes", "disk": "fast"}}}, "t", "e2"},
		{"nobody has it", []v1alpha1.Constraint{{ModelType: "t", Required: labels{"gpu": "two"}}}, "t", "nowhere"},
		{"any set is preferred", []v1alpha1.Constraint{{
			ModelType: "t",
			Preferred: []labels{{"gpu": "no"}, {"gpu": "yes", "disk": "fast"}},
		}}, "t", "anywhere, rather e2 e4"},
		{"what some need others leave free", []v1alpha1.Constraint{{ModelType: "t", Required: gpu}}, "sklearn", "anywhere, rather e3 e4"},
		{"those who need it have no preference", []v1alpha1.Constraint{{ModelType: "t", Required: gpu}}, "t", "e1 e2"},
		{
			"of those that it may use it prefers what others do not",
			[]v1alpha1.Constraint{{ModelType: "t", Required: gpu}, {ModelType: "u", Preferred: []labels{disk}}},
			"t", "e1 e2, rather e1",
		},
		{
			"that others cannot use an endpoint weighs as much as that four prefer it",
			[]v1alpha1.Constraint{
				{ModelType: "t", Required: gpu},
				{ModelType: "u", Preferred: []labels{{"gpu": "no"}}},
				{ModelType: "v", Preferred: []labels{{"gpu": "no"}}},
				{ModelType: "w", Preferred: []labels{{"gpu": "no"}}},
				{ModelType: "x", Preferred: []labels{{"gpu": "no"}}},
				{ModelType: "y", Required: disk},
			},
			"y", "e2 e4",
		},
		{"types without a constraint of their own have that of all", []v1alpha1.Constraint{{Required: gpu}}, "sklearn", "e1 e2"},
		{
			"a constraint without labels lets a type be loaded anywhere",
			[]v1alpha1.Constraint{{Required: gpu}, {ModelType: "t"}},
			"t",
			"anywhere, rather e3 e4",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			fits := fitsOf(&v1alpha1.PoolSettingsSpec{Placement: &v1alpha1.Placement{Constraints: test.constraints}}, endpoints)
			if got := describe(fits.Of(test.modelType)); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
	if none := fitsOf(nil, endpoints); describe(none.Of("t")) != "anywhere" {
		t.Errorf("without settings: %v", none)
	}
}

func describe(f *decide.Fit) string {
	where := strings.Join(slices.Sorted(maps.Keys(f.Only)), " ")
	switch {
	case f.Only == nil:
		where = "anywhere"
	case where == "":
		where = "nowhere"
	}
	if len(f.Preferred) > 0 {
		where += ", rather " + strings.Join(slices.Sorted(maps.Keys(f.Preferred)), " ")
	}
	return where
}
