package objects_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// BenchmarkBuild builds a World of 50 pools, 10,000 pods and 1,000 routes.
//
//	go test -run '^$' -bench Build ./internal/objects
func BenchmarkBuild(b *testing.B) {
	const pools, pods, routes = 50, 10_000, 1000
	var set objects.Set
	for i := range pools {
		set.Pools = append(set.Pools, aPool(fmt.Sprintf("p%d", i), map[string]string{"app": fmt.Sprintf("p%d", i)}, 8000))
	}
	for i := range pods {
		labels := map[string]string{"app": fmt.Sprintf("p%d", i%pools), "pod-template-hash": "5f6d8c7b9", "zone": fmt.Sprintf("z%d", i%3)}
		set.Pods = append(set.Pods, aPod(fmt.Sprintf("engine-%d", i), fmt.Sprintf("10.%d.%d.%d", i/65536, i/256%256, i%256), true, labels))
	}
	for i := range routes {
		r := aRoute(fmt.Sprintf("r%d", i), fmt.Sprintf("p%d", i%pools), time.Duration(i)*time.Second, fmt.Sprintf("m%d", i))
		r.Spec.Adapter = &v1alpha1.Adapter{Name: fmt.Sprintf("a%d", i)}
		set.Routes = append(set.Routes, r)
	}
	b.ReportAllocs()
	for b.Loop() {
		objects.Build(set)
	}
}
