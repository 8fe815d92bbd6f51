package fleet

import (
	"cmp"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sort"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/headgate/headgate/bench/traffic"
	"github.com/headgate/headgate/internal/profile"
)

// Workload generates the requests of clients.
type Workload struct {
	Name string
	// About describes the workload in the output.
	About string
	// Adapters are the adapters that requests of the workload name.
	Adapters []string
	// Profile is the profile that endpoints must have; nil if any will do.
	Profile *profile.Profile
	// Share is the share of requests that must meet their objectives; 0 for that of
	// [DefaultObjectives].
	Share    float64
	requests func(seed uint64, rate float64, n int) iter.Seq[Request]
}

// Requests returns n requests in order of arrival, with a mean rate in requests per second.
func (w Workload) Requests(seed uint64, rate float64, n int) iter.Seq[Request] {
	return w.requests(seed, rate, n)
}

// Lengths is a sample of pairs of prompt and output lengths. Each pair is equally likely.
type Lengths []traffic.Length

// Conversation returns lengths similar to those of human conversations, for use without a trace.
func Conversation() Lengths {
	return traffic.Conversations(rand.New(rand.NewPCG(1, 1)), 4096) //nolint:gosec // the same in each run
}

// Plain sends requests for the base model without shared prefixes.
func Plain(lengths Lengths) Workload {
	return Workload{
		Name: "plain", About: "requests for the base model without shared prefixes",
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			return poisson(seed, rate, n, func(random *rand.Rand, number int) Request {
				l := lengths[random.IntN(len(lengths))]
				return Request{Prompt: prompt(nil, uint32(number), l.Prompt), Output: l.Output}
			})
		},
	}
}

// Adapters sends requests for adapters. The popularity of the kth adapter is proportional to 1/k
// (Zipf).
func Adapters(adapters int, lengths Lengths) Workload {
	w := Workload{Name: "adapters", About: fmt.Sprintf("requests for %d adapters with Zipf popularity (1/k)", adapters)}
	for i := range adapters {
		w.Adapters = append(w.Adapters, fmt.Sprintf("a%d", i))
	}
	which := zipf(adapters)
	w.requests = func(seed uint64, rate float64, n int) iter.Seq[Request] {
		return poisson(seed, rate, n, func(random *rand.Rand, number int) Request {
			l := lengths[random.IntN(len(lengths))]
			return Request{Adapter: w.Adapters[which(random)], Prompt: prompt(nil, uint32(number), l.Prompt), Output: l.Output}
		})
	}
	return w
}

// Prefixes sends requests for the base model that start with one of several system prompts. The
// popularity of the kth system prompt is proportional to 1/k.
func Prefixes(prompts, tokens int, lengths Lengths) Workload {
	which := zipf(prompts)
	systems := make([][]uint32, prompts)
	for i := range systems {
		systems[i] = prompt(nil, uint32(1<<31+i), tokens)
	}
	return Workload{
		Name: "prefixes", About: fmt.Sprintf("requests that start with one of %d system prompts of %d tokens with Zipf popularity (1/k)",
			prompts, tokens),
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			return poisson(seed, rate, n, func(random *rand.Rand, number int) Request {
				l := lengths[random.IntN(len(lengths))]
				return Request{Prompt: prompt(systems[which(random)], uint32(number), l.Prompt), Output: l.Output}
			})
		},
	}
}

// mostTurns is the maximum number of turns in a session of Chat.
const mostTurns = 9

// Chat sends sessions of 1 to 9 turns (uniform) that share one system prompt. The prompt of a turn
// is the previous prompt, its output and a new message. The user reads the output before writing
// the next message. A message takes 20 s to write on average.
func Chat(system int, messages Lengths) Workload {
	const reads, writes = 0.06, 20 // seconds to read an output token, and mean seconds to write a message
	type session struct {
		at     float64 // time of the next turn
		prompt []uint32
		left   int // number of remaining turns
	}
	first := prompt(nil, 1<<31, system)
	return Workload{
		Name: "chat", About: fmt.Sprintf("sessions of 1 to %d turns with a common system prompt of %d tokens", mostTurns, system),
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			return func(yield func(Request) bool) {
				random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // no secret
				perSession := rate * 2 / (mostTurns + 1)
				var open []session                       // the session whose next turn is earliest is last
				next := random.ExpFloat64() / perSession // time at which the next session starts
				for number := range n {
					of := session{at: next, prompt: first, left: 1 + random.IntN(mostTurns)}
					if last := len(open) - 1; last >= 0 && open[last].at <= next {
						of, open = open[last], open[:last]
					} else {
						next += random.ExpFloat64() / perSession
					}
					l := messages[random.IntN(len(messages))]
					of.prompt = prompt(of.prompt, uint32(number)+1, l.Prompt) //nolint:gosec // few
					if !yield(Request{At: of.at, Prompt: of.prompt, Output: l.Output}) {
						return
					}
					if of.left--; of.left > 0 {
						of.prompt = prompt(of.prompt, 0, l.Output) // the same tokens that answer returns
						of.at += reads*float64(l.Output) + writes*random.ExpFloat64()
						i, _ := slices.BinarySearchFunc(open, of, func(a, b session) int { return cmp.Compare(b.at, a.at) })
						open = slices.Insert(open, i, of)
					}
				}
			}
		},
	}
}

// messages returns lengths with the same outputs and a third of each prompt: the new message. The
// rest of a prompt is the conversation before it.
func (of Lengths) messages() Lengths {
	all := slices.Clone(of)
	for i := range all {
		all[i].Prompt = max(1, all[i].Prompt/3)
	}
	return all
}

// Bursts sends requests like Plain, but in bursts: the coefficient of variation of interarrival
// times is 4. That of Poisson arrivals is 1.
func Bursts(lengths Lengths) Workload {
	const vary = 4 // coefficient of variation of interarrival times
	return Workload{
		Name:  "bursts",
		About: fmt.Sprintf("requests for the base model without shared prefixes, in bursts: the coefficient of variation of interarrival times is %d", vary),
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			gaps := distuv.Gamma{Alpha: 1. / (vary * vary), Beta: rate / (vary * vary), Src: rand.NewPCG(seed, 3)}
			return coming(seed, n, func(*rand.Rand) float64 { return gaps.Rand() }, func(random *rand.Rand, number int) Request {
				l := lengths[random.IntN(len(lengths))]
				return Request{Prompt: prompt(nil, uint32(number), l.Prompt), Output: l.Output}
			})
		},
	}
}

// Long sends requests like Plain to endpoints with the smaller model. A tenth of the prompts have
// 32,768 tokens.
func Long(lengths Lengths) Workload {
	const tokens, share = 32768, 0.1
	return Workload{
		Name: "long", About: fmt.Sprintf("requests for the base model without shared prefixes; %g %% have prompts of %d tokens", 100*share,
			tokens), Profile: smallProfile(),
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			return poisson(seed, rate, n, func(random *rand.Rand, number int) Request {
				l := lengths[random.IntN(len(lengths))]
				if random.Float64() < share {
					l.Prompt = tokens
				}
				return Request{Prompt: prompt(nil, uint32(number), l.Prompt), Output: l.Output}
			})
		},
	}
}

// Cancelled sends requests like Plain. Clients cancel three in ten of them, at a random time during
// the output if a token takes 50 ms.
func Cancelled(lengths Lengths) Workload {
	const share, perToken = 0.3, 0.05
	return Workload{
		Name: "cancelled", About: fmt.Sprintf("requests for the base model without shared prefixes; clients cancel %g %% of them",
			100*share),
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			return poisson(seed, rate, n, func(random *rand.Rand, number int) Request {
				l := lengths[random.IntN(len(lengths))]
				r := Request{Prompt: prompt(nil, uint32(number), l.Prompt), Output: l.Output}
				if random.Float64() < share {
					r.Leaves = random.Float64() * perToken * float64(l.Output)
				}
				return r
			})
		},
	}
}

// poisson returns n requests with Poisson arrivals.
func poisson(seed uint64, rate float64, n int, next func(random *rand.Rand, number int) Request) iter.Seq[Request] {
	return coming(seed, n, func(random *rand.Rand) float64 { return random.ExpFloat64() / rate }, next)
}

// coming returns n requests with random interarrival times in seconds.
func coming(seed uint64, n int, gap func(*rand.Rand) float64, next func(random *rand.Rand, number int) Request) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // no secret
		at := 0.0
		for number := range n {
			at += gap(random)
			r := next(random, number)
			if r.At = at; !yield(r) {
				return
			}
		}
	}
}

// prompt appends a number of tokens to after. Prompts with different numbers share no tokens.
func prompt(after []uint32, number uint32, tokens int) []uint32 {
	all := make([]uint32, len(after), len(after)+tokens)
	copy(all, after)
	for range tokens {
		all = append(all, number)
	}
	return all
}

// zipf returns a function that draws a number below n. The kth is drawn in proportion to 1/k.
func zipf(n int) func(*rand.Rand) int {
	sums := make([]float64, n)
	sum := 0.0
	for k := range sums {
		sum += 1 / float64(k+1)
		sums[k] = sum
	}
	return func(random *rand.Rand) int { return sort.SearchFloat64s(sums, random.Float64()*sum) }
}
