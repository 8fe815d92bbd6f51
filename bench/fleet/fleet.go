// Package fleet is "bench fleet": it simulates a fleet of endpoints and compares policies that
// route requests to them. It uses neither sockets nor the real clock. A workload generates the
// requests, pickers choose endpoints from scraped state as extproc does, and each endpoint is the
// step model of an engine.
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

// Fleet configures the endpoints and pickers.
type Fleet struct {
	// Profile is the profile of each endpoint. Its times are divided by the speed of the endpoint.
	// Nil Speeds mean that every speed is 1.
	Profile   profile.Profile
	Endpoints int
	Speeds    []float64
	// Adapters are the adapters that each endpoint serves in addition to its base model.
	Adapters []string
	// Pickers is the number of pickers; each request goes to a random one.
	Pickers int
	// Clients is the number of clients in a closed loop: each sends a request as soon as its
	// previous one has ended, regardless of At. 0 means that requests arrive at their times At.
	Clients int
	// ScrapeInterval is the scrape interval of an endpoint. AdapterSync is the interval at which
	// pickers exchange their counts of requests for adapters. BacklogSync is the minimum interval
	// at which they share the pending work of all requests. All are in seconds; 0 means never.
	ScrapeInterval, AdapterSync, BacklogSync float64
	// Assumed returns the profile with which pickers start, from the true one; nil if they start
	// without a profile. If Assumed is nil, they start with Profile.
	Assumed func(profile.Profile) *profile.Profile
	// TokenError is the largest relative error of the token count that extproc estimates from the
	// bytes of a prompt.
	TokenError float64
	// Fault distorts what pickers see of endpoints.
	Fault Fault
	// Closed are clients in closed loops, in addition to the requests that Run gets.
	Closed []Closed
	// SampleInterval is the interval of Outcome.Samples in seconds; 0 means no samples.
	SampleInterval float64
	// Ends is the time at which Run returns even if requests have not ended, in seconds; 0 means
	// that it waits for them. Times of their tokens are then 0.
	Ends float64
}

// Request is a request of a client.
type Request struct {
	// At is the arrival time in seconds.
	At float64
	// Adapter is the adapter that the request names; empty for the base model.
	Adapter string
	// Prompt is the prompt as token ids. Output is the number of output tokens.
	Prompt []uint32
	Output int
	// Leaves is the number of seconds after At at which the client cancels the request if it has
	// not ended; 0 means never. A [Holder] supports only 0.
	Leaves float64
	// Client is who sends the request.
	Client Client
	// PerToken is the objective that the request's route states for the time per output token, in
	// seconds; 0 if it states none.
	PerToken float64
	// Returns reports that the client obeys Retry-After: it sends a refused request again.
	Returns bool
	// Picker is the number of the picker that gets the request, from 1; 0 for a random one.
	Picker int
}

// Picker chooses endpoints, which are numbered from 0. Times are in seconds. A Picker that is a
// [Syncer] also learns of the requests of other pickers.
type Picker interface {
	// Pick returns the endpoint for a request and records the request as in flight there.
	Pick(now float64, r *Request) (endpoint int)
	// Scraped handles the result of a scrape.
	Scraped(now float64, endpoint int, load engine.Load)
	// Ended handles the end of a request at an endpoint.
	Ended(now float64, r *Request, endpoint int)
}

// Policy creates a picker for a fleet with a random seed.
type Policy func(f Fleet, seed uint64) (Picker, error)

// Syncer is a Picker that exchanges counts of requests in flight with other pickers.
type Syncer interface {
	Share() InFlight
	Receive(now float64, others []InFlight)
}

// Peer is a Picker that shares its pending work with other pickers. Each receives the sum of all
// others by endpoint.
type Peer interface {
	Backlogs(sent []endpointstate.Backlog)
	ReceivePeers(now float64, sent []endpointstate.Backlog)
}

// Streamer is a Picker that is notified of the first token of each output, as a proxy sees it.
type Streamer interface {
	FirstToken(now float64, r *Request, endpoint int)
}

// Left is a Picker that distinguishes cancelled from completed requests.
type Left interface {
	Left(now float64, r *Request)
}

// Indexed is a Picker that knows exactly how many leading tokens of a prompt each endpoint has
// cached, as if it received KV cache events.
type Indexed interface {
	Index(cached func(endpoint int, r *Request) (tokens int))
}

// Learner is a Picker that learns the latencies of endpoints.
type Learner interface {
	// Trusts returns how often predictions became trusted or lost trust.
	Trusts() int
}

// InFlight is the number of a picker's requests in flight for each adapter at each endpoint.
type InFlight map[At]int64

// At identifies an adapter at an endpoint.
type At struct {
	Endpoint int
	Adapter  string
}

// Result describes one request. Times are in seconds.
type Result struct {
	At, FirstToken, LastToken float64
	Prompt, Output, Cached    int // numbers of tokens
	Endpoint                  int
	Left                      bool // the client cancelled before the output was complete
	Client                    Client
	Sent                      float64 // when a picker sent the request to the endpoint
	Held                      float64 // when a picker last began to hold the request
	Refusals                  int     // how often a picker refused the request
	Refused                   bool    // the request was refused and did not return
}

// Outcome has the results of all requests in order of arrival, and totals of the endpoints.
type Outcome struct {
	Results []Result
	// SlotLoads is the number of times that an adapter was loaded into a slot. Seconds is the
	// duration of the simulation.
	SlotLoads uint64
	Seconds   float64
	// Tokens is the number of output tokens.
	Tokens int
	// Trusts is the number of trust changes of the picker with the most.
	Trusts int
	// Inversions is the number of requests that were sent to an endpoint while a request of a
	// higher band was held.
	Inversions int
	// Unused is the longest time for which an endpoint had room, belonged to another picker, and
	// got no request while a picker held one, in seconds.
	Unused float64
	// Samples are in order of time.
	Samples []Sample
}

// run is a simulation in progress.
type run struct {
	Fleet
	loop          des.Loop
	random        *rand.Rand
	endpoints     []endpoint
	pickers       []Picker
	peers         []peer // by picker; empty if pickers do not share pending work
	results       []Result
	next          func() (Request, bool)
	left          int // number of requests that have not ended
	arriving      bool
	streams       bool // pickers are notified of first tokens
	faultInjector faultInjector
	holding       holding
	meter         meter
	exchange      exchange
}

type endpoint struct {
	*sim.Engine
	frontendOverhead float64 // seconds, as in the profile
	awake            bool    // the next step of the engine is scheduled
	inFlight         map[sim.ID]flight
}

type flight struct {
	number, picker int
	r              *Request
}

// Run simulates requests, in order of arrival, with pickers of a policy.
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
		r.endpoints = append(r.endpoints, endpoint{Engine: e, frontendOverhead: p.FrontendOverhead, inFlight: map[sim.ID]flight{}})
	}
	for range f.Pickers {
		p, err := policy(f, r.random.Uint64())
		if err != nil {
			return Outcome{}, err
		}
		if o, ok := p.(*oracle); ok {
			o.try = r.predict
		}
		if i, ok := p.(Indexed); ok {
			i.Index(r.index())
		}
		_, r.streams = p.(Streamer)
		_, r.meter.tells = p.(Tokener)
		r.pickers = append(r.pickers, p)
	}
	r.faultInjector = newFaultInjector(f.Fault, seed, f.Endpoints)
	r.scrape()
	r.sync()
	next, stop := iter.Pull(requests)
	defer stop()
	r.next = next
	r.hold()
	r.startClosed()
	r.exchangeTurns()
	r.sample()
	r.arrive()
	for (r.arriving || r.left > 0) && (r.Ends == 0 || r.loop.Now() < r.Ends) {
		if !r.loop.Step() {
			return Outcome{}, fmt.Errorf("nothing happens any more, and %d requests have not ended", r.left)
		}
	}
	return r.outcome(), nil
}

// index returns a function that returns the tokens of a prompt that an endpoint has cached. It
// hashes each prompt only once for all endpoints.
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

// arrive schedules the next arrival. In a closed loop it sends a request for each idle client
// instead.
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

// ended records that a request has ended. In a closed loop its client then sends the next one.
func (r *run) ended(number int) {
	r.closedEnded(number)
	if r.left--; r.Clients > 0 {
		r.loop.At(r.loop.Now(), r.arrive)
	}
}

// send lets a picker choose the endpoint of a request. The request reaches the queue of the engine
// after the frontend overhead.
func (r *run) send(is *Request) {
	number := len(r.results)
	r.results = append(r.results, Result{At: is.At, Prompt: len(is.Prompt), Output: is.Output, Client: is.Client})
	r.left++
	by := r.picker(is)
	if _, ok := r.pickers[by].(Holder); ok {
		r.join(number, by, is)
		return
	}
	to := r.pickers[by].Pick(r.loop.Now(), is)
	r.moved(by)
	if is.Leaves > 0 {
		r.loop.At(is.At+is.Leaves, func() { r.leave(number, by, is) })
	}
	r.forward(number, by, to, is)
}

// picker returns the picker of a request.
func (r *run) picker(is *Request) int {
	switch {
	case len(r.pickers) == 1:
		return 0
	case is.Picker > 0:
		return is.Picker - 1
	}
	return r.random.IntN(len(r.pickers))
}

// forward sends a request to an endpoint.
func (r *run) forward(number, by, to int, is *Request) {
	r.results[number].Endpoint, r.results[number].Sent = to, r.loop.Now()
	if r.exchange.sent != nil {
		r.exchange.sent[to] = r.loop.Now()
	}
	if frontendOverhead := r.endpoints[to].frontendOverhead; frontendOverhead > 0 {
		r.loop.At(r.loop.Now()+frontendOverhead, func() { r.submit(number, by, is) })
		return
	}
	r.submit(number, by, is)
}

// submit adds a request to the queue of its engine.
func (r *run) submit(number, by int, is *Request) {
	to := r.results[number].Endpoint
	e := &r.endpoints[to]
	if r.results[number].Left {
		return
	}
	id, err := e.Submit(r.loop.Now(), sim.Request{Adapter: is.Adapter, Prompt: is.Prompt, Output: answer(is.Output)})
	if err != nil { // no engine can serve the request: report the error
		r.results[number].FirstToken, r.results[number].LastToken = math.Inf(1), math.Inf(1)
		r.ended(number)
		r.pickers[by].Ended(r.loop.Now(), is, to)
		r.moved(by)
		r.pump(by)
		return
	}
	is.Prompt = nil // frees memory: the engine has its own copy
	e.inFlight[id] = flight{number, by, is}
	r.wake(to)
}

// leave cancels a request because its client disconnects, unless the request has ended.
func (r *run) leave(number, by int, is *Request) {
	to := &r.results[number]
	if to.LastToken > 0 {
		return
	}
	e := &r.endpoints[to.Endpoint]
	for id, of := range e.inFlight {
		if of.number == number {
			e.Cancel(id)
			delete(e.inFlight, id)
			break
		}
	}
	to.Left = true
	r.ended(number)
	if p, ok := r.pickers[by].(Left); ok {
		p.Left(r.loop.Now(), is)
	} else {
		r.pickers[by].Ended(r.loop.Now(), is, to.Endpoint)
	}
	r.moved(by)
}

// wake schedules the next step of an endpoint, if there is one.
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
		var ended []int // pickers of the requests that ended
		for _, ev := range e.Advance(r.loop.Now()) {
			switch {
			case ev.Kind == sim.Scheduled:
				if of, ok := e.inFlight[ev.ID]; ok {
					r.results[of.number].Cached = ev.Record.Cached
				}
			case ev.Kind == sim.Token && r.meter.on():
				r.metered(i, ev)
			}
			switch {
			case r.streams && ev.Kind == sim.Token && ev.Index == 0:
				of := e.inFlight[ev.ID]
				r.pickers[of.picker].(Streamer).FirstToken(r.loop.Now(), of.r, i)
			case ev.Kind == sim.Finished:
				of := e.inFlight[ev.ID]
				delete(e.inFlight, ev.ID)
				is := &r.results[of.number]
				is.FirstToken, is.LastToken, is.Cached = ev.Record.FirstToken, ev.Record.LastToken, ev.Record.Cached
				r.ended(of.number)
				r.pickers[of.picker].Ended(r.loop.Now(), of.r, i)
				r.moved(of.picker)
				ended = append(ended, of.picker)
			}
		}
		r.wake(i)
		for _, by := range ended {
			r.pump(by)
		}
	})
}

// scrape schedules the scrapes of each endpoint by each picker, at random offsets.
func (r *run) scrape() {
	for by, p := range r.pickers {
		for i := range r.endpoints {
			p.Scraped(0, i, r.load(i)) // first scrape, at time 0
			if r.ScrapeInterval > 0 {
				r.loop.Every(r.random.Float64()*r.ScrapeInterval, r.ScrapeInterval, func() bool {
					p.Scraped(r.loop.Now(), i, r.load(i))
					r.pump(by)
					return r.arriving || r.left > 0
				})
			}
		}
	}
}

// load returns what a scrape of endpoint i reports now.
func (r *run) load(i int) engine.Load {
	e := &r.endpoints[i]
	c, limits := e.Counts(), &r.Profile.Limits
	timed := func(t sim.Timed) engine.Timed {
		return engine.Timed{Count: engine.Known(float64(t.Count)), Seconds: engine.Known(t.Seconds)}
	}
	return r.faultInjector.inject(i, engine.Load{
		Kind: engine.VLLM, Running: engine.Known(float64(c.Running)), Waiting: engine.Known(float64(c.Waiting)),
		KVUsage:  engine.Known(c.KVUsage),
		KVTokens: engine.Known(float64(limits.KVBlocks * limits.BlockSize)), MaxAdapters: engine.Known(float64(limits.GPUAdapters)),
		Active: e.Active(nil),
		Totals: engine.Totals{
			Queue: timed(c.Queue), Prefill: timed(c.Prefill), Decode: timed(c.Decode), FirstToken: timed(c.FirstToken),
			InterToken:   timed(c.InterToken),
			PromptTokens: engine.Known(float64(c.PromptTokens)), CachedTokens: engine.Known(float64(c.CachedTokens)),
			GeneratedTokens: engine.Known(float64(c.GeneratedTokens)), PrefillTokens: engine.Known(float64(c.PrefillTokens)),
			Steps: stepsOf(c.Steps),
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

// sync schedules the exchange of counts of requests in flight among pickers.
func (r *run) sync() {
	if r.AdapterSync <= 0 || len(r.pickers) < 2 {
		return
	}
	r.loop.Every(r.AdapterSync, r.AdapterSync, func() bool {
		sent := make([]InFlight, len(r.pickers))
		for i, p := range r.pickers {
			if t, ok := p.(Syncer); ok {
				sent[i] = t.Share()
			}
		}
		for i, p := range r.pickers {
			if t, ok := p.(Syncer); ok {
				t.Receive(r.loop.Now(), slices.Concat(sent[:i], sent[i+1:]))
				r.pump(i)
			}
		}
		return r.arriving || r.left > 0
	})
}

// messageLatency is the latency of a message between extproc and control, in seconds.
const messageLatency = 0.001

// peer is the state of a picker in the exchange of pending work.
type peer struct {
	sent            []endpointstate.Backlog // the picker's own pending work by endpoint, as last sent
	others          []int64                 // by endpoint: when all prompts of other pickers are computed, as control knows it
	sends, receives throttle
}

// throttle limits the rate of a repeated action, in seconds.
type throttle struct {
	due  bool
	last float64
}

// atMost calls do now, or as soon as an interval has passed since the last call. Until then,
// further calls of atMost have no effect.
func (r *run) atMost(p *throttle, interval float64, do func()) {
	if p.due {
		return
	}
	p.due = true
	r.loop.At(max(r.loop.Now(), p.last+interval), func() {
		p.due, p.last = false, r.loop.Now()
		do()
	})
}

// moved sends the pending work of a picker to control, which sends it to every other picker.
// BacklogSync limits the rate of both.
func (r *run) moved(by int) {
	p, ok := r.pickers[by].(Peer)
	if !ok || r.BacklogSync <= 0 || len(r.pickers) < 2 {
		return
	}
	if r.peers == nil {
		r.peers = make([]peer, len(r.pickers))
		for i := range r.peers {
			r.peers[i] = peer{
				sent: make([]endpointstate.Backlog, len(r.endpoints)), others: make([]int64, len(r.endpoints)),
				sends: throttle{last: -r.BacklogSync}, receives: throttle{last: -r.BacklogSync},
			}
		}
	}
	r.atMost(&r.peers[by].sends, r.BacklogSync, func() {
		now, was := at(r.loop.Now()).UnixNano(), slices.Clone(r.peers[by].sent)
		p.Backlogs(r.peers[by].sent)
		for e, is := range r.peers[by].sent {
			for i := range r.peers {
				if more := is.Since(was[e].Through, now); i != by && more != 0 {
					r.peers[i].others[e] = max(r.peers[i].others[e], now) + more
				}
			}
		}
		r.loop.At(r.loop.Now()+messageLatency, func() {
			for i := range r.peers {
				if i != by {
					r.atMost(&r.peers[i].receives, r.BacklogSync, func() { r.receive(i) })
				}
			}
		})
	})
}

// receive delivers to a picker the sum of the pending work of all other pickers.
func (r *run) receive(is int) {
	all := make([]endpointstate.Backlog, len(r.endpoints))
	for e := range all {
		all[e].Through = r.peers[is].others[e]
		for by := range r.peers {
			if of := &r.peers[by].sent[e]; by != is {
				all[e].Requests += of.Requests
				all[e].Beside += of.Beside
				all[e].Urgency += of.Urgency
				all[e].Tokens += of.Tokens
			}
		}
	}
	r.loop.At(r.loop.Now()+messageLatency, func() {
		r.pickers[is].(Peer).ReceivePeers(r.loop.Now(), all)
		r.pump(is)
	})
}

func (r *run) outcome() Outcome {
	o := Outcome{
		Results: r.results, Seconds: r.loop.Now(), Inversions: r.holding.inversions, Samples: r.meter.samples, Unused: r.exchange.unused,
	}
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

// answer returns output tokens, whose values do not matter.
func answer(n int) []uint32 {
	if n > len(answers) {
		return make([]uint32, n)
	}
	return answers[:n]
}

var answers = make([]uint32, 1<<16)
