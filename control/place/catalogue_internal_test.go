package place

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
)

// TestPlacementSettings checks that each placement setting is passed to package decide.
func TestPlacementSettings(t *testing.T) {
	for _, c := range []struct {
		is   *v1alpha1.PoolSettingsSpec
		want decide.Pool
	}{
		{nil, decide.Pool{}},
		{&v1alpha1.PoolSettingsSpec{}, decide.Pool{}},
		{placed(v1alpha1.Placement{Eviction: v1alpha1.EvictionReloadCost}), decide.Pool{}},
		{placed(v1alpha1.Placement{Eviction: "lru"}), decide.Pool{LRU: true}},
		{placed(v1alpha1.Placement{ScaleUpRPM: new(int32(2000))}), decide.Pool{RPM: 2000}},
		{placed(v1alpha1.Placement{LoadTimeout: &metav1.Duration{Duration: time.Minute}}), decide.Pool{LoadTimeout: time.Minute}},
		{placed(v1alpha1.Placement{FailureExpiry: &metav1.Duration{Duration: time.Minute}}), decide.Pool{FailureExpiry: time.Minute}},
	} {
		if got := placementOf(c.is); got != c.want {
			t.Errorf("%+v is placed as %+v, want %+v", c.is, got, c.want)
		}
	}
}

func placed(p v1alpha1.Placement) *v1alpha1.PoolSettingsSpec {
	return &v1alpha1.PoolSettingsSpec{Placement: &p}
}
