package endpointstate

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/learn"
)

// Inputs of predictions: times that engines report, load from sources other than the known
// extprocs, and adapters in slots.

// freshly is the minimum time for which an endpoint keeps its profile. After that, a new profile
// replaces it only if one of its terms differs by more than the share slightly.
const (
	freshly  = time.Second
	slightly = 0.001
)

// maxAccelerators bounds the unused accelerators per pool that are remembered, about 3 KB each. A
// label with a different value for each pod would otherwise grow without bound.
const maxAccelerators = 64

// EngineTimes learns how long the engines of each pool take. It is a part of the [State] and uses
// the State's endpoints.
type EngineTimes struct {
	endpoints map[string]*endpoint              // endpoints of the State, by address
	changed   map[objects.Name]bool             // pools to build again for the next view, shared with the State
	world     *objects.World                    // the State's objects
	pools     map[string][]objects.Name         // pools of the State, by address
	generic   profile.Profile                   // profile of engines about which nothing is known
	times     map[objects.Name]*times           // learned times of the pools in world, by pool
	learned   []TrustChange                     // changes since the last call of TakeTrustChanges
	waiting   map[AcceleratorKey]LearnedProfile // profiles from peers, for accelerators that do not exist yet
	origin    time.Time                         // start of the first scrape or report
}

// times is what was learned of the engines of a pool.
type times struct {
	known        map[string]*accelerator // all accelerators by name, including those that have no endpoints now
	accelerators map[string]*accelerator // accelerators that have endpoints
	trusted      bool                    // all accelerators with endpoints are trusted
}

// accelerator is what was learned of the engines on one accelerator.
type accelerator struct {
	*learn.Learner
	prior
	since    time.Time // time of the last change of trust; zero if trust never changed
	fromPeer bool      // trust comes from the measurements of another process
}

// prior is a profile from before learning starts.
type prior struct {
	profile.Profile
	configured, pinned bool // whether the profile comes from objects, and whether learning may never change it
}

// priorOf returns the configured profile for an accelerator of a pool, or the generic one.
func (s *EngineTimes) priorOf(p *objects.Pool, class string) prior {
	if is := p.Said(class); is != nil {
		return prior{is.Profile, true, is.Pinned}
	}
	return prior{Profile: s.generic}
}

func newAccelerator(from prior) *accelerator {
	c := &accelerator{Learner: learn.New(from.Profile, from.configured), prior: from}
	if c.pinned {
		c.Pin()
	}
	return c
}

// timed is one endpoint as a member of one pool.
type timed struct {
	learn.Engine
	accelerator *accelerator
	profile     *profile.Profile // nil until the first prediction
	made        time.Time        // time of the last check whether a new profile is needed
	standing    Standing         // state in the latest view
	reason      Reason           // reason for the state that the next view will have
	due         *[]int           // that of members, without a pointer back to them; nil until the endpoint is one of them
	index       int              // its index in members
	isDue       bool             // whether due has the index
}

// TrustChange reports that predictions for a pool became trusted, or are no longer trusted.
type TrustChange struct {
	Pool    objects.Name
	Trusted bool
	// Why is the reason in a few words.
	Why string
	// Residual is the median relative error of the latest predictions, each made before learning
	// from its measurement. Rows is the number of these measurements. Both are of the accelerator
	// that is the reason.
	Residual float64
	Rows     int
}

// TakeTrustChanges returns the changes of trust since the previous call, in order.
func (s *EngineTimes) TakeTrustChanges() []TrustChange {
	news := s.learned
	s.learned = nil
	return news
}

// setWorld replaces the objects. Each pool starts from the profile that its objects configure.
func (s *EngineTimes) setWorld(w *objects.World, pools map[string][]objects.Name) {
	s.world, s.pools = w, pools
	maps.DeleteFunc(s.times, func(name objects.Name, _ *times) bool { return s.world.Pools[name] == nil })
	for name, p := range s.world.Pools {
		t, news := s.times[name], false // news: the profiles that the pool starts from have changed
		if t == nil {
			t, news = &times{known: make(map[string]*accelerator)}, true
			s.times[name] = t
		}
		for of, c := range t.known {
			if is := s.priorOf(p, of); is != c.prior {
				t.known[of], news = newAccelerator(is), true
			}
		}
		t.accelerators = make(map[string]*accelerator)
		for _, declared := range p.Endpoints {
			c := t.known[declared.Class]
			if c == nil {
				c = newAccelerator(s.priorOf(p, declared.Class))
				t.known[declared.Class] = c
			}
			t.accelerators[declared.Class] = c
			e := s.endpoints[declared.Address]
			if is := e.times[name]; is == nil || is.accelerator != c {
				e.forget(name)
				e.times[name] = &timed{accelerator: c}
				if is != nil {
					e.times[name].standing = is.standing
				}
				e.backlog.Idle() // its queue was predicted with another profile
			}
		}
		if len(t.known) > maxAccelerators+len(t.accelerators) {
			maps.DeleteFunc(t.known, func(of string, _ *accelerator) bool { return t.accelerators[of] == nil })
		}
		if news {
			t.trusted = t.trustworthy() && (len(t.accelerators) > 0 || p.Profile != nil)
		}
		for of := range t.accelerators {
			s.take(AcceleratorKey{name, of})
		}
	}
	for address, e := range s.endpoints {
		for name := range e.times {
			if !slices.Contains(s.pools[address], name) {
				e.forget(name)
			}
		}
	}
}

// trustworthy reports whether all accelerators are trusted.
func (t *times) trustworthy() bool {
	for _, c := range t.accelerators {
		if !c.Trusted() {
			return false
		}
	}
	return true
}

// forget removes the endpoint from the learners of a pool.
func (e *endpoint) forget(pool objects.Name) {
	if t := e.times[pool]; t != nil {
		t.accelerator.Forget(&t.Engine)
		delete(e.times, pool)
	}
}

// learn passes a scrape of an endpoint to the learners of its pools.
func (s *EngineTimes) learn(address string, e *endpoint, began time.Time, load *engine.Load) {
	if s.origin.IsZero() {
		s.origin = began
	}
	requests, tokens := e.backlog.Contexts()
	sent := learn.Sent{Requests: float64(requests), Tokens: float64(tokens)}
	for _, name := range s.pools[address] {
		t := e.times[name]
		trusted := t.accelerator.Trusted()
		if t.accelerator.Saw(&t.Engine, began.Sub(s.origin).Seconds(), load, sent); t.accelerator.Trusted() != trusted {
			t.accelerator.since, t.accelerator.fromPeer = began, false
		}
	}
}

// places maps the places of adapters in package pick to those in package learn.
var places = [...]learn.Place{pick.InStorage: learn.InStorage, pick.InHost: learn.InHost, pick.InSlot: learn.InSlot}

// FirstTokenPredicted records the ratio of actual to predicted time to first token at an endpoint.
func (s *EngineTimes) FirstTokenPredicted(pool objects.Name, address string, ratio float64) {
	if e := s.endpoints[address]; e != nil && e.times[pool] != nil {
		e.times[pool].accelerator.Predicted(ratio)
	}
}

// AdapterLoaded records how many seconds a first token was later than a prediction without frontend
// overhead and without adapter load. At is where the adapter was when the request was sent. The
// learner derives load times from this delay. See [pick.Decision.ShowsOverhead].
func (s *EngineTimes) AdapterLoaded(pool objects.Name, address string, at pick.Place, late float64) {
	if e := s.endpoints[address]; e != nil && e.times[pool] != nil {
		t := e.times[pool]
		t.accelerator.Began(&t.Engine, places[at], late)
	}
}

// predictable reports whether predictions for a pool are trusted: they are if all its accelerators
// are. It records each change of this result.
func (s *EngineTimes) predictable(pool objects.Name) bool {
	t := s.times[pool]
	trusted := t.trustworthy()
	if trusted == t.trusted || len(t.accelerators) == 0 { // in a pool without endpoints, trust does not change
		return trusted
	}
	if t.trusted = trusted; trusted {
		for _, declared := range s.world.Pools[pool].Endpoints { // their queues were predicted with untrusted profiles
			s.endpoints[declared.Address].backlog.Idle()
		}
	}
	var why *accelerator
	for _, class := range slices.Sorted(maps.Keys(t.accelerators)) {
		if l := t.accelerators[class]; why == nil || why.Trusted() && (!l.Trusted() || l.Residual() > why.Residual()) {
			why = l
		}
	}
	s.learned = append(s.learned, TrustChange{Pool: pool, Trusted: trusted, Why: why.why(), Residual: why.Residual(), Rows: why.Rows()})
	return trusted
}

// why returns, in a few words, why predictions for an accelerator are trusted or not.
func (c *accelerator) why() string {
	switch is := c.Trusted(); {
	case c.pinned:
		return "the profile is pinned"
	case c.fromPeer && is:
		return "predictions of another extproc were accurate"
	case c.fromPeer:
		return "predictions of another extproc are not accurate yet"
	case is && c.since.IsZero():
		return "the pool has a configured profile"
	case is:
		return "predictions were accurate"
	case c.Rows() == 0:
		return "one accelerator has no measurements yet"
	case c.since.IsZero():
		return "predictions are not accurate yet"
	}
	return "predictions were not accurate"
}

// Known describes what was learned of the engines of a pool on one accelerator.
type Known struct {
	AcceleratorKey
	// Trusted reports that the accelerator's predictions are trusted. Policy latency uses the
	// pool's predictions if all its accelerators are trusted. Why is the reason in a few words.
	// Since is when Trusted last changed; it is zero if it never changed.
	Trusted bool
	Why     string
	Since   time.Time
	// Rows is the number of measurements. Residual is the median relative error of the latest
	// predictions, each made before learning from its measurement.
	Rows     int
	Residual float64
	// Profile describes a typical engine. Factors maps the address of each engine with another
	// speed to its times relative to Profile.
	Profile profile.Profile
	Factors map[string]float64
}

// Known returns what was learned of all engines, sorted by pool and accelerator.
func (s *EngineTimes) Known() []Known {
	var all []Known
	for _, key := range s.acceleratorKeys() {
		c := s.times[key.Pool].accelerators[key.Accelerator]
		k := Known{
			AcceleratorKey: key, Trusted: c.Trusted(), Why: c.why(), Since: c.since, Rows: c.Rows(), Residual: c.Residual(),
			Profile: s.known(key, c), Factors: make(map[string]float64),
		}
		for address, e := range s.members(key.Pool, c) {
			if slower := c.Slower(&e.Engine); slower != 1 {
				k.Factors[address] = slower
			}
		}
		all = append(all, k)
	}
	return all
}

// AcceleratorKey names an accelerator of a pool.
type AcceleratorKey struct {
	Pool        objects.Name
	Accelerator string // name of the accelerator; empty if the endpoints have no label for it
}

// acceleratorKeys returns the accelerators that have endpoints, sorted.
func (s *EngineTimes) acceleratorKeys() (all []AcceleratorKey) {
	for name, t := range s.times {
		for of := range t.accelerators {
			all = append(all, AcceleratorKey{name, of})
		}
	}
	slices.SortFunc(all, func(a, b AcceleratorKey) int {
		return cmp.Or(a.Pool.Compare(b.Pool), strings.Compare(a.Accelerator, b.Accelerator))
	})
	return all
}

// members returns the endpoints of a pool that have a given accelerator, by address.
func (s *EngineTimes) members(pool objects.Name, c *accelerator) iter.Seq2[string, *timed] {
	return func(yield func(string, *timed) bool) {
		for _, declared := range s.world.Pools[pool].Endpoints {
			if e := s.endpoints[declared.Address].times[pool]; e.accelerator == c && !yield(declared.Address, e) {
				return
			}
		}
	}
}

// known returns the current profile of an accelerator. If learning has changed its times, the
// profile gets a new name. Its limits are those that the engines report, or else the configured
// ones.
func (s *EngineTimes) known(key AcceleratorKey, c *accelerator) profile.Profile {
	p := c.Learner.Profile()
	learned := p != c.prior.Profile
	s.reported(key, c, &p.Limits)
	if !learned {
		return p
	}
	p.Source = fmt.Sprintf("Learned by extproc from %d measurements. The median error of the latest predictions is %.0f %%. The initial profile was: %s",
		c.Rows(),
		100*c.Residual(), p.Name)
	if p.Name = "Engines of " + key.Pool.String(); key.Accelerator != "" {
		p.Name += " on " + key.Accelerator
	}
	return p
}

// reported sets limits to those that the engines of an accelerator report. If these differ, it uses
// the lowest.
func (s *EngineTimes) reported(key AcceleratorKey, c *accelerator, limits *profile.Limits) {
	var blocks, slots int
	least := func(is *int, n int) {
		if n > 0 && (*is == 0 || n < *is) {
			*is = n
		}
	}
	for address := range s.members(key.Pool, c) {
		e := s.endpoints[address]
		if tokens, known := e.load.KVTokens.Get(); known {
			least(&blocks, int(min(tokens, math.MaxInt32))/limits.BlockSize)
		}
		n, _ := e.slots()
		least(&slots, n)
	}
	limits.KVBlocks, limits.GPUAdapters = cmp.Or(blocks, limits.KVBlocks), cmp.Or(slots, limits.GPUAdapters)
	limits.HostAdapters = max(limits.HostAdapters, limits.GPUAdapters)
}

// fresh returns the endpoint's profile; slots is the number of adapter slots if none is configured.
// The profile changes at most once per freshly, and only if the learned values changed by more than
// slightly.
func (t *timed) fresh(now time.Time, slots int) *profile.Profile {
	if since := now.Sub(t.made); t.profile == nil || since >= freshly {
		t.made = now
		p := t.accelerator.Of(&t.Engine)
		if l := &p.Limits; l.GPUAdapters == 0 {
			l.GPUAdapters = slots
		}
		if t.profile == nil || differ(&p, t.profile) {
			t.profile = &p
		}
	}
	return t.profile
}

// differ reports whether two profiles differ by more than slightly.
func differ(p, q *profile.Profile) bool {
	far := func(a, b float64) bool { return math.Abs(a-b) > slightly*b }
	return p.Limits != q.Limits || far(p.Decode.Base, q.Decode.Base) || far(p.Decode.PerSequence, q.Decode.PerSequence) ||
		far(p.Decode.PerKVToken, q.Decode.PerKVToken) ||
		far(p.Prefill.PerToken, q.Prefill.PerToken) || far(p.Prefill.Base, q.Prefill.Base) || far(p.FrontendOverhead, q.FrontendOverhead) ||
		far(p.AdapterLoad.Mean, q.AdapterLoad.Mean) || far(p.AdapterActivation.Mean, q.AdapterActivation.Mean)
}

// others is the load at an endpoint from unknown sources, in the latest scrape. Beyond is as in
// [pick.Endpoint.KVBeyond].
type others struct{ requests, tokens, beyond int64 }

// mostRequests and mostTokens bound reported numbers, so that sums of them do not overflow.
const mostRequests, mostTokens = 1 << 30, 1 << 40

// othersOf returns the part of a scraped load that the known requests do not explain. told is the
// number of known requests.
func (e *endpoint) othersOf(load engine.Load, told int64) (o others) {
	o.requests = max(0, int64(min(load.Running.Or(0)+load.Waiting.Or(0), mostRequests))-told)
	usage, known := load.KVUsage.Get()
	size, sized := load.KVTokens.Get()
	if known && sized {
		o.beyond = int64(min(min(usage, 1)*size, mostTokens)) - e.backlog.Tokens.Load() - e.peers.Tokens.Load()
	}
	if o.requests > 0 {
		o.tokens = max(0, o.beyond)
	}
	return o
}

// predict sets the fields of p that predictions with this profile need. It sets the number of slots
// only if the profile is trusted.
func (e *endpoint) predict(p *pick.Endpoint, times *profile.Profile, trusted bool) {
	p.Profile = times
	p.KVTokens = int64(min(e.load.KVTokens.Or(float64(times.Limits.KVBlocks*times.Limits.BlockSize)), mostTokens))
	p.OthersBeside = times.Decode.PerSequence*float64(e.others.requests) + times.Decode.PerKVToken*float64(e.others.tokens)
	slots, host := e.adapterRoom()
	e.resident.Resize(slots, host)
	if trusted {
		p.Slots = int64(slots)
	}
}

// maxSlots and maxHost bound the room for adapters, configured or reported, in slots and in host
// memory.
const maxSlots, maxHost = 1024, 16384

// slots returns the number of adapter slots that the engine reports.
func (e *endpoint) slots() (slots int, known bool) {
	n, known := e.load.MaxAdapters.Get()
	return int(min(n, maxSlots)), known
}

// adapterRoom returns the room for adapters in slots and in host memory: the largest values of the
// endpoint's pools.
func (e *endpoint) adapterRoom() (slots, host int) {
	for _, t := range e.times {
		if t.profile != nil {
			slots, host = max(slots, t.profile.Limits.GPUAdapters), max(host, t.profile.Limits.HostAdapters)
		}
	}
	if n, known := e.slots(); known {
		slots = n
	}
	return min(slots, maxSlots), min(host, maxHost)
}

// begunAnew marks all adapter slots as empty and forgets the batch, because a new engine process
// has started.
func (e *endpoint) begunAnew() {
	e.batch.forget()
	for _, c := range e.models {
		e.resident.Drop(c)
	}
}

// active records that the engine reports adapters as active: each is in a slot or waits for one.
func (e *endpoint) active(names []string) {
	for _, name := range names {
		e.resident.Use(e.count(name))
	}
}
