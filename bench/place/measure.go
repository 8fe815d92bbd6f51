package place

import (
	"math"
	"slices"
)

// Figures summarizes the measured requests.
type Figures struct {
	// Misses is the share of requests that waited for a load.
	Misses float64
	// Wait99 is the 99th percentile of the waiting time of all requests in seconds; infinite if 1 %
	// of the requests still waited at the end.
	Wait99 float64
	// FirstToken99 is the 99th percentile of the time to first token in seconds; infinite if 1 % of
	// the requests got no token. It is 0 if endpoints are not engines.
	FirstToken99 float64
	// Refused is the share of requests that the policy rejected. They also count as misses.
	Refused float64
	// Loads is the number of loads per minute.
	Loads float64
	// Moves is the number of loads in the five minutes after a scale event minus that in the five
	// minutes before it, relative to the number of loaded copies. It is the mean of all events.
	Moves float64
	// Joined is the number of requests at the new endpoint relative to the mean of all endpoints,
	// from five to ten minutes after it joined.
	Joined float64
	// Imbalance is the number of requests at the busiest endpoint relative to the mean of all
	// endpoints.
	Imbalance float64
	// Age is how long ago a model was last requested when its last copy is evicted: the mean in
	// seconds; 0 if no last copy is evicted.
	Age float64
}

// refused is stored as the waiting time of a rejected request.
const refused = -2

// figures computes the figures. The waiting time of a request that still waits at the end is
// infinite if the request arrived before the last minute; otherwise the request is ignored.
func (f *Fleet) figures(loads int, end float64) Figures {
	from, _ := slices.BinarySearchFunc(f.Requests, f.Warmup, func(r Request, t float64) int {
		if r.At < t {
			return -1
		}
		return 1
	})
	var waits, first []float32
	missed, failed, all := 0, 0, 0
	for number := from; number < len(f.Requests); number++ {
		wait := f.waits[number]
		if wait == refused {
			failed++
		} else if wait < 0 && f.Requests[number].At > end-60 {
			continue
		}
		all++
		if f.first != nil {
			first = append(first, f.firstToken(number, end))
		}
		if wait == 0 {
			continue
		}
		if missed++; wait < 0 {
			wait = float32(math.Inf(1))
		}
		waits = append(waits, wait)
	}
	slices.Sort(waits)
	is := Figures{
		Misses: float64(missed) / float64(max(all, 1)), Refused: float64(failed) / float64(max(all, 1)),
		Loads: float64(loads) * 60 / f.Measured,
	}
	if f.gone > 0 {
		is.Age = float64(f.ages) / 1e9 / float64(f.gone)
	}
	if at := len(waits) - 1 - all/100; at >= 0 {
		is.Wait99 = float64(waits[at])
	}
	if f.first != nil {
		slices.Sort(first)
		is.FirstToken99 = float64(first[max(0, len(first)-1-all/100)])
	}
	var more, stood int
	for i := range f.stood {
		more += f.scaled[3*i+2] - 2*f.scaled[3*i+1] + f.scaled[3*i]
		stood += f.stood[i]
	}
	if stood > 0 {
		is.Moves = float64(more) / float64(stood)
	}
	if all := f.joined[1][1] - f.joined[0][1]; all > 0 {
		is.Joined = float64(f.joined[1][0]-f.joined[0][0]) / float64(all) * float64(f.Endpoints+1)
	}
	most, sum, up := 0, 0, 0
	for i := range f.Nodes {
		if n := &f.Nodes[i]; n.Up {
			most, sum, up = max(most, n.served), sum+n.served, up+1
		}
	}
	if sum > 0 {
		is.Imbalance = float64(most) * float64(up) / float64(sum)
	}
	return is
}

// firstToken returns the time to first token of a request. If it has no token yet, firstToken
// returns its waiting time, or infinity if it arrived before the last minute.
func (f *Fleet) firstToken(number int, end float64) float32 {
	switch at := f.Requests[number].At; {
	case f.first[number] > 0:
		return f.first[number]
	case f.waits[number] != refused && at > end-60:
		return float32(end - at)
	}
	return float32(math.Inf(1))
}
