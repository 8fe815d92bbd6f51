package fleet

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/extproc/fleet/belief"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// baseModel is the base model of every endpoint.
const baseModel = "base"

// Headgate is extproc's own policy of a rule: the state of its fleet, and its pick.
func Headgate(rule pick.Rule) Policy {
	return func(f Fleet, seed uint64) (Picker, error) {
		h := &headgate{
			random: rand.New(rand.NewPCG(seed, 1)), policy: settings.Default().Policy, clock: f.Broken.clock, //nolint:gosec // no secret
			output: 200, numbers: make(map[string]int), flying: make(map[*Request]belief.Counts),
		}
		h.policy.Rule = rule
		if h.policy.Predicts() {
			h.prefixes = prefix.New(prefix.DefaultBytes)
		}
		for i := range f.Endpoints {
			h.addresses = append(h.addresses, fmt.Sprintf("127.1.%d.%d:8000", i/250, 1+i%250))
			h.numbers[h.addresses[i]] = i
		}
		s := settings.Default()
		if f.Looks > 0 {
			s.Stale, s.Lost = max(s.Stale, 5*seconds(f.Looks)), max(s.Lost, 50*seconds(f.Looks))
		}
		h.state = belief.New(belief.Config{Settings: s})
		world := objects.Build(objects.Endpoints(h.addresses))
		world.Pools[objects.EndpointsPool].Profile = &f.Profile
		if f.Given != nil {
			world.Pools[objects.EndpointsPool].Profile = f.Given(f.Profile)
		}
		h.state.SetWorld(world)
		for _, address := range h.addresses {
			h.state.Lists(h.state.Look(address, at(0)), engine.Models{Base: []string{baseModel}, Adapters: f.Adapters})
		}
		return h, nil
	}
}

// headgate is one extproc.
type headgate struct {
	random    *rand.Rand
	clock     func(now float64) float64
	trusts    int
	policy    pick.Policy
	addresses []string
	numbers   map[string]int // of addresses
	state     *belief.State
	view      *belief.View
	flying    map[*Request]belief.Counts
	turn      uint64
	output    float64                 // tokens of an answer, in the mean
	heard     map[belief.CopyKey]bool // of which others have told

	// What endpoints have of prompts, nil where the policy does not ask.
	prefixes *prefix.Index
	hasher   prefix.Hasher
	cached   []int32
	expected []int32 // the same with what others may have sent
}

// at is a moment of the simulation.
func at(now float64) time.Time { return time.Unix(1_000_000_000, 0).Add(seconds(now)) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (h *headgate) Pick(now float64, r *Request) int {
	now = h.clock(now)
	if h.view == nil || h.state.Changed() {
		h.view, _ = h.state.View(at(now))
		h.state.Seal()
		h.trusts += len(h.state.TakeLearned())
	}
	asked := pick.Request{Pool: objects.EndpointsPool.String(), Model: r.Adapter, Turn: h.turn, Random: h.random.Uint64()}
	if r.Adapter == "" {
		asked.Model, asked.Base = baseModel, true
	}
	h.turn++
	if h.prefixes != nil {
		h.read(now, r, &asked.Demand)
	}
	picks, err := pick.Pick(h.policy, h.view.Snapshot, asked, make([]pick.Decision, 1))
	if err != nil {
		panic(fmt.Sprintf("fleet: every endpoint answers to every model, and %v", err))
	}
	c := belief.CountsOf(picks[0])
	c.Begin(at(now))
	h.flying[r] = c
	if h.prefixes != nil {
		h.prefixes.Sent(picks[0].Endpoint.Number, h.hasher.Blocks())
	}
	return h.numbers[picks[0].Endpoint.Address]
}

// read has the policy know what a request asks of an engine, and how much of its prompt each has, as extproc would by its tokens.
func (h *headgate) read(now float64, r *Request, d *pick.Demand) {
	for _, c := range h.state.TakeCaches() {
		c.Tell(h.prefixes)
	}
	h.hasher.Begin(prefix.Scope{Adapter: r.Adapter}.Seed())
	for _, token := range r.Prompt {
		h.hasher.Token(token)
	}
	h.cached = h.prefixes.Cached(h.hasher.Blocks(), h.cached)
	hash, beginning := prefix.Beginning(h.hasher.Blocks())
	pool := h.view.Snapshot.Pools[objects.EndpointsPool.String()]
	h.expected = pool.Expect(hash, beginning, h.prefixes.Familiar(), append(h.expected[:0], h.cached...))
	*d = pick.Demand{
		Prompt: len(r.Prompt), Output: int(h.output), Cached: h.expected, Block: prefix.BlockTokens,
		FirstToken: DefaultObjectives.Base, PerToken: DefaultObjectives.PerToken, Stated: true, Now: at(now).UnixNano(),
	}
}

func (h *headgate) Saw(now float64, endpoint int, load engine.Load) {
	now = h.clock(now)
	h.state.Saw(h.state.Look(h.addresses[endpoint], at(now)), load)
}

func (h *headgate) Ended(_ float64, r *Request, _ int) {
	h.flying[r].End()
	h.output += 0.02 * (float64(r.Output) - h.output)
	delete(h.flying, r)
}

// Trusts is how often predictions became trusted, or were not any more.
func (h *headgate) Trusts() int { return h.trusts }

func (h *headgate) Tell() InFlight {
	all := make(InFlight)
	for k, of := range h.state.InFlight() {
		all[At{h.numbers[k.Endpoint], k.ID}] = of.Requests
	}
	return all
}

func (h *headgate) Hear(now float64, others []InFlight) {
	now = h.clock(now)
	n := belief.News{Others: make(map[belief.CopyKey]int64)}
	for k := range h.heard {
		n.Others[k] = 0
	}
	h.heard = make(map[belief.CopyKey]bool)
	for _, all := range others {
		for of, requests := range all {
			k := belief.CopyKey{ModelKey: objects.ModelKey{Pool: objects.EndpointsPool, ID: of.Adapter}, Endpoint: h.addresses[of.Endpoint]}
			n.Others[k] += requests
			h.heard[k] = true
		}
	}
	h.state.Hear(n, at(now))
}

func (h *headgate) Backlogs(told []belief.Backlog) {
	h.state.Backlogs(func(b belief.Backlog) { told[h.numbers[b.Endpoint]] = b })
}

func (h *headgate) HearPeers(told []belief.Backlog) {
	for i := range told {
		told[i].Endpoint = h.addresses[i]
	}
	h.state.HearPeers(told)
}
