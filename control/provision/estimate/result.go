package estimate

import "math"

// Result is what became of all queries.
type Result struct {
	// Stages in order.
	Stages []StageResult
	// Seconds from time 0 to the end of the last query.
	Seconds float64
	// Events is how often a query came to a stage, a batch ended, and an LLM made a token.
	Events int
}

// StageResult is what a stage did. Seconds are those of all queries, or of all replicas, together.
type StageResult struct {
	// Queries that passed it, in Batches where it is no LLM; Tokens are those of an LLM's answers.
	Queries, Batches, Tokens int
	// Waited is for how long they waited for a replica, Filled for their batch to fill, while a replica was idle or ahead of one, and Computed for how
	// long they were computed.
	Waited, Filled, Computed float64
	// Busy is for how long replicas computed, and Paid for how long they were there, from when each was asked for until it had ended what it had; 0
	// where there is no bound.
	Busy, Paid float64
	// Latency from the time at which a query came to the stage, and FirstToken until its first token, if it is an LLM.
	Latency, FirstToken Latencies
}

func (r *run) result() *Result {
	is := &Result{Seconds: r.loop.Now()}
	for i := range r.stages {
		if s := &r.stages[i]; s.Replicas != Unbounded {
			s.pods.pay()
		}
		is.Stages = append(is.Stages, r.stages[i].seen)
		is.Events += r.stages[i].seen.Queries + r.stages[i].seen.Batches + r.stages[i].seen.Tokens
	}
	return is
}

// Latencies counts times, in buckets of which the next is 0.8 % further on at most: a quantile is right to 0.4 %. It does not grow. The zero
// Latencies has none.
type Latencies struct {
	Count   int
	Sum     float64
	buckets []int32
}

const (
	// bucketBits of the mantissa tell buckets of one power of two apart.
	bucketBits = 7
	// Buckets are of 2^-24 s (60 ns) to 2^24 s (194 days); what is shorter or longer is in the first and the last.
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

// middle is the time in the midst of a bucket.
func middle(bucket int) float64 {
	at := func(b int) float64 {
		return math.Float64frombits(uint64(b+(1023+leastPower)<<bucketBits) << (52 - bucketBits))
	}
	return (at(bucket) + at(bucket+1)) / 2
}

// Mean is that of all times; 0 if there are none.
func (l *Latencies) Mean() float64 {
	if l.Count == 0 {
		return 0
	}
	return l.Sum / float64(l.Count)
}

// Quantile is the time that a share of all took at most; 0 if there are none.
func (l *Latencies) Quantile(share float64) float64 {
	least := max(1, int(math.Ceil(share*float64(l.Count)-1e-9)))
	for b, n := range l.buckets {
		if least -= int(n); least <= 0 {
			return middle(b)
		}
	}
	return 0
}
