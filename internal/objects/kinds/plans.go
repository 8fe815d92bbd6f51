package kinds

import (
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Plans is the table of capacity plans, which no running program reads. Programs without this table
// skip such objects in a folder. Each call returns a new slice.
func Plans() []Kind {
	return []Kind{
		Of(Row[v1alpha1.CapacityPlan, v1alpha1.CapacityPlan]{
			Resource: v1alpha1.SchemeGroupVersion.WithResource("capacityplans"), Kind: v1alpha1.CapacityPlanKind,
			List:   new(v1alpha1.CapacityPlanList),
			Strict: true,
			Folder: checked(objects.CheckCapacityPlan),
			Trim:   func(p *v1alpha1.CapacityPlan) { TrimMeta(&p.ObjectMeta) },
			In:     func(s *objects.Set) *[]v1alpha1.CapacityPlan { return &s.Plans },
		}),
	}
}
