// Package fleet is "bench fleet": it rolls a whole fleet on, as fast as it can, and judges by what policy requests are sent to endpoints.
// There are no sockets and no clock. Requests come as a workload says; each is sent by a picker, which knows endpoints by looks, as
// extproc does; each endpoint is the step model of an engine.
//
// Equal arguments give equal results.
package fleet

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/des"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/sim"
)

// Fleet is what requests are sent to, and by whom.
type Fleet struct {
	// Profile is of each endpoint, whose times are divided by its speed: 1 for all where Speeds is nil.
	Profile   profile.Profile
	Endpoints int
	Speeds    []float64
	// Adapters that every endpoint answers to, beside its base model.
	Adapters []string
	// Pickers is how many there are; each request comes to one of them by chance.
	Pickers int
	// Clients is the number of clients in a closed loop: each sends a request, whatever its At, as soon as its previous one has ended. 0 means that
	// requests arrive when their At says.
	Clients int
	// Looks is the time from one look at an endpoint to the next, Tells from one time that pickers hear of each other's requests for adapters
	// to the next, and Backlogs the least time from one time that they tell what all of those ask of endpoints to the next, in seconds; 0 is
	// never.
	Looks, Tells, Backlogs float64
	// Given is what pickers are told of Profile, nil for nothing; nil itself means that they are told all of it.
	Assumed func(profile.Profile) *profile.Profile
	// Inexact is by up to what share the bytes of a prompt are more or fewer than its tokens let expect: extproc counts bytes.
	Inexact float64
	// Fault is what is wrong with what pickers see.
	Fault Fault
}

// Request is one that a client sends.
type Request struct {
	// At is when, in seconds.
	At float64
	// Adapter is empty for the base model.
	Adapter string
	// Prompt is token ids, Output how many tokens the answer has.
	Prompt []uint32
	Output int
	// Leaves is after how many seconds its client cancels it, unless the answer is complete by then; 0: never.
	Leaves float64
}

// Picker sends requests to endpoints, which are numbers from 0 on. Time is in seconds. A Picker that is a [Teller] hears of what others
// have sent.
type Picker interface {
	// Pick says where a request goes. It has been sent there when Pick returns.
	Pick(now float64, r *Request) (endpoint int)
	// Saw is told what a look at an endpoint found.
	Saw(now float64, endpoint int, load engine.Load)
	// Ended is told that a request has ended that went to an endpoint.
	Ended(now float64, r *Request, endpoint int)
}

// Policy makes a picker for a fleet, which has its chances from a seed.
type Policy func(f Fleet, seed uint64) (Picker, error)

// Teller is a Picker that tells others what it has in flight, and hears what others have.
type Teller interface {
	Tell() InFlight
	Hear(now float64, others []InFlight)
}

// Peer is a Picker that tells others what its requests still ask of each endpoint, and hears what the others' do, summed up.
type Peer interface {
	Backlogs(told []endpointstate.Backlog)
	HearPeers(now float64, told []endpointstate.Backlog)
}

// Streamer is a Picker that is told of first tokens, as who passes answers on sees them.
type Streamer interface {
	FirstToken(now float64, r *Request, endpoint int)
}

// Left is a Picker that distinguishes cancelled requests from completed ones.
type Left interface {
	Left(r *Request)
}

// Indexed is a Picker that can ask how many leading tokens of a prompt an endpoint has in its cache, as engines tell by events.
type Indexed interface {
	Index(cached func(endpoint int, r *Request) (tokens int))
}

// Learner is a Picker that learns how long endpoints take.
type Learner interface {
	// Trusts is how often what it learned became trusted, or was not any more.
	Trusts() int
}

// InFlight is how many requests for each adapter a picker has at each endpoint.
type InFlight map[At]int64

// At is an adapter at an endpoint.
type At struct {
	Endpoint int
	Adapter  string
}

// Result is what became of one request, in seconds.
type Result struct {
	At, FirstToken, LastToken float64
	Prompt, Output, Cached    int // tokens
	Endpoint                  int
	Left                      bool // its client cancelled it before the answer was complete
}

// Outcome is what became of all requests, in the order in which they came, and of endpoints.
type Outcome struct {
	Results []Result
	// SlotLoads is how often adapters were brought into slots, and Seconds how long all took.
	SlotLoads uint64
	Seconds   float64
	// Tokens that came out.
	Tokens int
	// Trusts is how often predictions became trusted or were not any more, for the picker for which that was most often.
	Trusts int
}

// run is a Fleet on the way.
type run struct {
	Fleet
	loop          des.Loop
	random        *rand.Rand
	endpoints     []endpoint
	pickers       []Picker
	peers         []peer // by picker; none where nobody tells
	results       []Result
	next          func() (Request, bool)
	left          int // requests that have not ended
	arriving      bool
	streams       bool // pickers are told of first tokens
	faultInjector faultInjector
}

type endpoint struct {
	*sim.Engine
	intake float64 // see profile.Profile
	awake  bool    // its next step is in the loop
	flying map[sim.ID]flight
}

type flight struct {
	number, picker int
	r              *Request
}

// Run has the requests of a workload, in order of time, sent by pickers of a policy.
func (f Fleet) Run(seed uint64, requests iter.Seq[Request], policy Policy) (Outcome, error) {
	r := &run{Fleet: f, random: rand.New(rand.NewPCG(seed, seed)), arriving: true} //nolint:gosec // no secret
	for i := range f.Endpoints {
		draws := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // no secret
		p := f.Profile
		if f.Speeds != nil {
			p = p.Times(1 / f.Speeds[i])
		}
		e, err := sim.New(p, draws.NormFloat64)
		if err != nil {
			return Outcome{}, err
		}
		r.endpoints = append(r.endpoints, endpoint{Engine: e, intake: p.Intake, flying: map[sim.ID]flight{}})
	}
	for range f.Pickers {
		p, err := policy(f, r.random.Uint64())
		if err != nil {
			return Outcome{}, err
		}
		if o, ok := p.(*oracle); ok {
			o.try = r.foresee
		}
		if i, ok := p.(Indexed); ok {
			i.Index(r.index())
		}
		_, r.streams = p.(Streamer)
		r.pickers = append(r.pickers, p)
	}
	r.faultInjector = newFaultInjector(f.Fault, seed, f.Endpoints)
	r.look()
	r.tell()
	next, stop := iter.Pull(requests)
	defer stop()
	r.next = next
	r.arrive()
	for r.arriving || r.left > 0 {
		if !r.loop.Step() {
			return Outcome{}, fmt.Errorf("nothing happens any more, and %d requests have not ended", r.left)
		}
	}
	return r.outcome(), nil
}

// index says what caches hold of a prompt, which is hashed once for all endpoints.
func (r *run) index() func(endpoint int, is *Request) (tokens int) {
	var latest *Request
	var prefix sim.Prefix
	return func(endpoint int, is *Request) int {
		if is != latest {
			latest, prefix = is, sim.PrefixOf(is.Adapter, is.Prompt)
		}
		return r.endpoints[endpoint].Cached(&prefix)
	}
}

// arrive schedules the next request, and after it the one behind. In a closed loop, it sends as many as clients wait for no answer.
func (r *run) arrive() {
	for r.Clients == 0 || r.left < r.Clients {
		is, ok := r.next()
		if r.arriving = ok; !ok {
			return
		}
		if r.Clients == 0 {
			r.loop.At(is.At, func() {
				r.send(&is)
				r.arrive()
			})
			return
		}
		is.At = r.loop.Now()
		r.send(&is)
	}
}

// ended counts a request as done.
func (r *run) ended() {
	if r.left--; r.Clients > 0 {
		r.loop.At(r.loop.Now(), r.arrive)
	}
}

// send has a picker send a request, which is in the engine's queue after its intake.
func (r *run) send(is *Request) {
	by := 0
	if len(r.pickers) > 1 {
		by = r.random.IntN(len(r.pickers))
	}
	to := r.pickers[by].Pick(r.loop.Now(), is)
	r.moved(by)
	number := len(r.results)
	r.results = append(r.results, Result{At: is.At, Prompt: len(is.Prompt), Output: is.Output, Endpoint: to})
	r.left++
	if is.Leaves > 0 {
		r.loop.At(is.At+is.Leaves, func() { r.leave(number, by, is) })
	}
	if intake := r.endpoints[to].intake; intake > 0 {
		r.loop.At(r.loop.Now()+intake, func() { r.submit(number, by, is) })
		return
	}
	r.submit(number, by, is)
}

// submit has the engine of a request have it, which a picker has sent.
func (r *run) submit(number, by int, is *Request) {
	to := r.results[number].Endpoint
	e := &r.endpoints[to]
	if r.results[number].Left {
		return
	}
	id, err := e.Submit(r.loop.Now(), sim.Request{Adapter: is.Adapter, Prompt: is.Prompt, Output: answer(is.Output)})
	if err != nil { // it can be served by nobody, and is told of as such
		r.results[number].FirstToken, r.results[number].LastToken = math.Inf(1), math.Inf(1)
		r.ended()
		r.pickers[by].Ended(r.loop.Now(), is, to)
		r.moved(by)
		return
	}
	is.Prompt = nil // the engine has it
	e.flying[id] = flight{number, by, is}
	r.wake(to)
}

// leave cancels a request that a picker has sent, unless its answer is complete.
func (r *run) leave(number, by int, is *Request) {
	to := &r.results[number]
	if to.LastToken > 0 {
		return
	}
	e := &r.endpoints[to.Endpoint]
	for id, of := range e.flying {
		if of.number == number {
			e.Cancel(id)
			delete(e.flying, id)
			break
		}
	}
	to.Left = true
	r.ended()
	if p, ok := r.pickers[by].(Left); ok {
		p.Left(is)
	} else {
		r.pickers[by].Ended(r.loop.Now(), is, to.Endpoint)
	}
	r.moved(by)
}

// wake has an endpoint's next step in the loop, if there is one.
func (r *run) wake(i int) {
	e := &r.endpoints[i]
	if e.awake {
		return
	}
	at, ok := e.Next()
	if !ok {
		return
	}
	e.awake = true
	r.loop.At(at, func() {
		e.awake = false
		for _, ev := range e.Advance(r.loop.Now()) {
			switch {
			case r.streams && ev.Kind == sim.Token && ev.Index == 0:
				of := e.flying[ev.ID]
				r.pickers[of.picker].(Streamer).FirstToken(r.loop.Now(), of.r, i)
			case ev.Kind == sim.Finished:
				of := e.flying[ev.ID]
				delete(e.flying, ev.ID)
				is := &r.results[of.number]
				is.FirstToken, is.LastToken, is.Cached = ev.Record.FirstToken, ev.Record.LastToken, ev.Record.Cached
				r.ended()
				r.pickers[of.picker].Ended(r.loop.Now(), of.r, i)
				r.moved(of.picker)
			}
		}
		r.wake(i)
	})
}

// look has every picker look at every endpoint, again and again, each at moments of its own.
func (r *run) look() {
	for _, p := range r.pickers {
		for i := range r.endpoints {
			p.Saw(0, i, r.load(i)) // of the start
			if r.Looks > 0 {
				r.loop.Every(r.random.Float64()*r.Looks, r.Looks, func() bool {
					p.Saw(r.loop.Now(), i, r.load(i))
					return r.arriving || r.left > 0
				})
			}
		}
	}
}

// load is what a look at an endpoint finds.
func (r *run) load(i int) engine.Load {
	e := &r.endpoints[i]
	c, limits := e.Counts(), &r.Profile.Limits
	timed := func(t sim.Timed) engine.Timed {
		return engine.Timed{Count: engine.Known(float64(t.Count)), Seconds: engine.Known(t.Seconds)}
	}
	return r.faultInjector.inject(i, engine.Load{
		Kind: engine.VLLM, Running: engine.Known(float64(c.Running)), Waiting: engine.Known(float64(c.Waiting)), KVUsage: engine.Known(c.KVUsage),
		KVTokens: engine.Known(float64(limits.KVBlocks * limits.BlockSize)), MaxAdapters: engine.Known(float64(limits.GPUAdapters)), Active: e.Active(nil),
		Totals: engine.Totals{
			Queue: timed(c.Queue), Prefill: timed(c.Prefill), Decode: timed(c.Decode), FirstToken: timed(c.FirstToken), InterToken: timed(c.InterToken),
			PromptTokens: engine.Known(float64(c.PromptTokens)), CachedTokens: engine.Known(float64(c.CachedTokens)),
			GeneratedTokens: engine.Known(float64(c.GeneratedTokens)), PrefillTokens: engine.Known(float64(c.PrefillTokens)), Steps: stepsOf(c.Steps),
		},
	})
}

func stepsOf(s sim.Steps) (is engine.Steps) {
	is.Count = engine.Known(float64(s.Count))
	for i, n := range s.UpTo {
		is.UpTo[i] = float64(n)
	}
	return is
}

// tell has pickers tell each other what they have in flight, again and again.
func (r *run) tell() {
	if r.Tells <= 0 || len(r.pickers) < 2 {
		return
	}
	r.loop.Every(r.Tells, r.Tells, func() bool {
		told := make([]InFlight, len(r.pickers))
		for i, p := range r.pickers {
			if t, ok := p.(Teller); ok {
				told[i] = t.Tell()
			}
		}
		for i, p := range r.pickers {
			if t, ok := p.(Teller); ok {
				t.Hear(r.loop.Now(), slices.Concat(told[:i], told[i+1:]))
			}
		}
		return r.arriving || r.left > 0
	})
}

// hop is how long what extproc and control tell each other is on its way, in seconds.
const hop = 0.001

// peer is what a picker tells of its requests, and hears of others'.
type peer struct {
	told         []endpointstate.Backlog // of each endpoint
	others       []int64                 // when all others' prompts are computed there, one after the other, as control knows
	tells, hears pace
}

// pace is that of something that is done again and again, in seconds.
type pace struct {
	due  bool
	last float64
}

// atMost does something now, or as soon as it was not done for an interval, with all that happens until then.
func (r *run) atMost(p *pace, interval float64, do func()) {
	if p.due {
		return
	}
	p.due = true
	r.loop.At(max(r.loop.Now(), p.last+interval), func() {
		p.due, p.last = false, r.loop.Now()
		do()
	})
}

// moved has a picker whose requests have changed tell others what they ask of endpoints, by way of control, which has a pace of its own for
// each.
func (r *run) moved(by int) {
	p, ok := r.pickers[by].(Peer)
	if !ok || r.Backlogs <= 0 || len(r.pickers) < 2 {
		return
	}
	if r.peers == nil {
		r.peers = make([]peer, len(r.pickers))
		for i := range r.peers {
			r.peers[i] = peer{told: make([]endpointstate.Backlog, len(r.endpoints)), others: make([]int64, len(r.endpoints)), tells: pace{last: -r.Backlogs}, hears: pace{last: -r.Backlogs}}
		}
	}
	r.atMost(&r.peers[by].tells, r.Backlogs, func() {
		now, was := at(r.loop.Now()).UnixNano(), slices.Clone(r.peers[by].told)
		p.Backlogs(r.peers[by].told)
		for e, is := range r.peers[by].told {
			for i := range r.peers {
				if more := is.Since(was[e].Through, now); i != by && more != 0 {
					r.peers[i].others[e] = max(r.peers[i].others[e], now) + more
				}
			}
		}
		r.loop.At(r.loop.Now()+hop, func() {
			for i := range r.peers {
				if i != by {
					r.atMost(&r.peers[i].hears, r.Backlogs, func() { r.hear(i) })
				}
			}
		})
	})
}

// hear has a picker hear what all others have told.
func (r *run) hear(is int) {
	all := make([]endpointstate.Backlog, len(r.endpoints))
	for e := range all {
		all[e].Through = r.peers[is].others[e]
		for by := range r.peers {
			if of := &r.peers[by].told[e]; by != is {
				all[e].Requests += of.Requests
				all[e].Beside += of.Beside
				all[e].Urgency += of.Urgency
				all[e].Tokens += of.Tokens
			}
		}
	}
	r.loop.At(r.loop.Now()+hop, func() { r.pickers[is].(Peer).HearPeers(r.loop.Now(), all) })
}

func (r *run) outcome() Outcome {
	o := Outcome{Results: r.results, Seconds: r.loop.Now()}
	for i := range r.endpoints {
		o.SlotLoads += r.endpoints[i].Counts().SlotLoads
	}
	for _, p := range r.pickers {
		if l, ok := p.(Learner); ok {
			o.Trusts = max(o.Trusts, l.Trusts())
		}
	}
	for _, is := range r.results {
		o.Tokens += is.Output
	}
	return o
}

// answer is the tokens of an answer. What they are matters to nobody.
func answer(n int) []uint32 {
	if n > len(answers) {
		return make([]uint32, n)
	}
	return answers[:n]
}

var answers = make([]uint32, 1<<16)
