// Package place rolls a fleet of endpoints on in simulated time, which load models and unload them, and judges policies of placement by
// how often requests find their model loaded. Equal seeds give equal figures.
package place

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/headgate/headgate/bench/traffic"
	"github.com/headgate/headgate/internal/des"
	"github.com/headgate/headgate/internal/profile"
)

// World is what is simulated. Times are in seconds.
type World struct {
	Endpoints, Models int
	// Share is the capacity of all endpoints by the bytes of all models.
	Share float64
	// Zipf is the exponent of popularity, Rate the requests a second of all models.
	Zipf, Rate float64
	// SizeSigma and LoadSigma are the deviations of the logarithms of sizes and of load times; 0 has them all equal.
	SizeSigma, LoadSigma float64
	// Load is the median time that a load takes, AtOnce how many an endpoint does at once, Service the time of a request at a copy.
	Load    float64
	AtOnce  int
	Service float64
	// Warmup is simulated first and not measured, Measured is.
	Warmup, Measured float64
	// Warm has the models of the highest rate loaded at the start, as many as have room.
	Warm bool
	// Drift is the time in which popularity goes round all models, 0 for never; Flash the share of requests for one cold model from
	// half of the measured time on; Noise how far a model's rate is off from minute to minute, as a share.
	Drift, Flash, Noise float64
	// Hot is the share of requests for the model of the first rank, 0 for what Zipf says.
	Hot float64
	// Engine is of each endpoint, where requests run by the step model of an engine; nil where each takes Service.
	Engine *profile.Profile
	// Clients has a client be each model, in turn; nil for Zipf.
	Clients []client
	// Join and Leave are when an endpoint comes and when one goes, after the warm-up; 0 for never.
	Join, Leave float64
}

// Policy decides which models are loaded where. A policy is told what happens, and calls the methods of its Fleet.
type Policy interface {
	// Start is called before the first request. Copies that are there already are loaded.
	Start(f *Fleet)
	// Request says that one came for a model. Where no copy is loaded, is loading or is queued, missing is true, and it is for the policy
	// to have it loaded, now or later.
	Request(model int, missing bool)
	// Ready says that a copy has been loaded; Gone that one has left its endpoint, which has room for more.
	Ready(c *Copy)
	Gone(c *Copy)
	// Joined and Left say that an endpoint came, or went with all its copies.
	Joined(endpoint int)
	Left(endpoint int)
}

// State is how far a copy has come.
type State uint8

// A copy waits for its turn or for room, loads, is loaded, and then may leave as soon as its requests have ended.
const (
	Queued State = iota
	Loading
	Loaded
	Leaving
	Gone
)

// Copy is a model at an endpoint.
type Copy struct {
	Model, Endpoint, InFlight int
	State                     State

	last int // number of the request that it served last, from 1
}

// Node is an endpoint.
type Node struct {
	// Up is false of one that went, or is yet to come.
	Up bool
	// Copies are those that have not left, in no order.
	Copies []*Copy
	// Held is the bytes of what loads, is loaded or leaves; Promised those of what is queued, loads or is loaded.
	Held, Promised int64

	loading int
	queue   []*Copy
	served  int
	flying  int // requests
}

// Fleet is a World on the way.
type Fleet struct {
	World
	// Size is that of each model, in bytes; Capacity that of each endpoint.
	Size     []int64
	Capacity int64
	// Nodes are the endpoints, Copies those of each model that are not leaving.
	Nodes  []Node
	Copies [][]*Copy
	// Requests are all that come, in order of time.
	Requests []Request
	// Number is that of the request that came last.
	Number int
	// Served is the copy that serves that request, nil where it waits.
	Served *Copy
	// Random is the policy's.
	Random *rand.Rand

	loop     des.Loop
	policy   Policy
	crowd    crowd // where clients are models
	loadTime []float64
	// flown, where a policy has set it, is told that a copy has more or fewer requests.
	flown   func(c *Copy)
	waiting [][]int32 // requests by model
	waits   []float32
	asked   []float64 // when each model was asked for last
	ages    int64     // of models whose last copy left in the measured time: how long before they were asked for last, all together, in ns
	gone    int       // how many those are
	passing []bool
	loads   int
	scaled  []int // loads in the time before each scale event, and after it
	stood   []int // copies that were loaded before each
	// joined is the requests of the endpoint that joined, and of all, five minutes after it did, and ten.
	joined [2][2]int

	// Where endpoints are engines: these, and by request its length and how long its first token took, 0 where it is not out.
	engines []engine
	lengths []traffic.Length
	first   []float32
}

// Request is one for a model, at a time.
type Request struct {
	At    float64
	Model int32
}

// Now is the time of what is being done.
func (f *Fleet) Now() float64 { return f.loop.Now() }

// meanSize is the mean of sizes in bytes.
const meanSize = 1 << 30

// scaling is the time before and after a scale event in which loads are counted.
const scaling = 300

// newFleet makes a World of a seed.
func newFleet(w World, seed uint64) (*Fleet, error) {
	switch {
	case w.Endpoints < 1 || w.Models < 1 || w.AtOnce < 1:
		return nil, errors.New("there is at least one endpoint, one model, and one load at once")
	case w.Share <= 0 || w.Rate <= 0 || w.Measured <= 0:
		return nil, errors.New("capacity, rate and measured time are above 0")
	}
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // no secret
	n := w.Endpoints
	if w.Join > 0 {
		n++
	}
	f := &Fleet{
		World: w, Size: make([]int64, w.Models), Nodes: make([]Node, n), Copies: make([][]*Copy, w.Models),
		Random:  rand.New(rand.NewPCG(seed, 2)), //nolint:gosec // no secret
		waiting: make([][]int32, w.Models), passing: make([]bool, w.Models), asked: make([]float64, w.Models), loadTime: make([]float64, w.Models),
	}
	var total, largest int64
	for i := range f.Size {
		f.Size[i] = int64(meanSize * math.Exp(w.SizeSigma*random.NormFloat64()-w.SizeSigma*w.SizeSigma/2))
		f.loadTime[i] = w.Load * math.Exp(w.LoadSigma*random.NormFloat64())
		total += f.Size[i]
		largest = max(largest, f.Size[i])
	}
	f.Capacity = int64(w.Share * float64(total) / float64(w.Endpoints))
	if f.Capacity < largest {
		return nil, fmt.Errorf("an endpoint has %d bytes, and the largest model %d: have fewer endpoints or more models", f.Capacity, largest)
	}
	for i := range w.Endpoints {
		f.Nodes[i].Up = true
	}
	if w.Clients != nil {
		f.crowd = w.crowd(seed)
	}
	f.Requests = requests(w, seed)
	f.waits = make([]float32, len(f.Requests))
	if w.Engine != nil {
		return f, f.setEngines(seed)
	}
	return f, nil
}

// Room is the bytes of an endpoint that nothing is promised.
func (f *Fleet) Room(endpoint int) int64 { return f.Capacity - f.Nodes[endpoint].Promised }

// At returns the copy of a model at an endpoint that is not leaving, nil if there is none.
func (f *Fleet) At(model, endpoint int) *Copy {
	for _, c := range f.Copies[model] {
		if c.Endpoint == endpoint {
			return c
		}
	}
	return nil
}

// Load has a model loaded at an endpoint, when it is its turn and there is room.
func (f *Fleet) Load(model, endpoint int) *Copy {
	c := f.add(model, endpoint, Queued)
	n := &f.Nodes[endpoint]
	n.queue = append(n.queue, c)
	f.begin(endpoint)
	return c
}

func (f *Fleet) add(model, endpoint int, state State) *Copy {
	c := &Copy{Model: model, Endpoint: endpoint, State: state}
	n := &f.Nodes[endpoint]
	n.Copies = append(n.Copies, c)
	n.Promised += f.Size[model]
	f.Copies[model] = append(f.Copies[model], c)
	return c
}

// begin has an endpoint load what waits, in order.
func (f *Fleet) begin(endpoint int) {
	n := &f.Nodes[endpoint]
	for len(n.queue) > 0 && n.loading < f.AtOnce && n.Held+f.Size[n.queue[0].Model] <= f.Capacity {
		c := n.queue[0]
		n.queue = n.queue[1:]
		n.loading++
		n.Held += f.Size[c.Model]
		c.State = Loading
		f.loads++
		f.loop.At(f.Now()+f.loadTime[c.Model], func() { f.loaded(c) })
	}
}

func (f *Fleet) loaded(c *Copy) {
	if c.State == Gone { // its endpoint went
		return
	}
	f.Nodes[c.Endpoint].loading--
	c.State = Loaded
	for _, number := range f.waiting[c.Model] {
		f.waits[number] = float32(f.Now() - f.Requests[number].At)
		f.serve(int(number), c)
	}
	f.waiting[c.Model] = f.waiting[c.Model][:0]
	f.begin(c.Endpoint)
	f.policy.Ready(c)
}

// served is how many requests all endpoints got.
func (f *Fleet) served() (all int) {
	for i := range f.Nodes {
		all += f.Nodes[i].served
	}
	return all
}

// serve has a copy serve a request.
func (f *Fleet) serve(number int, c *Copy) {
	f.Nodes[c.Endpoint].served++
	f.flies(c, 1)
	if f.Engine != nil {
		f.submit(number, c)
		return
	}
	f.loop.At(f.Now()+f.Service, func() { f.ended(c) })
}

// ended has a request end at a copy.
func (f *Fleet) ended(c *Copy) {
	if f.flies(c, -1); c.State == Leaving && c.InFlight == 0 {
		f.left(c)
	}
}

// flies counts a request that comes to a copy or ends there.
func (f *Fleet) flies(c *Copy, more int) {
	f.Nodes[c.Endpoint].flying += more
	if c.InFlight += more; f.flown != nil {
		f.flown(c)
	}
}

// Unload has a loaded copy leave as soon as its requests have ended: at once if it has none.
func (f *Fleet) Unload(c *Copy) {
	if c.State != Loaded {
		panic("what is unloaded is loaded")
	}
	c.State = Leaving
	f.Nodes[c.Endpoint].Promised -= f.Size[c.Model]
	f.Copies[c.Model] = without(f.Copies[c.Model], c)
	if f.Now() >= f.Warmup && len(f.Copies[c.Model]) == 0 {
		f.ages += int64((f.Now() - f.asked[c.Model]) * 1e9) // whole numbers, for several may leave at once in any order
		f.gone++
	}
	if c.InFlight == 0 {
		f.left(c)
	}
}

// Drop takes a queued copy back.
func (f *Fleet) Drop(c *Copy) {
	if c.State != Queued {
		panic("what is dropped is queued")
	}
	c.State = Gone
	n := &f.Nodes[c.Endpoint]
	n.Promised -= f.Size[c.Model]
	n.queue, n.Copies = without(n.queue, c), without(n.Copies, c)
	f.Copies[c.Model] = without(f.Copies[c.Model], c)
}

func (f *Fleet) left(c *Copy) {
	c.State = Gone
	n := &f.Nodes[c.Endpoint]
	n.Held -= f.Size[c.Model]
	n.Copies = without(n.Copies, c)
	f.begin(c.Endpoint)
	f.policy.Gone(c)
}

// Pass has the requests that wait for a model, or come meanwhile, served after the time of a load, beside all endpoints: it takes no room.
// Bounds use it.
func (f *Fleet) Pass(model int) {
	if f.passing[model] {
		return
	}
	f.passing[model] = true
	f.loads++
	f.loop.At(f.Now()+f.loadTime[model], func() {
		f.passing[model] = false
		for _, number := range f.waiting[model] {
			f.waits[number] = float32(f.Now() - f.Requests[number].At)
		}
		f.waiting[model] = f.waiting[model][:0]
	})
}

// Every does something at a time from the start, and then again and again.
func (f *Fleet) Every(first, interval float64, do func()) {
	f.loop.At(first, func() {
		do()
		f.Every(f.Now()+interval, interval, do)
	})
}

// Refuse has the requests that wait for a model fail. They count as misses which have waited for ever.
func (f *Fleet) Refuse(model int) {
	for _, number := range f.waiting[model] {
		f.waits[number] = refused
	}
	f.waiting[model] = f.waiting[model][:0]
}

// without takes an element out of a slice, whose order it may change.
func without(all []*Copy, c *Copy) []*Copy {
	i := slices.Index(all, c)
	last := len(all) - 1
	all[i], all[last] = all[last], nil
	return all[:last]
}

// load is what a request that goes to a copy has before it: where endpoints are engines, all requests of that endpoint.
func (f *Fleet) load(c *Copy) int {
	if f.Engine != nil {
		return f.Nodes[c.Endpoint].flying
	}
	return c.InFlight
}

// request has one come. Of copies that have equally few requests that serves which has served none for longest: ModelMesh does so, and
// extproc's lot comes to the same.
func (f *Fleet) request(number int) {
	f.Number = number
	model := int(f.Requests[number].Model)
	f.asked[model] = f.Now()
	var best *Copy
	for _, c := range f.Copies[model] {
		if c.State == Loaded && (best == nil || cmp.Or(f.load(c)-f.load(best), c.last-best.last) < 0) {
			best = c
		}
	}
	if f.Served = best; best != nil {
		best.last = number + 1
		f.serve(number, best)
		f.policy.Request(model, false)
		return
	}
	f.waits[number] = -1
	f.waiting[model] = append(f.waiting[model], int32(number)) //nolint:gosec // there are fewer
	f.policy.Request(model, len(f.Copies[model]) == 0)
}

// leave has an endpoint go, with all that it has.
func (f *Fleet) leave(endpoint int) {
	n := &f.Nodes[endpoint]
	n.Up = false
	for _, c := range n.Copies {
		if c.State != Leaving {
			f.Copies[c.Model] = without(f.Copies[c.Model], c)
		}
		c.State = Gone
	}
	*n = Node{served: n.served, flying: n.flying}
	f.policy.Left(endpoint)
}

// stand notes how many copies are loaded.
func (f *Fleet) stand() {
	n := 0
	for e := range f.Nodes {
		for _, c := range f.Nodes[e].Copies {
			if c.State == Loaded {
				n++
			}
		}
	}
	f.stood = append(f.stood, n)
}

// warm loads the models of the highest rate at the start, round the endpoints, and leaves a tenth free.
func (f *Fleet) warm() {
	e := 0
	for _, model := range ranked(f.rate(0)) {
		for range f.Endpoints {
			e = (e + 1) % f.Endpoints
			if n := &f.Nodes[e]; n.Promised+f.Size[model] <= f.Capacity/10*9 {
				n.Held += f.Size[model]
				f.add(model, e, Loaded)
				break
			}
		}
	}
}

// clear has what is loaded at the start leave: a policy chooses all anew.
func (f *Fleet) clear() {
	for e := range f.Nodes {
		for _, c := range slices.Clone(f.Nodes[e].Copies) {
			f.Unload(c)
		}
	}
}

// Run rolls a World on, under a policy.
func Run(w World, seed uint64, policy Policy) (Figures, error) {
	f, err := newFleet(w, seed)
	if err != nil {
		return Figures{}, err
	}
	f.policy = policy
	if w.Warm {
		f.warm()
	}
	policy.Start(f)
	var events []float64
	if w.Join > 0 {
		events = append(events, w.Warmup+w.Join)
		f.loop.At(w.Warmup+w.Join, func() {
			f.stand()
			f.Nodes[w.Endpoints].Up = true
			policy.Joined(w.Endpoints)
		})
		for i := range f.joined {
			f.loop.At(w.Warmup+w.Join+float64(i+1)*scaling, func() { f.joined[i] = [2]int{f.Nodes[w.Endpoints].served, f.served()} })
		}
	}
	if w.Leave > 0 {
		events = append(events, w.Warmup+w.Leave)
		f.loop.At(w.Warmup+w.Leave, func() {
			f.stand()
			f.leave(0)
		})
	}
	f.scaled = make([]int, 3*len(events))
	for i, at := range events {
		for j, t := range []float64{at - scaling, at, at + scaling} {
			f.loop.At(t, func() { f.scaled[3*i+j] = f.loads })
		}
	}
	var loadsBefore int
	f.loop.At(w.Warmup, func() {
		loadsBefore = f.loads
		for i := range f.Nodes {
			f.Nodes[i].served = 0
		}
	})
	for number := range f.Requests {
		f.loop.Run(f.Requests[number].At)
		f.request(number)
	}
	end := w.Warmup + w.Measured
	f.loop.Run(end)
	return f.figures(f.loads-loadsBefore, end), nil
}
