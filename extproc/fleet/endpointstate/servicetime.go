package endpointstate

import (
	"slices"
	"sync/atomic"
	"time"
)

// ServiceTime estimates how long an otherwise idle engine takes for a tokenless request for one
// model. The estimate is the mean of the middle half of the latest samples. A sample is the time
// from the last byte of a request to the last byte of its answer, divided by the number of requests
// at the endpoint when the request was sent, including itself ([pick.Decision.Among]).
//
// The estimate needs no metrics of engines. An engine takes n times as long for n requests of one
// model as for one request, whether it runs them one after the other or all at once. If requests
// for several models queue at one engine, their estimates move towards each other, since the
// divisor counts requests and ignores how long they take. On an engine that runs several requests
// at once, the estimate is the marginal cost of one more request. Later arrivals are unknown when a
// request is sent; under a steady load they are as many as the requests that were there.
//
// The middle half excludes cold starts, pauses of the engine and slow clients. After a change of
// the model, the estimate adapts within about 24 requests. Only one goroutine at a time may call
// Learn. Reading is safe for concurrent use.
type ServiceTime struct {
	nanoseconds atomic.Int64 // the estimate; 0 if unknown
	latest      [serviceTimeSamples]int64
	seen        int
}

const (
	// serviceTimeSamples is the number of samples that are kept, fewestSamples the least number for
	// an estimate: four samples have a middle half.
	serviceTimeSamples = 32
	fewestSamples      = 4
	// longestServiceTime is the upper limit of a sample, so that sums do not overflow.
	longestServiceTime = time.Hour
)

// Learn adds a sample. It ignores a sample that is not positive.
func (p *ServiceTime) Learn(alone time.Duration) {
	if alone <= 0 {
		return
	}
	p.latest[p.seen%serviceTimeSamples] = int64(min(alone, longestServiceTime))
	p.seen++
	if p.seen < fewestSamples {
		return
	}
	sorted := p.latest
	all := sorted[:min(p.seen, serviceTimeSamples)]
	slices.Sort(all)
	middle := all[len(all)/4 : len(all)-len(all)/4]
	var sum int64
	for _, n := range middle {
		sum += n
	}
	p.nanoseconds.Store(sum / int64(len(middle)))
}

// Nanoseconds returns the estimate, or 0 if unknown.
func (p *ServiceTime) Nanoseconds() int64 { return p.nanoseconds.Load() }
