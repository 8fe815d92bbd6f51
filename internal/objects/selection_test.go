package objects_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/objects"
)

// The oracle checks every pod against every pool.
func TestPodsOfAPool(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	labels := func(most int) map[string]string {
		all := make(map[string]string)
		for range random.IntN(most + 1) {
			all[fmt.Sprintf("k%d", random.IntN(4))] = fmt.Sprintf("v%d", random.IntN(2))
		}
		return all
	}
	for range 200 {
		var set objects.Set
		for i := range 8 {
			p := aPool(fmt.Sprintf("p%d", i), labels(3), 8000)
			p.Namespace = fmt.Sprintf("n%d", random.IntN(2))
			set.Pools = append(set.Pools, p)
		}
		for i := range 40 {
			p := aPod(fmt.Sprintf("e%d", i), fmt.Sprintf("10.0.0.%d", i), true, labels(5))
			p.Name.Namespace = fmt.Sprintf("n%d", random.IntN(2))
			set.Pods = append(set.Pods, p)
		}
		w := objects.Build(set)
		for _, p := range set.Pools {
			var want []string
			for _, pod := range set.Pods {
				selected := pod.Name.Namespace == p.Namespace
				for k, v := range p.Spec.Selector.MatchLabels {
					got, ok := pod.Labels[k]
					selected = selected && ok && got == v
				}
				if selected {
					want = append(want, pod.IP.String()+":8000")
				}
			}
			var got []string
			for _, e := range w.Pools[objects.Name{Namespace: p.Namespace, Name: p.Name}].Endpoints {
				got = append(got, e.Address)
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("%v selects %v, want %v", p.Spec.Selector, got, want)
			}
		}
	}
}
