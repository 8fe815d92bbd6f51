package endpointstate

import (
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// View is the input of decisions at one moment: objects, and the endpoints that match them. It is
// immutable except for the counters that its snapshot points to.
type View struct {
	World    *objects.World
	Snapshot *pick.Snapshot
	// Failures are the models that currently cannot be loaded, each with a machine-readable reason.
	Failures map[objects.ModelKey]string
	// Methods are the gRPC methods that engines accept, by endpoint, if control reports them.
	Methods map[string]engine.Methods
}

// members are the endpoints of one pool, and their part of the latest view. The next view evaluates
// only the endpoints that have changed, or that may have changed by the passage of time alone. It
// shares all others with the latest view, so its cost does not grow with the number of endpoints,
// apart from copying one pointer and comparing one time for each.
type members struct {
	pool     *objects.Pool
	name     string // name of the pool in snapshots
	settings settings.Settings
	all      []member
	due      *[]int          // indexes of the endpoints to evaluate; each timed appends its own
	until    []time.Duration // when each endpoint is due without a change, since State.origin
	latest   []*pick.Endpoint
	trusted  bool // whether predictions are trusted
	open     bool // whether suspect endpoints are treated as healthy; see judge
	slots    int  // least number of adapter slots that an endpoint reports; 0 if none reports any

	states [len(pick.States)]int // number of endpoints by their own state
	faulty int                   // number of endpoints with a recent fault
}

// member is an endpoint as a member of one pool, when it was last evaluated.
type member struct {
	*endpoint
	*timed
	state  pick.State // its own state; the view has another one if the pool fails open
	faulty bool       // whether a recent fault is the reason for the state
	slots  int        // number of adapter slots that it reports
}

// newMembers returns the members of a pool. All of them are due.
func newMembers(s *State, p *objects.Pool) *members {
	n := len(p.Endpoints)
	m := &members{
		pool: p, name: p.Name.String(), settings: s.Settings.For(p), due: new([]int),
		all: make([]member, n), until: make([]time.Duration, n), latest: make([]*pick.Endpoint, n),
	}
	m.states[pick.Healthy] = n
	for i := range p.Endpoints {
		e := s.endpoints[p.Endpoints[i].Address]
		t := e.times[p.Name]
		t.due, t.index, t.isDue = m.due, i, false
		m.all[i] = member{endpoint: e, timed: t}
	}
	m.touchAll()
	return m
}

// touch makes the endpoint due. It has no effect before the endpoint is in members.
func (t *timed) touch() {
	if t.due != nil && !t.isDue {
		t.isDue = true
		*t.due = append(*t.due, t.index)
	}
}

func (m *members) touchAll() {
	for i := range m.all {
		m.all[i].touch()
	}
}

// touch marks the pools of an endpoint as changed, and makes the endpoint due in each of them.
func (s *State) touch(address string) {
	for _, name := range s.pools[address] {
		s.changed[name] = true
		s.endpoints[address].times[name].touch()
	}
}

// index is like touch, and drops the indexes of the endpoint's pools.
func (s *State) index(address string) {
	s.touch(address)
	for _, name := range s.pools[address] {
		delete(s.indexes, name)
	}
}

// indexAll drops all indexes and makes all endpoints due.
func (s *State) indexAll() {
	s.indexes = make(map[objects.Name]*pick.Index, len(s.world.Pools))
	for _, m := range s.members {
		m.touchAll()
	}
	s.Age()
}

// Age marks all pools as changed: silent endpoints become stale by the passage of time alone.
func (s *State) Age() {
	clear(s.changed)
	for name := range s.world.Pools {
		s.changed[name] = true
	}
}

// Changed reports whether a new view would differ from the latest one.
func (s *State) Changed() bool { return len(s.changed) > 0 }

// View returns a view of the current state, and the pools that started or stopped to fail open.
// Pools and endpoints without changes are shared with the previous view. Call [State.Seal] after
// the view is published.
func (s *State) View(now time.Time) (*View, []FailOpenChange) {
	if s.origin.IsZero() {
		s.origin = now
	}
	var told []FailOpenChange
	pools := maps.Clone(s.latest)
	if pools == nil {
		pools = make(map[string]*pick.Pool, len(s.world.Pools))
	}
	for name := range s.changed {
		m := s.members[name]
		if s.indexes[name] == nil {
			s.indexes[name] = s.indexOf(m.pool)
			for i := range m.all {
				s.unsealed = append(s.unsealed, m.all[i].endpoint)
			}
		}
		if t, news := m.evaluate(s, now); news {
			told = append(told, t)
		}
		pools[m.name] = &pick.Pool{Endpoints: m.latest, Predictable: m.trusted, Index: *s.indexes[name]}
	}
	clear(s.changed)
	s.latest = pools
	return &View{World: s.world, Snapshot: &pick.Snapshot{Pools: pools}, Failures: s.control.failures, Methods: s.control.methods}, told
}

// evaluate replaces the endpoints that are due. News reports whether the pool started or stopped to
// fail open.
func (m *members) evaluate(s *State, now time.Time) (t FailOpenChange, news bool) {
	if trusted := s.Times.predictable(m.pool.Name); trusted != m.trusted {
		m.trusted = trusted
		m.touchAll()
	}
	since := now.Sub(s.origin)
	for i, until := range m.until {
		if until <= since {
			m.all[i].touch()
		}
	}
	if len(*m.due) > 0 {
		m.latest = slices.Clone(m.latest) // the latest view has the other one
		m.findSlots()
		for _, i := range *m.due {
			m.until[i] = since + m.renew(s, i, now)
		}
		m.judge()
		m.stand(s, now)
	}
	lost, out := m.states[pick.Lost], m.states[pick.Out]
	open := m.open || (lost > 0 && lost+out == len(m.all))
	news = open != s.failOpen[m.pool.Name]
	s.failOpen[m.pool.Name] = open
	return FailOpenChange{m.pool.Name, open, m.faulty, lost}, news
}

// findSlots updates the least number of adapter slots.
func (m *members) findSlots() {
	changed := false
	for _, i := range *m.due {
		is := &m.all[i]
		n, _ := is.endpoint.slots()
		is.slots, changed = n, changed || n != is.slots
	}
	if !changed {
		return
	}
	m.slots = 0
	for i := range m.all {
		if n := m.all[i].slots; n > 0 && (m.slots == 0 || n < m.slots) {
			m.slots = n
		}
	}
}

// renew replaces an endpoint, in its own state. It returns for how long the result holds if nothing
// changes.
func (m *members) renew(s *State, i int, now time.Time) (holds time.Duration) {
	is, declared := &m.all[i], &m.pool.Endpoints[i]
	p, reason := s.snapshot(is.endpoint, *declared, now, m.settings)
	is.predict(p, is.fresh(now, m.slots), m.trusted)
	m.latest[i] = p
	if is.faulty {
		m.faulty--
	}
	m.states[is.state]--
	is.state, is.reason, is.faulty = p.State, reason, reason == RequestsFail
	m.states[is.state]++
	if is.faulty {
		m.faulty++
	}
	return min(stateHolds(s, is.endpoint, declared, now, m.settings), freshly-now.Sub(is.made))
}

// judge treats suspect endpoints as healthy if faults count against most of the endpoints that
// answer scrapes. In that case the requests are probably at fault, and the few healthy endpoints
// must not get all traffic.
func (m *members) judge() {
	most := m.faulty > 1 && 2*m.faulty > m.states[pick.Healthy]+m.states[pick.Suspect]
	if most != m.open {
		m.open = most
		for i := range m.all {
			if is := &m.all[i]; is.faulty && !is.isDue {
				changed := *m.latest[i]
				changed.State = is.state
				m.latest[i] = &changed
				is.touch()
			}
		}
	}
	if most {
		for _, i := range *m.due {
			if m.all[i].faulty {
				m.latest[i].State = pick.Healthy
			}
		}
	}
}

// stand records the new states of the endpoints that are due. No endpoint is due afterwards.
func (m *members) stand(s *State, now time.Time) {
	slices.Sort(*m.due)
	for _, i := range *m.due {
		is := &m.all[i]
		is.isDue = false
		if from, moved := is.stand(m.latest[i].State, now); moved {
			cause := is.cause(is.standing.Reason, now)
			s.Moves.all = append(s.Moves.all, Move{m.pool.Name, m.latest[i].Address, from, is.standing, cause})
		}
	}
	*m.due = (*m.due)[:0]
}

// Seal closes the counts of models that the latest view has dropped, and deletes unused counts. A
// request that was decided with an older view first counts itself, and then checks whether its
// count is closed. So after Seal, each such request is either counted by InFlight or goes
// elsewhere.
func (s *State) Seal() {
	for _, e := range s.unsealed {
		e.close(s.Placed)
	}
	s.unsealed = nil
}
