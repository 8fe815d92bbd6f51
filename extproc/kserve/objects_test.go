package kserve_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/internal/objects"
)

// PoolSettings accepts exactly those paths with which messages can be read, and the empty path,
// which means that headers name the model. It accepts exactly those method names that a call's path
// can contain.
func TestPathsAndMethodsOfObjects(t *testing.T) {
	check := func(method string, path []int32) bool {
		s := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}}
		s.Spec.PoolRef.Name = "p"
		s.Spec.RPCConfigs = map[string]v1alpha1.RPCConfig{method: {IDExtractionPath: path}}
		return len(objects.CheckSettings(&s)) == 0
	}
	numbers := []int32{1, 2, 15, 16, 18999, 19000, 19001, 19500, 19998, 19999, 20000, 1<<29 - 1, 1 << 29, 1<<31 - 1, 0}
	for levels := 1; levels <= 18; levels++ {
		for _, n := range numbers {
			for at := range levels {
				of, to := make([]int32, levels), make(kserve.Path, levels)
				for i := range of {
					of[i], to[i] = 1, 1
				}
				of[at], to[at] = n, uint32(n)
				if got, want := check("a.S/M", of), kserve.CheckPath(to) == nil; got != want {
					t.Errorf("%v: a PoolSettings may have it: %v, it is a path: %v", of, got, want)
				}
			}
		}
	}
	for _, method := range []string{
		"a.S/M", "S/M", "a.S", "/a.S/M", "a.S/M/N", "a.S/", "/M", "a.S/M%", "a.S/M?", "a.S/M#", "a.S/M N", "",
		"a_1.b.S/M_2",
	} {
		if _, ok := kserve.MethodOf("/" + method); ok != check(method, nil) {
			t.Errorf("%q: a path of a call may name it: %v", method, ok)
		}
	}
}
