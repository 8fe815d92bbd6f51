package endpointstate

import (
	"slices"
	"sync/atomic"
	"time"
)

// ServiceTime estimates how long an otherwise idle engine takes for a tokenless request for one
// model. It is the mean of the middle half of the latest samples. A sample is the time from a
// request's last byte to the last byte of its answer, divided by the number of requests at the
// endpoint when it was sent, including itself ([pick.Decision.Among]).
//
// It needs no metrics of engines. An engine takes n times as long for n requests of one model as
// for one, whether it runs them one after the other or all at once. If requests for several models
// queue at one engine, their estimates move towards each other, since the divisor counts requests
// and not their times. On an engine that runs several requests at once, the estimate is the
// marginal cost of one more. Later arrivals are unknown when a request is sent; in a steady load
// they equal the requests that were there.
//
// The middle half excludes a cold start, pauses of the engine and slow clients. A changed model is
// known after about 24 requests. One goroutine at a time may call Learn; all may read.
type ServiceTime struct {
	nanoseconds atomic.Int64 // 0 if unknown
	latest      [serviceTimeSamples]int64
	seen        int
}

const (
	// serviceTimeSamples is the number of samples, fewestSamples the least number for an estimate:
	// four have a middle half.
	serviceTimeSamples = 32
	fewestSamples      = 4
	// longestServiceTime bounds a sample, so that sums do not overflow.
	longestServiceTime = time.Hour
)

// Learn adds a sample. It ignores values that are not positive.
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
