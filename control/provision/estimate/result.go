package estimate

import "math"

// Result has the figures of a simulation.
type Result struct {
	// Stages in order of their numbers.
	Stages []StageResult
	// Seconds from time 0 to the end of the last query.
	Seconds float64
	// Events counts arrivals at stages, ended batches and generated tokens.
	Events int
}

// StageResult has the figures of a stage. Times are in seconds, summed over queries or replicas.
type StageResult struct {
	// Queries that passed the stage. Batches is 0 for an LLM, Tokens are the output tokens of an
	// LLM.
	Queries, Batches, Tokens int
	// QueueTime is the time that they waited for a replica. BatchingDelay is the time that they
	// waited for their batch to fill, while a replica was idle or before one was free. ServiceTime
	// is the time that they were computed.
	QueueTime, BatchingDelay, ServiceTime float64
	// Busy is the time that replicas computed. Paid is the time that they existed, from the
	// request for a replica until it ended its last query; 0 without a bound on replicas.
	Busy, Paid float64
	// Latency and FirstToken (LLMs only) count from the arrival at the stage.
	Latency, FirstToken Latencies
}

func (r *run) result() *Result {
	is := &Result{Seconds: r.loop.Now()}
	for i := range r.stages {
		if s := &r.stages[i]; s.Replicas != Unbounded {
			s.pods.pay()
		}
		is.Stages = append(is.Stages, r.stages[i].result)
		is.Events += r.stages[i].result.Queries + r.stages[i].result.Batches + r.stages[i].result.Tokens
	}
	return is
}

// Latencies is a histogram of times with buckets 0.8 % apart, so a quantile is exact to 0.4 %. Its
// size is fixed. The zero Latencies is empty.
type Latencies struct {
	Count   int
	Sum     float64
	buckets []int32
}

const (
	// bucketBits of the mantissa select a bucket within a power of two.
	bucketBits = 7
	// leastPower and powers bound the buckets, which cover 2^-24 s (60 ns) to 2^24 s (194 days).
	// Times beyond are in the first or last bucket.
	leastPower, powers = -24, 48
)

// Add counts a time in seconds, at least 0.
func (l *Latencies) Add(seconds float64) {
	if l.buckets == nil {
		l.buckets = make([]int32, powers<<bucketBits)
	}
	l.Count++
	l.Sum += seconds
	l.buckets[bucketOf(seconds)]++
}

func bucketOf(seconds float64) int {
	bits := math.Float64bits(seconds) >> (52 - bucketBits)
	return min(max(int(bits)-(1023+leastPower)<<bucketBits, 0), powers<<bucketBits-1)
}

// middle returns the time in the middle of a bucket.
func middle(bucket int) float64 {
	at := func(b int) float64 {
		return math.Float64frombits(uint64(b+(1023+leastPower)<<bucketBits) << (52 - bucketBits))
	}
	return (at(bucket) + at(bucket+1)) / 2
}

// Mean returns the mean of all times; 0 without any.
func (l *Latencies) Mean() float64 {
	if l.Count == 0 {
		return 0
	}
	return l.Sum / float64(l.Count)
}

// Quantile returns the time that a share of all times does not exceed; 0 without any.
func (l *Latencies) Quantile(share float64) float64 {
	least := max(1, int(math.Ceil(share*float64(l.Count)-1e-9)))
	for b, n := range l.buckets {
		if least -= int(n); least <= 0 {
			return middle(b)
		}
	}
	return 0
}
