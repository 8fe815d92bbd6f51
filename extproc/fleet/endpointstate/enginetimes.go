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

// What predictions need of endpoints: how long they take, as engines themselves tell, what others have there, and which adapters they hold.

// freshly is how long an endpoint keeps its profile at least, and slightly by how much a time may be off, as a share, that it keeps it longer.
const (
	freshly  = time.Second
	slightly = 0.001
)

// maxAccelerators is of how many classes of hardware of a pool what is known is kept, beside those that are there: some 3 KB each. A label that names
// each pod has no end of them.
const maxAccelerators = 64

// EngineTimes learns how long the engines of each pool take. It is a part of the [State], with which it shares the endpoints.
type EngineTimes struct {
	endpoints map[string]*endpoint              // of the State, by address
	changed   map[objects.Name]bool             // of the State
	world     *objects.World                    // of the State
	pools     map[string][]objects.Name         // of the State
	generic   profile.Profile                   // of engines of which nothing is known
	times     map[objects.Name]*times           // of the pools of the world
	learned   []TrustChange                     // since it was last taken
	waiting   map[AcceleratorKey]LearnedProfile // that others gave last
	origin    time.Time                         // when the first scrape began, or something was first heard
}

// times is how long the engines of a pool take, as far as it is learned.
type times struct {
	known        map[string]*accelerator // by hardware, that of endpoints which are gone too: they may come back
	accelerators map[string]*accelerator // those among them of endpoints that are there
	trusted      bool                    // what is learned of all classes
}

// class is how long engines of one class of hardware take.
type accelerator struct {
	*learn.Learner
	prior
	since time.Time // when it became trusted, or was not any more; zero where that never changed
	heard bool      // another process said so
}

// prior is what learning begins with.
type prior struct {
	profile.Profile
	said, pinned bool // by somebody
}

// priorOf is what is said of a class of hardware of a pool, or what is assumed where nobody says anything.
func (s *EngineTimes) priorOf(p *objects.Pool, class string) prior {
	if is := p.Said(class); is != nil {
		return prior{is.Profile, true, is.Pinned}
	}
	return prior{Profile: s.generic}
}

func newAccelerator(from prior) *accelerator {
	c := &accelerator{Learner: learn.New(from.Profile, from.said), prior: from}
	if c.pinned {
		c.Pin()
	}
	return c
}

// timed is how long one endpoint takes, as one of a pool.
type timed struct {
	learn.Engine
	class   *accelerator
	profile *profile.Profile // nil until it is asked for
	made    time.Time        // when it was last asked whether there is another one
}

// TrustChange is that predictions for a pool are trusted from now on, or are not any more.
type TrustChange struct {
	Pool    objects.Name
	Trusted bool
	// Why says in a few words what changed.
	Why string
	// Residual is by what share the latest predictions were off in the median, before they were learned from, and Rows how many there were:
	// of the hardware that is why.
	Residual float64
	Rows     int
}

// TakeLearned returns of which pools predictions became trusted since it was last called, or are not any more, in order.
func (s *EngineTimes) TakeTrustChanges() []TrustChange {
	news := s.learned
	s.learned = nil
	return news
}

// setWorld has what is learned be of the pools that there are, each from what its objects say of it.
func (s *EngineTimes) setWorld(w *objects.World, pools map[string][]objects.Name) {
	s.world, s.pools = w, pools
	maps.DeleteFunc(s.times, func(name objects.Name, _ *times) bool { return s.world.Pools[name] == nil })
	for name, p := range s.world.Pools {
		t, news := s.times[name], false // that trust is of something else
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
			if is := e.times[name]; is == nil || is.class != c {
				e.forget(name)
				e.times[name] = &timed{class: c}
				e.backlog.Idle() // its queue was predicted by something else
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

// trustworthy says whether what is learned of every class of hardware is trusted.
func (t *times) trustworthy() bool {
	for _, c := range t.accelerators {
		if !c.Trusted() {
			return false
		}
	}
	return true
}

// forget ends that the endpoint counts among those of a pool.
func (e *endpoint) forget(pool objects.Name) {
	if t := e.times[pool]; t != nil {
		t.class.Forget(&t.Engine)
		delete(e.times, pool)
	}
}

// learn tells of a look at an endpoint.
func (s *EngineTimes) learn(address string, e *endpoint, began time.Time, load *engine.Load) {
	if s.origin.IsZero() {
		s.origin = began
	}
	requests, tokens := e.backlog.Contexts()
	sent := learn.Sent{Requests: float64(requests), Tokens: float64(tokens)}
	for _, name := range s.pools[address] {
		t := e.times[name]
		trusted := t.class.Trusted()
		if t.class.Saw(&t.Engine, began.Sub(s.origin).Seconds(), load, sent); t.class.Trusted() != trusted {
			t.class.since, t.class.heard = began, false
		}
	}
}

// places are those of adapters, as learners know them.
var places = [...]learn.Place{pick.InStorage: learn.InStorage, pick.InHost: learn.InHost, pick.InSlot: learn.InSlot}

// Foretold records the ratio of actual to predicted time to first token at an endpoint.
func (s *EngineTimes) FirstTokenPredicted(pool objects.Name, address string, ratio float64) {
	if e := s.endpoints[address]; e != nil && e.times[pool] != nil {
		e.times[pool].class.Foretold(ratio)
	}
}

// Began tells by how many seconds later a first token came than it was predicted to but for the intake and a load, of a request whose adapter was at a
// place when it was sent: how long these take is learned of it. See [pick.Decision.Tells].
func (s *EngineTimes) AdapterLoaded(pool objects.Name, address string, at pick.Place, late float64) {
	if e := s.endpoints[address]; e != nil && e.times[pool] != nil {
		t := e.times[pool]
		t.class.Began(&t.Engine, places[at], late)
	}
}

// predictable says whether the endpoints of a pool are to be predicted, which is told of where it changes: what is learned of every class of
// hardware is trusted then.
func (s *EngineTimes) predictable(pool objects.Name) bool {
	t := s.times[pool]
	trusted := t.trustworthy()
	if trusted == t.trusted || len(t.accelerators) == 0 { // nothing is news of a pool that has no endpoint
		return trusted
	}
	if t.trusted = trusted; trusted {
		for _, declared := range s.world.Pools[pool].Endpoints { // their queues were predicted by what was not trusted
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

// why says in a few words why what is known of a class of hardware is trusted, or is not.
func (c *accelerator) why() string {
	switch is := c.Trusted(); {
	case c.pinned:
		return "the profile is pinned"
	case c.heard && is:
		return "predictions of another extproc came true"
	case c.heard:
		return "predictions of another extproc have not come true"
	case is && c.since.IsZero():
		return "somebody said how long they take"
	case is:
		return "predictions came true"
	case c.Rows() == 0:
		return "there is hardware of which nothing is known yet"
	case c.since.IsZero():
		return "predictions have not come true yet"
	}
	return "predictions did not come true"
}

// Known is what is known of how long the engines of a pool take that are of one class of hardware.
type Known struct {
	AcceleratorKey
	// Trusted says that predictions by it decide, if those of all classes of the pool are. Why says why, or why not, in a few words, and Since since
	// when; it is zero where that never changed.
	Trusted bool
	Why     string
	Since   time.Time
	// Rows is how many measurements were learned from, and Residual by what share the latest predictions were off in the median, before they were.
	Rows     int
	Residual float64
	// Profile is of an engine as most are, and Factors how many times as long those take that differ, by address.
	Profile profile.Profile
	Factors map[string]float64
}

// Known is what is known of how long engines take, in order of pools and classes of hardware.
func (s *EngineTimes) Known() []Known {
	var all []Known
	for _, key := range s.acceleratorKeys() {
		c := s.times[key.Pool].accelerators[key.Class]
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

// AcceleratorKey is a class of hardware of a pool.
type AcceleratorKey struct {
	Pool  objects.Name
	Class string // empty where nobody tells any apart
}

// acceleratorKeys are those of endpoints that are there, in order.
func (s *EngineTimes) acceleratorKeys() (all []AcceleratorKey) {
	for name, t := range s.times {
		for of := range t.accelerators {
			all = append(all, AcceleratorKey{name, of})
		}
	}
	slices.SortFunc(all, func(a, b AcceleratorKey) int {
		return cmp.Or(a.Pool.Compare(b.Pool), strings.Compare(a.Class, b.Class))
	})
	return all
}

// members are the endpoints of a pool that are of a class of hardware, by address.
func (s *EngineTimes) members(pool objects.Name, c *accelerator) iter.Seq2[string, *timed] {
	return func(yield func(string, *timed) bool) {
		for _, declared := range s.world.Pools[pool].Endpoints {
			if e := s.endpoints[declared.Address].times[pool]; e.class == c && !yield(declared.Address, e) {
				return
			}
		}
	}
}

// known returns the current profile of an accelerator class, under a name of its own if learning has changed its times. Its limits are those that
// predictions use: as the engines report them, if they do.
func (s *EngineTimes) known(key AcceleratorKey, c *accelerator) profile.Profile {
	p := c.Learner.Profile()
	learned := p != c.prior.Profile
	s.reported(key, c, &p.Limits)
	if !learned {
		return p
	}
	p.Source = fmt.Sprintf("TrustChange by extproc of %d measurements, of which the latest were off by %.0f %% in the median. It began with: %s", c.Rows(), 100*c.Residual(), p.Name)
	if p.Name = "Engines of " + key.Pool.String(); key.Class != "" {
		p.Name += " on " + key.Class
	}
	return p
}

// reported sets limits to those that the engines of an accelerator class report. If they differ, the lowest counts.
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

// fresh is the endpoint's profile, with so many adapter slots where nobody said how many there are. It is another one where what is learned has
// changed by more than slightly, and not often.
func (t *timed) fresh(now time.Time, slots int) *profile.Profile {
	if since := now.Sub(t.made); t.profile == nil || since >= freshly {
		t.made = now
		p := t.class.Of(&t.Engine)
		if l := &p.Limits; l.GPUAdapters == 0 {
			l.GPUAdapters = slots
		}
		if t.profile == nil || differ(&p, t.profile) {
			t.profile = &p
		}
	}
	return t.profile
}

// differ says whether a time that is learned differs by more than slightly, or a limit at all.
func differ(p, q *profile.Profile) bool {
	far := func(a, b float64) bool { return math.Abs(a-b) > slightly*b }
	return p.Limits != q.Limits || far(p.Decode.Base, q.Decode.Base) || far(p.Decode.PerSequence, q.Decode.PerSequence) || far(p.Decode.PerKVToken, q.Decode.PerKVToken) ||
		far(p.Prefill.PerToken, q.Prefill.PerToken) || far(p.Prefill.Base, q.Prefill.Base) || far(p.FrontendOverhead, q.FrontendOverhead) || far(p.AdapterLoad.Mean, q.AdapterLoad.Mean) || far(p.AdapterActivation.Mean, q.AdapterActivation.Mean)
}

// fewestSlots is the least number of adapter slots that an endpoint of a pool reports: what is assumed of those that report none. It is 0 where
// none does.
func (s *EngineTimes) fewestSlots(p *objects.Pool) (fewest int) {
	for _, declared := range p.Endpoints {
		if n, _ := s.endpoints[declared.Address].slots(); n > 0 && (fewest == 0 || n < fewest) {
			fewest = n
		}
	}
	return fewest
}

// others is what requests of which nobody tells have at an endpoint, as of the latest look.
type others struct{ requests, tokens int64 }

// othersOf is what they have of what a look found, beside so many that are told of.
func (e *endpoint) othersOf(load engine.Load, told int64) (o others) {
	o.requests = max(0, int64(load.Running.Or(0)+load.Waiting.Or(0))-told)
	if o.requests > 0 {
		o.tokens = max(0, int64(load.KVUsage.Or(0)*load.KVTokens.Or(0))-e.backlog.Tokens.Load()-e.peers.Tokens.Load())
	}
	return o
}

// predict sets the fields of p that predictions by a profile need. It sets the number of slots only if the profile is trusted.
func (e *endpoint) predict(p *pick.Endpoint, times *profile.Profile, trusted bool) {
	p.Profile = times
	p.KVTokens = int64(e.load.KVTokens.Or(float64(times.Limits.KVBlocks * times.Limits.BlockSize)))
	p.OthersBeside = times.Decode.PerSequence*float64(e.others.requests) + times.Decode.PerKVToken*float64(e.others.tokens)
	slots, host := e.adapterRoom()
	e.resident.Resize(slots, host)
	if trusted {
		p.Slots = int64(slots)
	}
}

// maxSlots and maxHost bound how many adapters an engine, or somebody, may say that there is room for in slots and in host memory.
const maxSlots, maxHost = 1024, 16384

// slots is how many adapter slots the engine reports.
func (e *endpoint) slots() (slots int, known bool) {
	n, known := e.load.MaxAdapters.Get()
	return int(min(n, maxSlots)), known
}

// adapterRoom is for how many adapters the endpoint has slots, and room in host memory: of what its pools say of it the most, for it is one
// engine.
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

// begunAnew forgets which adapters the endpoint holds: another engine is there now.
func (e *endpoint) begunAnew() {
	for _, c := range e.models {
		e.resident.Drop(c)
	}
}

// active notes that the engine reports adapters as active: they are in slots, or wait for one.
func (e *endpoint) active(names []string) {
	for _, name := range names {
		e.resident.Use(e.count(name))
	}
}
