package pick

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/headgate/headgate/internal/profile"
)

// Snapshot is what the gateway believes about every endpoint at one moment. Its structure is immutable; the counts that
// it points to go on, shared with the snapshots before and after it, so that a request sees those sent a moment ago
// whatever the age of the last scrape.
type Snapshot struct {
	// Pools by "namespace/name".
	Pools map[string]*Pool
}

// Pool is the endpoints of one pool.
type Pool struct {
	Endpoints []Endpoint
	// Predictable says that predictions are trusted. Each of its endpoints then has a profile.
	Predictable bool
	Index
}

// Index is where a pool's models are addressable. It changes only when models or endpoints come and go, so that
// snapshots share it.
type Index struct {
	// Copies are the models, base models and adapters, by the name that engines answer to.
	Copies map[string][]Copy
	// Base is one copy for each endpoint that serves a base model: of the first that it lists.
	Base []Copy
	// Any is one copy without a model for each endpoint.
	Any []Copy
	// Listed says that it is known of an endpoint of the pool what it answers to.
	Listed bool
	// Unread says that no list of the pool's endpoints was read yet, nor found not to be there, and that an endpoint was not scraped yet.
	Unread bool
}

// Lists says whether an endpoint of the pool answers to a name. P may be nil.
func (p *Pool) Lists(name string) bool { return p != nil && len(p.Copies[name]) > 0 }

// Names returns what the endpoints of the pool answer to, in order, and whether any of them says. P may be nil.
func (p *Pool) Names() (names []string, known bool) {
	if p == nil {
		return nil, false
	}
	return slices.Sorted(maps.Keys(p.Copies)), p.Listed
}

// BaseModel is what the engines of the pool call their base model, empty where none of them says. P may be nil.
func (p *Pool) BaseModel() string {
	if p == nil || len(p.Base) == 0 {
		return ""
	}
	return p.Base[0].Model
}

// Has says whether a request for a model, by what engines call it, would find a copy at an endpoint that gets requests, and whether one of
// those takes another request. P may be nil.
func (p *Pool) Has(model string) (has, room bool) {
	if p == nil {
		return false, false
	}
	copies, err := p.admit(Request{Model: model})
	if err != nil {
		return false, false
	}
	free, full := Out, Out
	for i := range copies {
		if c := &copies[i]; c.full() {
			full = min(full, p.Endpoints[c.Endpoint].State)
		} else {
			free = min(free, p.Endpoints[c.Endpoint].State)
		}
	}
	return min(free, full) != Out, free != Out && !waits(free, full)
}

// waits says whether a request waits for a copy at a full endpoint rather than go to one that is free, by the best states of both: it is of no use
// to have one fail that would be answered in a moment.
func waits(free, full State) bool { return full < Lost && free == Lost }

// Copy is a model on an endpoint that answers to its name. Whether its weights are in a slot there is another question.
type Copy struct {
	// Endpoint is the index of the endpoint in its pool.
	Endpoint int
	// Model is the engine's name of the model, empty in Any.
	Model string
	// Base says that the model needs no slot: it is a base model, or nobody knows what it is.
	Base bool
	// Names are all names of a base model, Model the first of them. Of an adapter it is the one name that requests must
	// give, where that is not Model.
	Names []string
	// InFlight counts the requests for the model at the endpoint.
	InFlight *Count
	// Limited says that InFlight has a limit: counts of others need not be read.
	Limited bool
	// Unlisted says that control alone knows of the copy. Own is until when NOT_FOUND is taken for the model's own answer, in nanoseconds of Unix
	// time.
	Unlisted bool
	Own      int64
}

// full says whether the copy takes no other request until one of those that it has ends.
func (c *Copy) full() bool { return c.Limited && c.InFlight.Full() }

// Count is how many requests for a model an endpoint has that this process sent. It lives on from snapshot to snapshot.
type Count struct {
	atomic.Int64
	// Others is how many other processes have there, as far as they tell.
	Others atomic.Int64
	// Limit is how many of them the model may have there at once; 0: as many as come.
	Limit atomic.Int64
	// Closed says that no request may begin there any more, though an older snapshot has the copy: who counts a request
	// looks here afterwards.
	Closed atomic.Bool
	// Began is how many requests have begun since somebody last took the number, and Last when the last one did, in
	// nanoseconds since 1970: by Last it is decided among endpoints that are equal for a tokenless request.
	Began, Last atomic.Int64

	place atomic.Uint32
}

// Enter counts one more, unless there are as many as may be, and returns how many there are then.
func (c *Count) Enter() (n int64, entered bool) {
	for {
		n = c.Load()
		if limit := c.Limit.Load(); limit > 0 && n >= limit {
			return n, false
		}
		if c.CompareAndSwap(n, n+1) {
			return n + 1, true
		}
	}
}

// Full says whether there are as many as may be.
func (c *Count) Full() bool {
	limit := c.Limit.Load()
	return limit > 0 && c.Load() >= limit
}

// asked is the name to ask the engine for, by a request for a model.
func (c *Copy) asked(model string) string {
	if !c.Base && len(c.Names) > 0 {
		return c.Names[0]
	}
	return cmp.Or(c.Model, model)
}

// State is whether an endpoint may get requests.
type State uint8

const (
	// Healthy endpoints get requests.
	Healthy State = iota
	// Suspect ones answered their last request with a fault of theirs. They get a trickle, to be found well again, and
	// more where no healthy one can.
	Suspect
	// Stale ones have not answered a scrape for a while. They get requests where no other can: an engine that is busy
	// enough to miss scrapes still serves.
	Stale
	// Migrating ones are on pods that are being deleted and serve on until their models have copies elsewhere. They get requests where no
	// other can that answers looks, so that new sessions begin elsewhere, too.
	Migrating
	// Lost ones have been silent for long. They get requests where every other is lost too: it may be the looks that
	// fail, and not the engines.
	Lost
	// Out ones get none: not ready, asleep, or found to refuse.
	Out
)

// States are the names of the states.
var States = [...]string{Healthy: "healthy", Suspect: "suspect", Stale: "stale", Migrating: "migrating", Lost: "lost", Out: "out"}

func (s State) String() string { return States[s] }

// Endpoint is one ip:port that serves requests.
type Endpoint struct {
	// State and the fields up to Adapters are what most decisions read of each candidate: they fill one line of a processor's cache.
	State State
	// Number is a small one, which no other endpoint has for as long as this one is there.
	Number int
	// Profile predicts its times, whether trusted or not; nil if there is none.
	Profile *profile.Profile
	// Backlog is what the requests of this process still ask of it.
	Backlog *Backlog
	// Peers is the same of other processes, as they tell.
	Peers *Peers
	// OthersBeside is what requests of which nobody tells add to each decode step, in seconds.
	OthersBeside float64
	// Others is how many the endpoint has of them.
	Others int64
	// Adapters is for how many adapters this process has requests there.
	Adapters *atomic.Int64

	// InFlight is how many requests this process has there.
	InFlight *atomic.Int64

	// Slots is how many adapters its GPU holds at once; 0 where that is unknown.
	Slots int64
	// Listed is the adapters that the engine reports as active, each as our own count of requests for it.
	Listed []*Count
	// Resident is which adapters it holds, as far as it is known how many it can.
	Resident *Resident
	// KVTokens is how many tokens its KV cache holds, of which requests of which nobody tells have OthersTokens.
	KVTokens, OthersTokens int64
	Address                string // "ip:port", with brackets around an IPv6 address
	// Hash is of the address, for sessions.
	Hash uint64
	// Doubted says that it is out by what requests say alone: no look has told yet.
	Doubted bool
	// Unheard says that it is out for no other reason than that it has not answered a look yet.
	Unheard bool
	// Forgets says that its engine keeps nothing of a prompt for the next one.
	Forgets bool
}

// Pending is how many requests the endpoint has, running and waiting.
func (e *Endpoint) Pending() int64 { return e.Others + e.Peers.Requests.Load() + e.InFlight.Load() }

// ActiveAdapters is for how many adapters the endpoint has requests, ours or others'.
func (e *Endpoint) ActiveAdapters() int64 {
	n := e.Adapters.Load()
	for _, ours := range e.Listed {
		if ours.Load() == 0 { // else e.Adapters counts it
			n++
		}
	}
	return n
}

// lists says whether the engine reports the adapter as active.
func (e *Endpoint) lists(c *Copy) bool { return slices.Contains(e.Listed, c.InFlight) }
