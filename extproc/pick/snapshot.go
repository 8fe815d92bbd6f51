package pick

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/headgate/headgate/internal/profile"
)

// Snapshot is the state of every endpoint at one moment. Its structure is immutable. The counters
// that it points to are shared by all snapshots, so that a request sees those sent a moment ago
// whatever the age of the last scrape.
type Snapshot struct {
	// Pools are the pools by "namespace/name".
	Pools map[string]*Pool
}

// Pool is the endpoints of one pool.
type Pool struct {
	Endpoints []Endpoint
	// Predictable reports that predictions are trusted. Each endpoint then has a profile.
	Predictable bool
	Index
}

// Index lists the endpoints that serve each model of a pool. Snapshots share it, since it changes
// only when models or endpoints come and go.
type Index struct {
	// Copies are the base models and adapters, by the name that engines accept.
	Copies map[string][]Copy
	// Base is one copy for each endpoint with a base model: of the first model in its list.
	Base []Copy
	// Any is one copy without a model for each endpoint.
	Any []Copy
	// Listed reports that the models of at least one endpoint are known.
	Listed bool
	// Unread reports that no model list of the pool has been read or found missing yet, and that an
	// endpoint has not been scraped yet.
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

// Has reports whether a request for a model, by the engine's name, has a copy at an endpoint that
// gets requests, and whether one of those copies has room. P may be nil.
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

// waits reports whether a request should wait for a full copy instead of using a free one, given
// the best state of each kind. A request at a lost endpoint would likely fail, while a full copy
// has room in a moment.
func waits(free, full State) bool { return full < Lost && free == Lost }

// Copy is a model at an endpoint that serves its name. The weights need not be in a slot.
type Copy struct {
	// Endpoint is the index of the endpoint in its pool.
	Endpoint int
	// Model is the engine's name of the model, empty in Any.
	Model string
	// Base reports that the model needs no slot: it is a base model, or of an unknown kind.
	Base bool
	// Names are all names of a base model, Model first. For an adapter it holds the one name that
	// requests must use if that is not Model.
	Names []string
	// InFlight counts the requests for the model at the endpoint.
	InFlight *Count
	// Limited reports that InFlight has a limit. Other counts need not be read.
	Limited bool
	// Unlisted reports that only control knows of the copy. Until Own, in Unix nanoseconds,
	// NOT_FOUND counts as the model's own answer.
	Unlisted bool
	Own      int64
}

// full reports whether the copy is at its limit of concurrent requests.
func (c *Copy) full() bool { return c.Limited && c.InFlight.Full() }

// Count counts this process's requests for a model at an endpoint. All snapshots share it.
type Count struct {
	atomic.Int64
	// Others is the number of requests that other processes report there.
	Others atomic.Int64
	// Limit is the limit of concurrent requests of this process; 0 means none.
	Limit atomic.Int64
	// Closed reports that no request may begin any more, although an older snapshot has the copy. A
	// request counts itself first and then checks Closed.
	Closed atomic.Bool
	// Began is the number of requests since the number was last taken. Last is when the last one
	// began, in nanoseconds since 1970: it breaks ties for tokenless requests.
	Began, Last atomic.Int64

	place atomic.Uint32
}

// Enter counts one more request unless the limit is reached. It returns the new count.
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

// asked returns the name by which a request for a model must ask the engine.
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
	// Suspect endpoints failed their last request. They get a few requests, to detect recovery, and
	// more only if no healthy endpoint can serve.
	Suspect
	// Stale endpoints have not answered a scrape for a while. They get requests only if no better
	// endpoint can serve: an engine too busy to answer scrapes may still serve.
	Stale
	// Migrating endpoints are on pods that are being deleted. They serve until their models have
	// copies elsewhere, but only what no other endpoint that answers scrapes can serve. New
	// sessions thus begin elsewhere.
	Migrating
	// Lost endpoints have been silent for long. They get requests only if all others are lost too,
	// since then the scrapes may be at fault.
	Lost
	// Out endpoints get no requests: they are not ready, asleep, or refuse connections.
	Out
)

// States are the names of the states.
var States = [...]string{Healthy: "healthy", Suspect: "suspect", Stale: "stale", Migrating: "migrating", Lost: "lost", Out: "out"}

func (s State) String() string { return States[s] }

// Endpoint is one ip:port that serves requests.
type Endpoint struct {
	// State and the fields up to Adapters are what most decisions read of each candidate. They fill
	// one cache line.
	State State
	// Number is a small number that no other endpoint has at the same time.
	Number int
	// Profile predicts the endpoint's times, trusted or not; nil if there is none.
	Profile *profile.Profile
	// Backlog is the unfinished work of this process's requests.
	Backlog *Backlog
	// Peers is the unfinished work that other processes report.
	Peers *Peers
	// OthersBeside is the time that requests from unknown sources add to each decode step, in
	// seconds.
	OthersBeside float64
	// Others is the number of requests from unknown sources.
	Others int64
	// Adapters is the number of adapters with requests of this process.
	Adapters *atomic.Int64

	// InFlight is the number of requests of this process.
	InFlight *atomic.Int64

	// Slots is the number of adapter slots on the GPU; 0 if unknown.
	Slots int64
	// Listed are the adapters that the engine reports as active, each by our count for it.
	Listed []*Count
	// Resident estimates which adapters the engine holds.
	Resident *Resident
	// KVTokens is the size of the KV cache in tokens. OthersTokens is the part in use by requests
	// from unknown sources.
	KVTokens, OthersTokens int64
	Address                string // "ip:port", with brackets around an IPv6 address
	// Hash is a hash of the address, for rendezvous hashing.
	Hash uint64
	// Doubted reports that it is out because of requests alone; no scrape has confirmed that yet.
	Doubted bool
	// Unscraped reports that it is out only because it has not answered a scrape yet.
	Unscraped bool
	// Forgets reports that its engine has no prefix cache.
	Forgets bool
}

// Pending returns the number of requests at the endpoint, running and waiting.
func (e *Endpoint) Pending() int64 { return e.Others + e.Peers.Requests.Load() + e.InFlight.Load() }

// ActiveAdapters returns the number of adapters with requests, of this process or of others.
func (e *Endpoint) ActiveAdapters() int64 {
	n := e.Adapters.Load()
	for _, ours := range e.Listed {
		if ours.Load() == 0 { // else e.Adapters counts it
			n++
		}
	}
	return n
}

// lists reports whether the engine reports the adapter as active.
func (e *Endpoint) lists(c *Copy) bool { return slices.Contains(e.Listed, c.InFlight) }
