package problem

import (
	"errors"
	"fmt"
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/headgate/headgate/internal/workload"
)

// MeanAge returns the mean time since the last use of models at their eviction, for an LRU cache
// with room for holds models; infinite without evictions. It treats all engines as one cache.
func MeanAge(queries []workload.Query, holds int) float64 {
	sum, gone, now := 0.0, 0, 0.0
	held, err := simplelru.NewLRU(holds, func(_ string, used float64) {
		sum += now - used
		gone++
	})
	if err != nil {
		return 0 // the cache has no room
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

// replicasForAge returns the fewest replicas, each with room for some models, for which the mean
// age at eviction reaches an age in seconds.
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
	low, high := 1, (len(models)+each-1)/each // room for all models
	for low < high {
		if middle := (low + high) / 2; MeanAge(queries, middle*each) >= age {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low, nil
}
