package fleet

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// baseModel is the base model of every endpoint.
const baseModel = "base"

// Headgate is the policy of extproc with a rule: it uses extproc's own fleet state and pick.
func Headgate(rule pick.Rule) Policy {
	return func(f Fleet, seed uint64) (Picker, error) { return newHeadgate(rule, f, seed), nil }
}

func newHeadgate(rule pick.Rule, f Fleet, seed uint64) *headgate {
	h := &headgate{
		random: rand.New(rand.NewPCG(seed, 1)), policy: settings.Default().Policy, clock: f.Fault.clock, //nolint:gosec // no secret
		numbers: make(map[string]int), inFlight: make(map[*Request]sent), statsByAdapter: make(map[string]*endpointstate.RequestStats),
		inexact: f.TokenError,
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
	if f.ScrapeInterval > 0 {
		s.StaleAfter, s.LostAfter = max(s.StaleAfter, 5*seconds(f.ScrapeInterval)), max(s.LostAfter, 50*seconds(f.ScrapeInterval))
	}
	h.state = endpointstate.New(endpointstate.Config{Settings: s})
	world := objects.Build(objects.Endpoints(h.addresses))
	world.Pools[objects.EndpointsPool].Profile = &f.Profile
	if f.Assumed != nil {
		world.Pools[objects.EndpointsPool].Profile = f.Assumed(f.Profile)
	}
	h.state.SetWorld(world)
	for _, address := range h.addresses {
		h.state.ModelsListed(h.state.Scrape(address, at(0)), engine.Models{Base: []string{baseModel}, Adapters: f.Adapters})
	}
	return h
}

// headgate is the picker of one extproc.
type headgate struct {
	random         *rand.Rand
	clock          func(now float64) float64 // clock for scrapes and views; pending work uses a clock that never jumps
	trusts         int
	policy         pick.Policy
	addresses      []string
	numbers        map[string]int // endpoint number by address
	state          *endpointstate.State
	view           *endpointstate.View
	inFlight       map[*Request]sent
	turn           uint64
	statsByAdapter map[string]*endpointstate.RequestStats // by adapter; under the key every: of all requests
	inexact        float64                                // Fleet.TokenError
	reported       map[endpointstate.CopyKey]bool         // copies for which other pickers reported requests
	asStated       bool                                   // objectives are those of requests, and tenants have statistics of their own
	asked          pick.Request                           // the last request that found no room

	// prefixes tracks the cached prompts of endpoints; nil if the policy does not use it.
	prefixes *prefix.Index
	hasher   prefix.Hasher
	cached   []int32
}

// sent has what extproc knows of a request in flight.
type sent struct {
	endpointstate.Counts
	bytes, tokens int // size of the prompt
	output        int // expected output tokens
	at            float64
	first         float64 // time of the first token in seconds
	learns        bool    // latencies are learned from its first token
	pick.Estimate
}

// at converts a simulation time in seconds.
func at(now float64) time.Time { return time.Unix(1_000_000_000, 0).Add(seconds(now)) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (h *headgate) Pick(now float64, r *Request) int {
	to, _, err := h.try(now, r, pick.Gate{})
	if err != nil {
		panic(fmt.Sprintf("fleet: every endpoint answers to every model, and %v", err))
	}
	return to
}

// try picks an endpoint with room, as the gate defines it, and records the request as in flight
// there. If there is no room, it returns the time at which time alone makes room; +Inf if only an
// event can.
func (h *headgate) try(now float64, r *Request, gate pick.Gate) (endpoint int, opens float64, err error) {
	if h.view == nil || h.state.Changed() {
		h.view, _ = h.state.View(at(h.clock(now)))
		h.state.Seal()
		h.trusts += len(h.state.Times.TakeTrustChanges())
	}
	asked := pick.Request{Pool: objects.EndpointsPool.String(), Model: r.Adapter, Turn: h.turn, Random: h.random.Uint64(), Gate: gate}
	if r.Adapter == "" {
		asked.Model, asked.Base = baseModel, true
	}
	h.turn++
	is := sent{tokens: len(r.Prompt), at: now}
	if h.prefixes != nil {
		is.bytes = h.read(now, r, &asked)
		is.output = asked.Demand.Output
	}
	picks, err := pick.Pick(h.policy, h.view.Snapshot, asked, make([]pick.Decision, 1))
	if err != nil {
		h.asked, opens = asked, math.Inf(1)
		if at, ok := pick.Opens(h.policy, h.view.Snapshot, asked); ok && errors.Is(err, pick.ErrNoRoom) {
			opens = since(at)
		}
		return 0, opens, err
	}
	is.Counts, is.learns, is.Estimate = endpointstate.CountsOf(picks[0]), picks[0].ShowsOverhead(), picks[0].Estimate
	is.Begin(at(now))
	h.inFlight[r] = is
	if h.prefixes != nil {
		h.prefixes.Sent(picks[0].Endpoint.Number, h.hasher.Blocks())
	}
	return h.numbers[picks[0].Endpoint.Address], 0, nil
}

// since converts nanoseconds since 1970 to a simulation time.
func since(nanoseconds int64) float64 { return time.Unix(0, nanoseconds).Sub(at(0)).Seconds() }

// bytesPerToken is the mean number of bytes per prompt token.
const bytesPerToken = 4

// read fills in the demand of a request and its cached prefix on each endpoint, as extproc would.
// It returns the bytes of the prompt.
func (h *headgate) read(now float64, r *Request, asked *pick.Request) (bytes int) {
	for _, c := range h.state.TakeCaches() {
		c.ApplyTo(h.prefixes)
	}
	h.hasher.Begin(prefix.Scope{Adapter: r.Adapter}.Seed())
	for _, token := range r.Prompt {
		h.hasher.Token(token)
	}
	h.cached = endpointstate.Cached(h.prefixes, h.view.Snapshot.Pools[asked.Pool], asked, h.hasher.Blocks(), h.cached)
	dense := 1.0 // bytes per token of this prompt relative to the mean
	if h.inexact > 0 {
		dense += h.inexact * (2*h.random.Float64() - 1)
	}
	bytes = int(dense * bytesPerToken * float64(len(r.Prompt)))
	requestStats := h.requestStats(r)
	asked.Demand = pick.Demand{
		Prompt: int(float64(bytes) / requestStats.BytesPerToken()), Output: int(requestStats.Output()), Cached: h.cached,
		Block:      dense * bytesPerToken * prefix.BlockTokens / requestStats.BytesPerToken(),
		FirstToken: DefaultObjectives.Base, PerToken: DefaultObjectives.PerToken, Stated: true, Now: at(now).UnixNano(),
	}
	if h.asStated {
		asked.Demand.FirstToken, asked.Demand.PerToken, asked.Demand.Stated = 0, r.PerToken, r.PerToken > 0
	}
	return bytes
}

// statsKeys are the keys of the statistics to which a request belongs, the most specific first.
func (h *headgate) statsKeys(r *Request) [2]string {
	if h.asStated {
		return [2]string{r.Client.Route + "/" + r.Client.Tenant, every}
	}
	return [2]string{r.Adapter, every}
}

// requestStats returns the statistics of requests like r; if there are none, those of all requests.
func (h *headgate) requestStats(r *Request) *endpointstate.RequestStats {
	if of := h.statsByAdapter[h.statsKeys(r)[0]]; of != nil {
		return of
	}
	return h.statsByAdapter[every]
}

// every is the key for the statistics of all requests.
const every = "*"

// learn adds an ended request to the statistics of its model and of the pool, as extproc does.
func (h *headgate) learn(r *Request, of sent) {
	for _, which := range h.statsKeys(r) {
		if h.statsByAdapter[which] == nil {
			h.statsByAdapter[which] = new(endpointstate.RequestStats)
		}
		h.statsByAdapter[which].Learn(of.bytes, float64(of.tokens), float64(r.Output))
	}
}

func (h *headgate) Scraped(now float64, endpoint int, load engine.Load) {
	now = h.clock(now)
	h.state.ScrapeSucceeded(h.state.Scrape(h.addresses[endpoint], at(now)), load)
}

func (h *headgate) FirstToken(now float64, r *Request, _ int) {
	is := h.inFlight[r]
	is.first = now
	h.inFlight[r] = is
}

// Ended learns from a request when its stream ends, as extproc does, because the time of the first
// token is not known earlier.
func (h *headgate) Ended(now float64, r *Request, endpoint int) {
	is := h.inFlight[r]
	if took := is.first - is.at; is.Estimate != (pick.Estimate{}) {
		h.state.Times.FirstTokenPredicted(objects.EndpointsPool, h.addresses[endpoint], took/is.FirstToken())
		if is.learns {
			h.state.Times.AdapterLoaded(objects.EndpointsPool, h.addresses[endpoint], is.Adapter,
				took-(is.FirstToken()-is.FrontendOverhead-is.Load))
		}
	}
	h.learn(r, is)
	h.Left(now, r)
}

func (h *headgate) Left(now float64, r *Request) {
	of := h.inFlight[r]
	of.End(at(now))
	delete(h.inFlight, r)
}

// Trusts implements [Learner].
func (h *headgate) Trusts() int { return h.trusts }

func (h *headgate) Share() InFlight {
	all := make(InFlight)
	for k, of := range h.state.InFlight() {
		all[At{h.numbers[k.Endpoint], k.ID}] = of.Requests
	}
	return all
}

func (h *headgate) Receive(now float64, others []InFlight) {
	now = h.clock(now)
	n := endpointstate.PlacementUpdate{Others: make(map[endpointstate.CopyKey]int64)}
	for k := range h.reported {
		n.Others[k] = 0
	}
	h.reported = make(map[endpointstate.CopyKey]bool)
	for _, all := range others {
		for of, requests := range all {
			k := endpointstate.CopyKey{
				ModelKey: objects.ModelKey{Pool: objects.EndpointsPool, ID: of.Adapter},
				Endpoint: h.addresses[of.Endpoint],
			}
			n.Others[k] += requests
			h.reported[k] = true
		}
	}
	h.state.ApplyPlacement(n, at(now))
}

func (h *headgate) Backlogs(told []endpointstate.Backlog) {
	h.state.Backlogs(func(b endpointstate.Backlog) { told[h.numbers[b.Endpoint]] = b })
}

func (h *headgate) ReceivePeers(now float64, told []endpointstate.Backlog) {
	for i := range told {
		told[i].Endpoint = h.addresses[i]
	}
	h.state.SetPeers(told, at(now))
}
