package flow

import (
	"math"
	"sync/atomic"
)

// lengths are the mean numbers of output tokens of answers, by a key of 64 bits for each route and
// tenant. They are a cache of fixed size: a key that was not used lately makes room for another. A
// lengths is safe for concurrent use, takes no locks and allocates nothing. If two answers end at
// the same moment, it may learn only one of them, or forget another key. The zero lengths is empty.
type lengths struct {
	sets [lengthSets][lengthWays]length
	// sent are the keys of the last requests.
	sent [maxSent]struct{ number, key atomic.Uint64 }
}

type length struct {
	key, mean atomic.Uint64 // key is 0 if there is none; mean has the bits of a float64
	used      atomic.Bool   // again, since the set was last searched for room
}

const (
	// lengthSets and lengthWays bound the number of keys to 4,096, and their memory to 96 KB.
	lengthSets, lengthWays = 1024, 4
	// maxSent is the number of latest requests whose answers are recognized, in 1 MB. At 100
	// requests a second, these are the requests of 11 minutes.
	maxSent = 1 << 16
	// weight is the weight of the latest answer in a mean. The mean has the memory of about 16
	// answers.
	weight = 1.0 / 16
	// mostTokens is the longest answer that is learned from. Longer ones are errors.
	mostTokens = 1 << 24
)

// find returns the entry of a key; nil if there is none.
func (l *lengths) find(key uint64) *length {
	set := &l.sets[key%lengthSets]
	for i := range set {
		if set[i].key.Load() == key {
			return &set[i]
		}
	}
	return nil
}

// learn learns the number of output tokens of an answer. Key 0, and tokens below 0, teach nothing.
func (l *lengths) learn(key uint64, tokens float64) {
	if key == 0 || !(tokens >= 0 && tokens <= mostTokens) {
		return
	}
	if is := l.find(key); is != nil {
		mean := math.Float64frombits(is.mean.Load())
		is.mean.Store(math.Float64bits(mean + weight*(tokens-mean)))
		is.used.Store(true)
		return
	}
	set := &l.sets[key%lengthSets]
	free := 0
	for free < lengthWays && set[free].used.Load() {
		set[free].used.Store(false)
		free++
	}
	is := &set[free%lengthWays]
	is.key.Store(0) // so that nobody reads the mean of another key
	is.mean.Store(math.Float64bits(tokens))
	is.key.Store(key)
}

// expected implements Flow.Expected.
func (l *lengths) expected(key uint64, otherwise, limit float64) float64 {
	is := l.find(key)
	if key == 0 || is == nil {
		return otherwise
	}
	is.used.Store(true)
	mean := math.Float64frombits(is.mean.Load())
	if limit > 0 {
		return min(mean, limit)
	}
	return mean
}

// Sent records the key of a request under its number, so that [Flow.Answered] finds it. Numbers are
// above 0 and ascend. Sent is fast and allocates nothing, like the methods below.
func (f *Flow) Sent(number, key uint64) {
	s := &f.lengths.sent[number%maxSent]
	s.number.Store(0)
	s.key.Store(key)
	s.number.Store(number)
}

// Answered corrects the charge of a request by its number of output tokens, and learns from it.
// Tokens below 0 are unknown. It learns nothing from a request that is not among the latest.
func (f *Flow) Answered(number uint64, tokens float64) {
	f.outcome(number, tokens)
	s := &f.lengths.sent[number%maxSent]
	if s.number.Load() != number {
		return
	}
	if key := s.key.Load(); s.number.Load() == number {
		f.lengths.learn(key, tokens)
	}
}

// Expected returns the expected number of output tokens of a request: the mean of the latest
// answers with its key, or otherwise if there are none. Limit is the most tokens that the request
// allows; 0 means no limit.
func (f *Flow) Expected(key uint64, otherwise, limit float64) float64 {
	return f.lengths.expected(key, otherwise, limit)
}
