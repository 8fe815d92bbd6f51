package fleet

import (
	"iter"
	"math"
	"math/rand/v2"
)

// Stream generates the requests of one client of the base model.
type Stream struct {
	// Number differs among the streams of a run, and is below 4,000. Prompts of different streams
	// share no tokens, except System.
	Number uint32
	Client Client
	// Lengths are drawn for each request.
	Lengths Lengths
	// Systems are system prompts: each request starts with one of them, with Zipf popularity
	// (1/k). There may be none.
	Systems [][]uint32
	// PerToken, Returns and Picker are those of each request.
	PerToken float64
	Returns  bool
	Picker   int
}

// Systems returns n system prompts of a number of tokens.
func Systems(n, tokens int) [][]uint32 {
	all := make([][]uint32, n)
	for i := range all {
		all[i] = prompt(nil, uint32(1<<32-1-i), tokens) //nolint:gosec // few
	}
	return all
}

// Arrivals returns requests with Poisson arrivals in an interval, at a rate in requests per
// second. Times are in seconds.
func (s Stream) Arrivals(seed uint64, rate, from, until float64) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		random, draw := s.draws(seed)
		for n, at := uint32(0), from; ; n++ {
			if at += random.ExpFloat64() / rate; at >= until {
				return
			}
			r := draw(n)
			if r.At = at; !yield(r) {
				return
			}
		}
	}
}

// Endless returns requests for a closed loop.
func (s Stream) Endless(seed uint64) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		_, draw := s.draws(seed)
		for n := uint32(0); yield(draw(n)); n++ {
		}
	}
}

// perStream is the most requests of a stream.
const perStream = 1 << 20

// draws returns a function that returns the nth request.
func (s Stream) draws(seed uint64) (*rand.Rand, func(n uint32) Request) {
	random := rand.New(rand.NewPCG(seed, 4+uint64(s.Number))) //nolint:gosec // no secret
	var which func(*rand.Rand) int
	if len(s.Systems) > 0 {
		which = zipf(len(s.Systems))
	}
	return random, func(n uint32) Request {
		var system []uint32
		if which != nil {
			system = s.Systems[which(random)]
		}
		l := s.Lengths[random.IntN(len(s.Lengths))]
		return Request{
			Prompt: prompt(system, s.Number*perStream+n, l.Prompt), Output: l.Output,
			Client: s.Client, PerToken: s.PerToken, Returns: s.Returns, Picker: s.Picker,
		}
	}
}

// Merge returns the requests of several sequences in order of arrival.
func Merge(all ...iter.Seq[Request]) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		type source struct {
			r    Request
			next func() (Request, bool)
		}
		sources := make([]source, 0, len(all))
		for _, seq := range all {
			next, stop := iter.Pull(seq)
			defer stop()
			if r, ok := next(); ok {
				sources = append(sources, source{r, next})
			}
		}
		for {
			first, at := -1, math.Inf(1)
			for i := range sources {
				if sources[i].r.At < at {
					first, at = i, sources[i].r.At
				}
			}
			if first < 0 || !yield(sources[first].r) {
				return
			}
			r, ok := sources[first].next()
			if sources[first].r = r; !ok {
				sources[first].r.At = math.Inf(1)
			}
		}
	}
}

// Capacity returns how many requests of a stream the fleet completes per second while requests
// wait at every engine, without flow. It is the mean of two simulated minutes after three minutes:
// the requests of the first ones begin together, so that they end together.
func (f Fleet) Capacity(s Stream) (float64, error) {
	const from, until = 180, 300
	f.Closed = []Closed{{Clients: f.Endpoints * (f.Profile.Limits.MaxSequences + 64), Until: until, Requests: s.Endless(0)}}
	f.Ends = until
	o, err := f.Run(0, func(func(Request) bool) {}, NoFlow)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, r := range o.Results {
		if r.LastToken >= from && r.LastToken < until {
			n++
		}
	}
	return float64(n) / (until - from), nil
}
