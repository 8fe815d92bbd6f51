package belief

import (
	"maps"
	"math"
	"slices"
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

// times is how long the engines of a pool take, as far as it is learned.
type times struct {
	prior    profile.Profile // what somebody said, or nobody
	said     bool
	learners map[string]*learn.Learner // by hardware, that of endpoints which are gone too: they may come back
	classes  map[string]*learn.Learner // those among them of endpoints that are there
	trusted  bool                      // what is learned of all classes
}

// timed is how long one endpoint takes, as one of a pool.
type timed struct {
	learn.Engine
	learner *learn.Learner
	profile *profile.Profile // nil until it is asked for
	made    time.Time        // when it was last asked whether there is another one
}

// Learned is that predictions for a pool are trusted from now on, or are not any more.
type Learned struct {
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
func (s *State) TakeLearned() []Learned {
	news := s.learned
	s.learned = nil
	return news
}

// setTimes has what is learned be of the pools that there are, each from what its objects say of it.
func (s *State) setTimes() {
	maps.DeleteFunc(s.times, func(name objects.Name, _ *times) bool { return s.world.Pools[name] == nil })
	for name, p := range s.world.Pools {
		prior, said := s.generic, p.Profile != nil
		if said {
			prior = *p.Profile
		}
		t := s.times[name]
		if t == nil || t.said != said || t.prior != prior {
			t = &times{prior: prior, said: said, trusted: said, learners: make(map[string]*learn.Learner)}
			s.times[name] = t
		}
		t.classes = make(map[string]*learn.Learner)
		for _, declared := range p.Endpoints {
			learner := t.learners[declared.Class]
			if learner == nil {
				learner = learn.New(prior, said)
				t.learners[declared.Class] = learner
			}
			t.classes[declared.Class] = learner
			e := s.endpoints[declared.Address]
			if is := e.times[name]; is == nil || is.learner != learner {
				e.forget(name)
				e.times[name] = &timed{learner: learner}
			}
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

// forget ends that the endpoint counts among those of a pool.
func (e *endpoint) forget(pool objects.Name) {
	if t := e.times[pool]; t != nil {
		t.learner.Forget(&t.Engine)
		delete(e.times, pool)
	}
}

// learn tells of a look at an endpoint.
func (s *State) learn(address string, e *endpoint, began time.Time, load *engine.Load) {
	if s.origin.IsZero() {
		s.origin = began
	}
	for _, name := range s.pools[address] {
		t := e.times[name]
		t.learner.Saw(&t.Engine, began.Sub(s.origin).Seconds(), load)
	}
}

// predictable says whether the endpoints of a pool are to be predicted, which is told of where it changes: what is learned of every class of
// hardware is trusted then.
func (s *State) predictable(pool objects.Name) bool {
	t := s.times[pool]
	trusted := true
	for _, l := range t.classes {
		trusted = trusted && l.Trusted()
	}
	if trusted == t.trusted || len(t.classes) == 0 { // nothing is news of a pool that has no endpoint
		return trusted
	}
	t.trusted = trusted
	var why *learn.Learner
	for _, class := range slices.Sorted(maps.Keys(t.classes)) {
		if l := t.classes[class]; why == nil || why.Trusted() && (!l.Trusted() || l.Residual() > why.Residual()) {
			why = l
		}
	}
	news := Learned{Pool: pool, Trusted: trusted, Why: "predictions came true", Residual: why.Residual(), Rows: why.Rows()}
	switch {
	case !trusted && why.Rows() == 0:
		news.Why = "there is hardware of which nothing is known yet"
	case !trusted:
		news.Why = "predictions did not come true"
	}
	s.learned = append(s.learned, news)
	return trusted
}

// fresh is the endpoint's profile, with so many adapter slots where nobody said how many there are. It is another one where what is learned has
// changed by more than slightly, and not often.
func (t *timed) fresh(now time.Time, slots int) *profile.Profile {
	if since := now.Sub(t.made); t.profile == nil || since >= freshly || since < 0 {
		t.made = now
		p := t.learner.Of(&t.Engine)
		if l := &p.Limits; l.GPUAdapters == 0 {
			l.GPUAdapters, l.HostAdapters = slots, max(slots, l.HostAdapters)
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
		far(p.Prefill.PerToken, q.Prefill.PerToken) || far(p.Prefill.Base, q.Prefill.Base) || far(p.Load.Mean, q.Load.Mean)
}

// fewestSlots is the least number of adapter slots that an endpoint of a pool reports: what is assumed of those that report none. It is 0 where
// none does.
func (s *State) fewestSlots(p *objects.Pool) (fewest int) {
	for _, declared := range p.Endpoints {
		if n := int(s.endpoints[declared.Address].load.MaxAdapters.Or(0)); n > 0 && (fewest == 0 || n < fewest) {
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
		o.tokens = max(0, int64(load.KVUsage.Or(0)*load.KVTokens.Or(0))-e.backlog.Held.Load()-e.peers.Held.Load())
	}
	return o
}

// predict adds to what a decision needs of the endpoint what predictions by a profile do, which may be nil.
func (e *endpoint) predict(p *pick.Endpoint, times *profile.Profile) {
	if p.Profile = times; times == nil {
		return
	}
	p.KVTokens = int64(e.load.KVTokens.Or(float64(times.Limits.KVBlocks * times.Limits.BlockSize)))
	p.OthersBeside = times.Decode.PerSequence*float64(e.others.requests) + times.Decode.PerKVToken*float64(e.others.tokens)
	if _, known := e.load.MaxAdapters.Get(); !known {
		p.Slots = int64(times.Limits.GPUAdapters)
	}
	e.makeRoom(int(p.Slots), times.Limits.HostAdapters)
	p.Resident = e.resident
}

// makeRoom makes the endpoint one of so many adapter slots, with host memory for so many adapters. Adapters stay as far as there is room.
func (e *endpoint) makeRoom(slots, host int) {
	had, of := e.resident.Room()
	if slots == had && max(slots, host) == of {
		return
	}
	e.resident = e.resident.Resized(slots, host)
}

// begunAnew forgets which adapters the endpoint holds: another engine is there now.
func (e *endpoint) begunAnew() {
	slots, host := e.resident.Room()
	for _, c := range e.models {
		e.resident.Drop(c)
	}
	e.resident = nil
	e.makeRoom(slots, host)
}

// active notes that the engine reports adapters as active: they are in slots, or wait for one.
func (e *endpoint) active(names []string) {
	for _, name := range names {
		e.resident.Use(e.count(name))
	}
}
