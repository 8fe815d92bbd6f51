package place

import (
	"math"
	"strconv"
	"testing"

	"github.com/headgate/headgate/control/provision/problem"
	"github.com/headgate/headgate/internal/workload"
	"github.com/headgate/headgate/test/race"
)

// The age at eviction agrees with "headgate plan" for 1,000 models with Zipf exponent 1, both with
// a global LRU cache and with control's LRU eviction. (If loads cannot keep up with misses, models
// are evicted later; here they can.)
func TestAgeIsAsPlanned(t *testing.T) {
	race.Skip(t)
	for _, share := range []float64{0.2, 0.6} {
		w := World{
			Endpoints: 10, Models: 1000, Share: share, Zipf: 1, Rate: 20, Load: 0.5, AtOnce: 2, Service: 0.05, Warmup: 400,
			Measured: 400,
		}
		var queries []workload.Query
		for _, r := range requests(w, 1) {
			if r.At >= w.Warmup/2 { // including the second half of the warm-up, which fills the cache
				queries = append(queries, workload.Query{At: r.At, Model: strconv.Itoa(int(r.Model))})
			}
		}
		planned := problem.MeanAge(queries, int(share*float64(w.Models)))
		for name, p := range map[string]Policy{"lru": LRU(), "headgate by lru": HeadgateLRU(), "headgate": Headgate()} {
			is, err := Run(w, 1, p)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("room for %v: %s has an age of %.1f s, planned are %.1f s (%+.1f %%)", share, name, is.Age, planned,
				100*(is.Age/planned-1))
			if name != "headgate" && math.Abs(is.Age/planned-1) > 0.1 {
				t.Errorf("room for %v: %s has an age of %.1f s, planned are %.1f s", share, name, is.Age, planned)
			}
		}
	}
}
