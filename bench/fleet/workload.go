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

// Workload is what clients send, at a mean rate in requests a second: so many requests, in order of time.
type Workload struct {
	Name string
	// About says for people what it is.
	About string
	// Adapters that its requests name.
	Adapters []string
	// Profile is of the endpoints that it is for; nil means any.
	Profile *profile.Profile
	// Share of the requests that are to keep their objectives; 0 is that of [DefaultObjectives].
	Share    float64
	requests func(seed uint64, rate float64, n int) iter.Seq[Request]
}

// Requests returns n requests of a seed, at a rate in requests a second.
func (w Workload) Requests(seed uint64, rate float64, n int) iter.Seq[Request] {
	return w.requests(seed, rate, n)
}

// Lengths are what is drawn from for the tokens of prompts and answers, in pairs, each as likely as any other.
type Lengths []traffic.Length

// Conversation is lengths like those of people's conversations, where no trace is at hand.
func Conversation() Lengths {
	return traffic.Conversations(rand.New(rand.NewPCG(1, 1)), 4096) //nolint:gosec // the same each time
}

// Plain is requests for the base model, of which no two share a prefix.
func Plain(lengths Lengths) Workload {
	return Workload{
		Name: "plain", About: "requests for the base model that share nothing",
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			return poisson(seed, rate, n, func(random *rand.Rand, number int) Request {
				l := lengths[random.IntN(len(lengths))]
				return Request{Prompt: prompt(nil, uint32(number), l.Prompt), Output: l.Output}
			})
		},
	}
}

// Adapters is requests for adapters, some of which are wanted much more than others: the kth most wanted in proportion to 1/k (Zipf).
func Adapters(adapters int, lengths Lengths) Workload {
	w := Workload{Name: "adapters", About: fmt.Sprintf("requests for %d adapters, the kth most wanted in proportion to 1/k", adapters)}
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

// Prefixes is requests for the base model that begin with one of some system prompts, the kth most used in proportion to 1/k.
func Prefixes(prompts, tokens int, lengths Lengths) Workload {
	which := zipf(prompts)
	systems := make([][]uint32, prompts)
	for i := range systems {
		systems[i] = prompt(nil, uint32(1<<31+i), tokens)
	}
	return Workload{
		Name: "prefixes", About: fmt.Sprintf("requests that begin with one of %d system prompts of %d tokens, the kth most used in proportion to 1/k", prompts, tokens),
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

// Chat is sessions of 1 to 9 turns (uniform) that share one system prompt. The prompt of a turn is the previous prompt, its answer and a new
// message. The user reads the answer and then writes the next message, on average half a minute later.
func Chat(system int, messages Lengths) Workload {
	const reads, writes = 0.06, 20 // seconds to read each token of an answer, and mean seconds to write a message
	type session struct {
		at     float64 // of the next turn
		prompt []uint32
		left   int // turns
	}
	first := prompt(nil, 1<<31, system)
	return Workload{
		Name: "chat", About: fmt.Sprintf("sessions of 1 to %d turns after one system prompt of %d tokens", mostTurns, system),
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			return func(yield func(Request) bool) {
				random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // no secret
				perSession := rate * 2 / (mostTurns + 1)
				var open []session                       // the session with the next turn is the last
				next := random.ExpFloat64() / perSession // when the next session begins
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
						of.prompt = prompt(of.prompt, 0, l.Output) // as answer says
						of.at += reads*float64(l.Output) + writes*random.ExpFloat64()
						i, _ := slices.BinarySearchFunc(open, of, func(a, b session) int { return cmp.Compare(b.at, a.at) })
						open = slices.Insert(open, i, of)
					}
				}
			}
		},
	}
}

// messages returns the lengths with prompts cut to a third and the same answers: most of a prompt is earlier conversation, a message is the new
// part.
func (of Lengths) messages() Lengths {
	all := slices.Clone(of)
	for i := range all {
		all[i].Prompt = max(1, all[i].Prompt/3)
	}
	return all
}

// Bursts is requests as Plain's that arrive in bursts: the coefficient of variation of interarrival times is 4, that of Poisson arrivals is 1.
func Bursts(lengths Lengths) Workload {
	const vary = 4 // coefficient of variation; 1 for Poisson arrivals
	return Workload{
		Name: "bursts", About: fmt.Sprintf("requests for the base model that share nothing and come in bursts: the coefficient of variation of the times between them is %d", vary),
		requests: func(seed uint64, rate float64, n int) iter.Seq[Request] {
			gaps := distuv.Gamma{Alpha: 1. / (vary * vary), Beta: rate / (vary * vary), Src: rand.NewPCG(seed, 3)}
			return coming(seed, n, func(*rand.Rand) float64 { return gaps.Rand() }, func(random *rand.Rand, number int) Request {
				l := lengths[random.IntN(len(lengths))]
				return Request{Prompt: prompt(nil, uint32(number), l.Prompt), Output: l.Output}
			})
		},
	}
}

// Long returns Plain's requests, a tenth of them with prompts of 32,768 tokens, for the smaller model.
func Long(lengths Lengths) Workload {
	const tokens, share = 32768, 0.1
	return Workload{
		Name: "long", About: fmt.Sprintf("requests for the base model that share nothing, of which %g %% have prompts of %d tokens", 100*share, tokens), Profile: smallProfile(),
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

// Cancelled returns Plain's requests. Clients cancel three in ten, at a random time within an answer of 50 ms a token.
func Cancelled(lengths Lengths) Workload {
	const share, perToken = 0.3, 0.05
	return Workload{
		Name: "cancelled", About: fmt.Sprintf("requests for the base model that share nothing, of which the clients of %g %% leave before their answers end", 100*share),
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

// poisson has n requests come at times that know nothing of each other.
func poisson(seed uint64, rate float64, n int, next func(random *rand.Rand, number int) Request) iter.Seq[Request] {
	return coming(seed, n, func(random *rand.Rand) float64 { return random.ExpFloat64() / rate }, next)
}

// coming returns n requests, with gap seconds between one and the next.
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

// prompt is tokens after others: of a number, so that those of two numbers share nothing.
func prompt(after []uint32, number uint32, tokens int) []uint32 {
	all := make([]uint32, len(after), len(after)+tokens)
	copy(all, after)
	for range tokens {
		all = append(all, number)
	}
	return all
}

// zipf returns what draws one of n, the kth in proportion to 1/k.
func zipf(n int) func(*rand.Rand) int {
	sums := make([]float64, n)
	sum := 0.0
	for k := range sums {
		sum += 1 / float64(k+1)
		sums[k] = sum
	}
	return func(random *rand.Rand) int { return sort.SearchFloat64s(sums, random.Float64()*sum) }
}
