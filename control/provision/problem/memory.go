package problem

import (
	"errors"
	"fmt"
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/headgate/headgate/internal/workload"
)

// MeanAge simulates an LRU cache that has room for a number of models (holds). It returns the mean
// time in seconds between a model's last use and its eviction; infinity if no model is evicted. It
// treats all engines as one cache.
func MeanAge(queries []workload.Query, holds int) float64 {
	sum, gone, now := 0.0, 0, 0.0
	held, err := simplelru.NewLRU(holds, func(_ string, used float64) {
		sum += now - used
		gone++
	})
	if err != nil {
		return 0 // the cache has room for no model
	}
	for _, q := range queries {
		now = q.At
		held.Add(q.Model, now)
	}
	if gone == 0 {
		return math.Inf(1)
	}
	return sum / float64(gone)
}

// replicasForAge returns the smallest number of replicas for which [MeanAge] is at least age. A
// replica has room for as many models as each says.
func replicasForAge(queries []workload.Query, each int, age float64) (int, error) {
	models := make(map[string]bool)
	for _, q := range queries {
		models[q.Model] = true
	}
	if len(models) < 2 {
		return 0, errors.New("the trace has no models")
	}
	if span := queries[len(queries)-1].At - queries[0].At; span < age {
		return 0, fmt.Errorf("the planned part of the trace is %.0fs long, which is too short for that age: use a longer trace or a larger --split", span)
	}
	low, high := 1, (len(models)+each-1)/each // with high replicas, all models fit
	for low < high {
		if middle := (low + high) / 2; MeanAge(queries, middle*each) >= age {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low, nil
}
