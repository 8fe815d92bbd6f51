package place

import (
	"fmt"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// headgate runs control's own placement code with immediate notifications. All calls of package
// decide are in this file.
type headgate struct {
	*Fleet
	lru       bool
	state     *decide.State
	keys      []decide.Key
	addresses []string
	number    map[string]int // endpoint number by address
	models    map[string]int // model number by id
	since     []time.Time    // by model: when the first of its waiting requests began to wait; zero if none waits
	going     bool
	wake      time.Time
}

// Headgate is the placement policy of control.
func Headgate() Policy { return &headgate{} }

// HeadgateLRU is the placement policy of control in a pool with "eviction: lru".
func HeadgateLRU() Policy { return &headgate{lru: true} }

// pool is the pool of all endpoints and models.
var pool = objects.Name{Namespace: "bench", Name: "pool"}

// origin is the start of the simulation.
var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (h *headgate) now() time.Time { return origin.Add(time.Duration(h.Now() * 1e9)) }

// Start reports all endpoints and models to control's placement code.
func (h *headgate) Start(f *Fleet) {
	h.Fleet, h.state = f, decide.New(decide.Config{})
	h.number, h.models = make(map[string]int), make(map[string]int)
	h.since = make([]time.Time, f.Models)
	f.onFlight = func(c *Copy) { h.state.InFlight(h.key(c), c.InFlight, h.now()) }
	h.state.SetPool(pool, decide.Pool{LRU: h.lru})
	for i := range f.Nodes {
		address := fmt.Sprintf("10.%d.%d.%d:8000", i>>16, i>>8&255, i&255)
		h.addresses, h.number[address] = append(h.addresses, address), i
		if f.Nodes[i].Up {
			h.state.SetEndpoint(address, []objects.Name{pool})
		}
	}
	for i := range f.Models {
		key := decide.Key{Pool: pool, ID: fmt.Sprintf("m%05d", i)}
		h.keys, h.models[key.ID] = append(h.keys, key), i
		h.state.SetModel(objects.Entry{ModelKey: key, Type: "bench", Source: "bench"}, time.Time{})
	}
	if f.Warm {
		for rank, model := range ranked(f.rate(0)) { // as if the most popular models had been used most recently
			h.state.Used(h.keys[model], decide.Use{Last: origin.Add(-time.Duration(rank+1) * time.Millisecond)})
			for _, c := range f.Copies[model] {
				h.state.Restore(decide.Record{
					CopyKey: h.key(c), State: decide.Loaded, Bytes: f.Size[model], Source: decide.MeasuredSize,
					Incarnation: "1",
				}, origin.Add(-time.Hour))
			}
		}
	}
	for i := range f.Nodes {
		if f.Nodes[i].Up {
			h.look(i)
		}
	}
	h.tick()
	h.Every(h.Now()+decide.TickInterval.Seconds(), decide.TickInterval.Seconds(), h.tick)
}

// tick runs the periodic decisions of control.
func (h *headgate) tick() {
	h.state.Tick()
	h.decide()
}

// look reports to the placement code what a scrape of an endpoint returned.
func (h *headgate) look(endpoint int) {
	h.state.Scraped(decide.ScrapeResult{Endpoint: decide.Endpoint{
		Address: h.addresses[endpoint], CanLoad: true, CanPredict: true, Bytes: h.Capacity, DefaultBytes: meanSize, Loads: h.AtOnce,
		Incarnation: "1",
	}, Began: h.now()}, h.now())
}

func (h *headgate) key(c *Copy) decide.CopyKey {
	return decide.CopyKey{ModelKey: h.keys[c.Model], Endpoint: h.addresses[c.Endpoint]}
}

// Request reports that a model was used and, if it has no copy, that requests wait for it.
func (h *headgate) Request(model int, _ bool) {
	h.state.Used(h.keys[model], decide.Use{Requests: 1, Last: h.now()})
	if len(h.waiting[model]) == 0 {
		return
	}
	first := h.since[model].IsZero()
	if first {
		h.since[model] = h.now()
	}
	h.state.Wanted("extproc", h.keys[model], decide.Want{Requests: len(h.waiting[model]), Since: h.since[model]})
	if first {
		h.decide()
	}
}

// decide asks for decisions and executes them until there are no more.
func (h *headgate) decide() {
	if h.going {
		return
	}
	h.going = true
	defer func() { h.going = false }()
	for {
		todo, wake := h.state.Decide(h.now())
		if !wake.IsZero() && (h.wake.IsZero() || wake.Before(h.wake) || !h.wake.After(h.now())) {
			h.wake = wake
			h.loop.At(wake.Sub(origin).Seconds()+1e-6, h.decide)
		}
		again := h.do(todo)
		for key, change := range h.state.Changes().Copies {
			c := h.At(h.models[key.ID], h.number[key.Endpoint])
			if c != nil && c.State == Loaded && change.State == decide.Draining {
				h.Unload(c) // the unload may end immediately
				again = true
			}
		}
		if !again {
			return
		}
	}
}

// do executes actions. It reports whether their results may change further decisions.
func (h *headgate) do(todo []decide.Action) (news bool) {
	for len(todo) > 0 {
		a := todo[0]
		todo = todo[1:]
		model, endpoint := h.models[a.Model.ID], h.number[a.Endpoint]
		key := decide.CopyKey{ModelKey: a.Model.ModelKey, Endpoint: a.Endpoint}
		switch a.Kind {
		case decide.Predict:
			h.state.Predicted(key, h.Size[model])
			news = true
		case decide.Load, decide.Reload:
			h.Load(model, endpoint)
		case decide.Unload: // the Fleet has unloaded the copy when its drain ended
			h.state.UnloadEnded(key, false, h.now())
			news = true
		case decide.Cancel, decide.Quit: // not simulated: a load always runs to its end
		}
	}
	return news
}

// Ready reports to the placement code that a load has ended.
func (h *headgate) Ready(c *Copy) {
	if !h.since[c.Model].IsZero() {
		h.since[c.Model] = time.Time{}
		h.state.Wanted("extproc", h.keys[c.Model], decide.Want{})
	}
	h.state.LoadEnded(h.key(c), decide.LoadResult{Bytes: h.Size[c.Model], Took: time.Duration(h.loadTime[c.Model] * 1e9)}, h.now())
	h.decide()
}

// Gone reports to the placement code that a drain and the unload after it have ended.
func (h *headgate) Gone(c *Copy) {
	h.do(h.state.Drained(h.key(c), h.now()))
	h.decide()
}

// Joined reports a new endpoint to the placement code.
func (h *headgate) Joined(endpoint int) {
	h.state.SetEndpoint(h.addresses[endpoint], []objects.Name{pool})
	h.look(endpoint)
	h.decide()
}

// Left reports to the placement code that an endpoint was removed.
func (h *headgate) Left(endpoint int) {
	h.state.RemoveEndpoint(h.addresses[endpoint])
	h.decide()
}
