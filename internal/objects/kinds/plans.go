package kinds

import (
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Plans is the table of what is planned by, which no program that runs follows. A folder that is read without this table may have it all the same:
// it is passed over. Each call returns another slice.
func Plans() []Kind {
	return []Kind{
		Of(Row[v1alpha1.CapacityPlan, v1alpha1.CapacityPlan]{
			Resource: v1alpha1.SchemeGroupVersion.WithResource("capacityplans"), Kind: v1alpha1.CapacityPlanKind, List: new(v1alpha1.CapacityPlanList),
			Strict: true,
			Folder: checked(objects.CheckCapacityPlan),
			Trim:   func(p *v1alpha1.CapacityPlan) { TrimMeta(&p.ObjectMeta) },
			In:     func(s *objects.Set) *[]v1alpha1.CapacityPlan { return &s.Plans },
		}),
	}
}
