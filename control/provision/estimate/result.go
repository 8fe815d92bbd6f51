package estimate

import "math"

// Result contains the results of a simulation.
type Result struct {
	// Stages has the result of each stage, in order of stage numbers.
	Stages []StageResult
	// Seconds is the time from 0 to the end of the last query.
	Seconds float64
	// Events is the number of simulated events: arrivals at stages, ends of batches, and tokens.
	Events int
}

// StageResult contains the results of a stage. Times are in seconds, summed over queries or
// replicas.
type StageResult struct {
	// Queries is the number of queries that ended at the stage. Batches is the number of batches; 0
	// for an LLM. Tokens is the number of output tokens of an LLM.
	Queries, Batches, Tokens int
	// The following times are summed over all queries. QueueTime is the time spent waiting for a
	// replica. BatchingDelay is the time spent waiting for a batch to fill. ServiceTime is the time
	// in service.
	QueueTime, BatchingDelay, ServiceTime float64
	// Busy is the time in which replicas computed. Paid is the time in which replicas existed: from
	// a replica's request until its removal. Paid is 0 if replicas are unbounded.
	Busy, Paid float64
	// Latency and FirstToken are measured from a query's arrival at the stage. FirstToken is set
	// for LLMs only.
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

// Latencies is a histogram of times. Its size is fixed. Adjacent buckets differ by 0.8 %, so the
// error of a quantile is at most 0.4 %. The zero Latencies is empty.
type Latencies struct {
	Count   int
	Sum     float64
	buckets []int32
}

const (
	// bucketBits is the number of mantissa bits that select a bucket within a power of two.
	bucketBits = 7
	// leastPower is the binary exponent of the first bucket, and powers is the number of exponents:
	// the buckets cover 2^-24 s (60 ns) to 2^24 s (194 days). Smaller times are added to the first
	// bucket, larger times to the last.
	leastPower, powers = -24, 48
)

// Add adds a time in seconds, which must not be negative.
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

// Mean returns the mean of all added times; 0 if there are none.
func (l *Latencies) Mean() float64 {
	if l.Count == 0 {
		return 0
	}
	return l.Sum / float64(l.Count)
}

// Quantile returns the time that the given share of all added times does not exceed; 0 if there are
// none.
func (l *Latencies) Quantile(share float64) float64 {
	least := max(1, int(math.Ceil(share*float64(l.Count)-1e-9)))
	for b, n := range l.buckets {
		if least -= int(n); least <= 0 {
			return middle(b)
		}
	}
	return 0
}
