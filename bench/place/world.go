// Package place simulates endpoints that load and unload models, and compares placement policies by
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

// World configures a simulation. Times are in seconds.
type World struct {
	Endpoints, Models int
	// Share is the total capacity of endpoints relative to the total bytes of models.
	Share float64
	// Zipf is the exponent of popularity. Rate is the total number of requests per second.
	Zipf, Rate float64
	// SizeSigma and LoadSigma are the standard deviations of the logarithms of sizes and load
	// times; with 0 all are equal.
	SizeSigma, LoadSigma float64
	// Load is the median load time. AtOnce is the number of loads that an endpoint runs in
	// parallel. Service is the service time of a request.
	Load    float64
	AtOnce  int
	Service float64
	// Warmup is the simulated time before measurements. Measured is the time after it, which is
	// measured.
	Warmup, Measured float64
	// Warm loads as many of the most popular models at the start as there is room for.
	Warm bool
	// Drift is the time in which popularity rotates over all models; 0 for never. Flash is the
	// share of requests for one cold model in the second half of the measured time. Noise is the
	// relative deviation of a model's rate from minute to minute.
	Drift, Flash, Noise float64
	// Hot is the share of requests for the most popular model; 0 for its share by Zipf.
	Hot float64
	// Engine is the profile of the engine that each endpoint simulates; nil if every request simply
	// takes the time Service.
	Engine *profile.Profile
	// Clients are the clients whose requests models get: each model is one client. If Clients is
	// nil, popularity follows Zipf.
	Clients []client
	// Join is the time after the warm-up at which an endpoint joins, and Leave the time at which
	// one leaves; 0 for never.
	Join, Leave float64
}

// Policy decides which models are loaded where. It is notified of events and calls the methods of
// its Fleet.
type Policy interface {
	// Start is called before the first request. Existing copies are already loaded.
	Start(f *Fleet)
	// Request handles a request for a model. missing is true if no copy is loaded, loading or
	// queued: the policy should load the model now or later.
	Request(model int, missing bool)
	// Ready handles the end of a load. Gone handles the end of a copy, which frees room.
	Ready(c *Copy)
	Gone(c *Copy)
	// Joined handles an endpoint that joins the fleet. Left handles one that leaves with all its
	// copies.
	Joined(endpoint int)
	Left(endpoint int)
}

// State is the state of a copy.
type State uint8

// A copy is queued until earlier loads have started and there is room, and then loads. An evicted
// copy stays until its requests have ended.
const (
	Queued State = iota
	Loading
	Loaded
	Leaving
	Gone
)

// Copy is a model on an endpoint.
type Copy struct {
	Model, Endpoint, InFlight int
	State                     State

	last int // number (from 1) of the latest request that the copy served
}

// Node is an endpoint.
type Node struct {
	// Up is false before the endpoint joins and after it leaves.
	Up bool
	// Copies are the copies on the endpoint, including those that are being evicted, in no order.
	Copies []*Copy
	// Held is the bytes of copies that are loading, loaded or being evicted. Promised is the bytes
	// of copies that are queued, loading or loaded.
	Held, Promised int64

	loading  int
	queue    []*Copy
	served   int
	inFlight int // number of requests
}

// Fleet is a simulation in progress.
type Fleet struct {
	World
	// Size is the size of each model in bytes. Capacity is the capacity of each endpoint in bytes.
	Size     []int64
	Capacity int64
	// Nodes are the endpoints. Copies are the copies of each model except those that are being
	// evicted.
	Nodes  []Node
	Copies [][]*Copy
	// Requests are all requests in order of arrival.
	Requests []Request
	// Number is the number of the latest request.
	Number int
	// Served is the copy that serves that request; nil if the request waits.
	Served *Copy
	// Random is the random source of the policy.
	Random *rand.Rand

	loop       des.Loop
	policy     Policy
	population population // set if models are clients
	loadTime   []float64
	// onFlight is called when a request starts or ends at a copy; nil unless the policy sets it.
	onFlight func(c *Copy)
	waiting  [][]int32 // by model: numbers of its waiting requests
	waits    []float32
	asked    []float64 // by model: time of its last request
	ages     int64     // sum in ns of the ages at eviction in the measured time: the time since a model's last request
	gone     int       // number of ages in that sum
	passing  []bool
	loads    int
	scaled   []int // number of loads before and after each scale event
	stood    []int // number of loaded copies before each scale event
	// joined has the numbers of requests that the new endpoint and all endpoints got, five minutes
	// and ten minutes after it joined.
	joined [2][2]int

	// If endpoints are engines: the engine of each endpoint, and the length and time to first token
	// of each request; 0 if it has no token yet.
	engines []engine
	lengths []traffic.Length
	first   []float32
}

// Request is a request for a model.
type Request struct {
	At    float64
	Model int32
}

// Now returns the simulation time.
func (f *Fleet) Now() float64 { return f.loop.Now() }

// meanSize is the mean size of a model in bytes.
const meanSize = 1 << 30

// scaling is the time in seconds before and after a scale event in which loads are counted.
const scaling = 300

// newFleet creates the simulation of a World with a seed.
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
		waiting: make([][]int32, w.Models), passing: make([]bool, w.Models), asked: make([]float64, w.Models),
		loadTime: make([]float64, w.Models),
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
		return nil, fmt.Errorf("an endpoint has %d bytes, and the largest model %d: have fewer endpoints or more models", f.Capacity,
			largest)
	}
	for i := range w.Endpoints {
		f.Nodes[i].Up = true
	}
	if w.Clients != nil {
		f.population = w.population(seed)
	}
	f.Requests = requests(w, seed)
	f.waits = make([]float32, len(f.Requests))
	if w.Engine != nil {
		return f, f.setEngines(seed)
	}
	return f, nil
}

// Room returns the bytes of an endpoint that are not promised.
func (f *Fleet) Room(endpoint int) int64 { return f.Capacity - f.Nodes[endpoint].Promised }

// At returns the copy of a model on an endpoint; nil if there is none or it is being evicted.
func (f *Fleet) At(model, endpoint int) *Copy {
	for _, c := range f.Copies[model] {
		if c.Endpoint == endpoint {
			return c
		}
	}
	return nil
}

// Load queues the load of a model on an endpoint.
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

// begin starts the queued loads of an endpoint in order, as many as may run.
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
	if c.State == Gone { // the endpoint has left
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

// served returns the number of requests that all endpoints together have got.
func (f *Fleet) served() (all int) {
	for i := range f.Nodes {
		all += f.Nodes[i].served
	}
	return all
}

// serve sends a request, which number identifies, to a copy.
func (f *Fleet) serve(number int, c *Copy) {
	f.Nodes[c.Endpoint].served++
	f.flies(c, 1)
	if f.Engine != nil {
		f.submit(number, c)
		return
	}
	f.loop.At(f.Now()+f.Service, func() { f.ended(c) })
}

// ended handles the end of a request at a copy.
func (f *Fleet) ended(c *Copy) {
	if f.flies(c, -1); c.State == Leaving && c.InFlight == 0 {
		f.left(c)
	}
}

// flies adds more to the number of requests in flight at a copy.
func (f *Fleet) flies(c *Copy, more int) {
	f.Nodes[c.Endpoint].inFlight += more
	if c.InFlight += more; f.onFlight != nil {
		f.onFlight(c)
	}
}

// Unload removes a loaded copy as soon as its requests have ended.
func (f *Fleet) Unload(c *Copy) {
	if c.State != Loaded {
		panic("what is unloaded is loaded")
	}
	c.State = Leaving
	f.Nodes[c.Endpoint].Promised -= f.Size[c.Model]
	f.Copies[c.Model] = without(f.Copies[c.Model], c)
	if f.Now() >= f.Warmup && len(f.Copies[c.Model]) == 0 {
		f.ages += int64((f.Now() - f.asked[c.Model]) * 1e9) // integers: sums must not depend on the order in which copies are removed
		f.gone++
	}
	if c.InFlight == 0 {
		f.left(c)
	}
}

// Drop removes a queued copy.
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

// Pass serves the waiting requests of a model after its load time, without an endpoint. Only
// policies that compute bounds use it.
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

// Every calls do at the time first and then at every interval.
func (f *Fleet) Every(first, interval float64, do func()) {
	f.loop.At(first, func() {
		do()
		f.Every(f.Now()+interval, interval, do)
	})
}

// Refuse rejects the waiting requests of a model. They count as misses with an infinite waiting
// time.
func (f *Fleet) Refuse(model int) {
	for _, number := range f.waiting[model] {
		f.waits[number] = refused
	}
	f.waiting[model] = f.waiting[model][:0]
}

// without removes an element from a slice and may change its order.
func without(all []*Copy, c *Copy) []*Copy {
	i := slices.Index(all, c)
	last := len(all) - 1
	all[i], all[last] = all[last], nil
	return all[:last]
}

// load returns the number of requests that compete with a new request at a copy. If endpoints are
// engines, these are all requests of the endpoint.
func (f *Fleet) load(c *Copy) int {
	if f.Engine != nil {
		return f.Nodes[c.Endpoint].inFlight
	}
	return c.InFlight
}

// request handles the arrival of a request. Among equally loaded copies it picks the least recently
// used one, like ModelMesh; the random tie-break of extproc is equivalent.
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

// leave removes an endpoint with all its copies.
func (f *Fleet) leave(endpoint int) {
	n := &f.Nodes[endpoint]
	n.Up = false
	for _, c := range n.Copies {
		if c.State != Leaving {
			f.Copies[c.Model] = without(f.Copies[c.Model], c)
		}
		c.State = Gone
	}
	*n = Node{served: n.served, inFlight: n.inFlight}
	f.policy.Left(endpoint)
}

// stand records how many copies are loaded.
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

// warm loads the most popular models at the start. It uses endpoints round-robin and leaves a tenth
// of the capacity free.
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

// clear removes the copies that exist at the start, for a policy that chooses all copies itself.
func (f *Fleet) clear() {
	for e := range f.Nodes {
		for _, c := range slices.Clone(f.Nodes[e].Copies) {
			f.Unload(c)
		}
	}
}

// Run simulates a World under a policy.
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
