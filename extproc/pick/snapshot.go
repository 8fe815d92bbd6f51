package pick

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/headgate/headgate/internal/profile"
)

// Snapshot is the state of every endpoint at one moment. Its structure is immutable. All snapshots
// share the counters that it points to, so that each decision sees the requests of a moment ago,
// even if the last scrape is older.
type Snapshot struct {
	// Pools maps "namespace/name" to the pool.
	Pools map[string]*Pool
}

// Pool contains the endpoints of one pool.
type Pool struct {
	// Endpoints are in the order of the objects. Snapshots share those that have not changed.
	Endpoints []*Endpoint
	// Predictable reports that predictions are trusted. Each endpoint then has a profile.
	Predictable bool
	Index
}

// Index maps each model of a pool to the endpoints that serve it. Snapshots share an Index, since
// it changes only when models or endpoints are added or removed.
type Index struct {
	// Copies maps each name that engines accept to the copies of that base model or adapter.
	Copies map[string][]Copy
	// Base has one copy for each endpoint with a base model: the copy of the first listed model.
	Base []Copy
	// Any has one copy for each endpoint, with no model set.
	Any []Copy
	// Listed reports that the models of at least one endpoint are known.
	Listed bool
	// Unread reports that an endpoint has not been scraped yet, and that no scrape of the pool has
	// read a model list or found that there is none.
	Unread bool
}

// Lists reports whether an endpoint of the pool serves a model of this name. P may be nil.
func (p *Pool) Lists(name string) bool { return p != nil && len(p.Copies[name]) > 0 }

// Names returns the sorted names of the pool's models, and whether any endpoint's models are known.
// P may be nil.
func (p *Pool) Names() (names []string, known bool) {
	if p == nil {
		return nil, false
	}
	return slices.Sorted(maps.Keys(p.Copies)), p.Listed
}

// BaseModel returns the engines' name of the pool's base model, or empty if none is known. P may be
// nil.
func (p *Pool) BaseModel() string {
	if p == nil || len(p.Base) == 0 {
		return ""
	}
	return p.Base[0].Model
}

// Has reports whether a model has a copy at an endpoint that gets requests, and whether such a copy
// has room for another request. Model is the engine's name. P may be nil.
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

// waits reports whether a request should wait for a copy at its limit instead of using a copy with
// room. The arguments full and free are the best states of endpoints with such copies. A request to
// a lost endpoint would probably fail, while a copy at its limit soon has room.
func waits(free, full State) bool { return full < Lost && free == Lost }

// waitsForRoom reports whether a request should wait for an endpoint whose gate is closed instead
// of using one with room. The arguments are the best states of such endpoints. In a flood, an
// endpoint that is silent, failing or about to stop would get all requests that the healthy ones
// have no room for.
func waitsForRoom(free, shut State) bool {
	return waits(free, shut) || shut == Healthy && free != Healthy
}

// Copy is a model at an endpoint that accepts its name. The weights need not be in a slot.
type Copy struct {
	// Endpoint is the index of the endpoint in its pool.
	Endpoint int
	// Model is the engine's name of the model; empty for copies in Index.Any.
	Model string
	// Base reports that the model needs no slot: it is a base model, or its kind is unknown.
	Base bool
	// Names are all names of a base model; the first is Model. For an adapter, Names contains the
	// name that requests must use if it differs from Model, and is otherwise empty.
	Names []string
	// InFlight counts the requests for the model at the endpoint.
	InFlight *Count
	// Limited reports that InFlight has a limit, so that InFlight must be read.
	Limited bool
	// Unlisted reports that the engine does not list this copy; only control reported it. Until the
	// time Own, in Unix nanoseconds, NOT_FOUND is taken as the model's own answer to a request.
	Unlisted bool
	Own      int64
}

// full reports whether the copy is at its limit of concurrent requests.
func (c *Copy) full() bool { return c.Limited && c.InFlight.Full() }

// Count is the number of this process's requests for a model at an endpoint. All snapshots share
// it.
type Count struct {
	atomic.Int64
	// Others is the number of requests for this copy that other processes report.
	Others atomic.Int64
	// Limit is the concurrency limit for this process's requests; 0 means no limit.
	Limit atomic.Int64
	// Closed reports that no more requests may begin, even if an older snapshot still has the copy.
	// A request first adds itself to the count, and then reads Closed.
	Closed atomic.Bool
	// Began is the number of requests that began since Began was last reset to 0. Last is when the
	// last request began, in nanoseconds since 1970. Last breaks ties between copies for tokenless
	// requests.
	Began, Last atomic.Int64

	place atomic.Uint32
}

// Enter adds one request to the count unless the limit is reached. It returns the new count, and
// whether it added the request.
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

// Full reports whether the limit is reached.
func (c *Count) Full() bool {
	limit := c.Limit.Load()
	return limit > 0 && c.Load() >= limit
}

// asked returns the name that a request for a model must contain so that the engine accepts it.
func (c *Copy) asked(model string) string {
	if !c.Base && len(c.Names) > 0 {
		return c.Names[0]
	}
	return cmp.Or(c.Model, model)
}

// State states whether an endpoint may get requests.
type State uint8

const (
	// Healthy endpoints get requests.
	Healthy State = iota
	// Suspect endpoints failed their last request. They get a few requests, which detect recovery,
	// and more only if no healthy endpoint can serve.
	Suspect
	// Stale endpoints have not answered a scrape for a while. An engine too busy to answer scrapes
	// may still serve, so they get requests if no better endpoint can serve.
	Stale
	// Migrating endpoints are on pods that are being deleted. They serve until their models have
	// copies elsewhere, but get only requests that no healthy, suspect or stale endpoint can serve.
	// So new sessions begin elsewhere.
	Migrating
	// Lost endpoints have not answered a scrape for a long time. They get requests only if all
	// other endpoints are lost too: the fault may then be in the scrapes.
	Lost
	// Out endpoints get no requests: they are not ready, asleep, or refuse connections.
	Out
)

// States are the names of the values of State.
var States = [...]string{Healthy: "healthy", Suspect: "suspect", Stale: "stale", Migrating: "migrating", Lost: "lost", Out: "out"}

func (s State) String() string { return States[s] }

// Endpoint is one ip:port that serves requests.
type Endpoint struct {
	// The fields from State to Adapters fill one cache line. Most decisions read only these.
	State State
	// Number is a small number that no other endpoint has at the same time.
	Number int
	// Profile predicts the endpoint's times, even if they are not trusted; nil if there is none.
	Profile *profile.Profile
	// Backlog is the unfinished work of this process's requests.
	Backlog *Backlog
	// Peers is the unfinished work of other processes' requests, as these processes report it.
	Peers *Peers
	// OthersBeside is the time that requests from unknown sources add to each decode step, in
	// seconds.
	OthersBeside float64
	// Others is the number of requests from unknown sources.
	Others int64
	// Adapters is the number of adapters for which this process has requests in flight.
	Adapters *atomic.Int64

	// InFlight is the number of requests that this process has in flight.
	InFlight *atomic.Int64
	// Window is the learned limit of InFlight for a Gate without trusted predictions; nil or 0
	// means unknown.
	Window *atomic.Int64
	// Batch is the learned limit of requests that the engine runs at once, for a Gate with trusted
	// predictions; nil or 0 means that the limit of Profile holds.
	Batch *atomic.Int64

	// Slots is the number of adapter slots on the GPU; 0 if unknown.
	Slots int64
	// Listed contains this process's Count of each adapter that the engine reports as active.
	Listed []*Count
	// Resident estimates which adapters are in the engine's slots and host memory.
	Resident *Resident
	// KVTokens is the size of the KV cache in tokens. OthersTokens is the number of these tokens
	// that requests from unknown sources use.
	KVTokens, OthersTokens int64
	// KVBeyond is the number of tokens in the KV cache beyond those of the requests in Backlog and
	// Peers, at the last scrape. It is negative if these requests used less than predicted.
	KVBeyond int64
	Address  string // "ip:port", with brackets around an IPv6 address
	// Hash is a hash of the address, for rendezvous hashing.
	Hash uint64
	// Doubted reports that State is Out only because requests failed; no scrape has confirmed it
	// yet.
	Doubted bool
	// Unscraped reports that State is Out only because the endpoint has not answered a scrape yet.
	Unscraped bool
	// Forgets reports that the engine has no prefix cache.
	Forgets bool
}

// Pending returns the number of requests at the endpoint, running and waiting.
func (e *Endpoint) Pending() int64 { return e.Others + e.Peers.Requests.Load() + e.InFlight.Load() }

// ActiveAdapters returns the number of adapters that have requests at the endpoint, from this
// process or from others.
func (e *Endpoint) ActiveAdapters() int64 {
	n := e.Adapters.Load()
	for _, ours := range e.Listed {
		if ours.Load() == 0 { // otherwise e.Adapters includes this adapter
			n++
		}
	}
	return n
}

// lists reports whether the engine reports this copy's adapter as active.
func (e *Endpoint) lists(c *Copy) bool { return slices.Contains(e.Listed, c.InFlight) }
