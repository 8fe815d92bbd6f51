package place

import (
	"cmp"
	"math"
	"slices"
)

// Constants of ModelMesh (ModelMesh.java, ModelMeshApi.java); times are in seconds. mmLoadTimeout
// is the load timeout of its built-in adapters.
const (
	mmLoadTimeout  = 30.0
	mmAssumeLoaded = mmLoadTimeout / 3 // assumed duration of a load until three were measured
	mmChurnAge     = 10 * mmAssumeLoaded
	mmTries        = 8      // maximum number of endpoints that a request tries
	mmScaleUp      = 2000.0 // requests per minute at one copy that add a copy
	mmHeavy        = mmScaleUp * 3 / 4
	mmRateCheck    = 10.0
	mmJanitor      = 360.0
	mmReaper       = 420.0
	mmReaperFirst  = 120.0
	mmLastUsed     = 6 * 3600.0 // age of the assumed last use of a model that is registered at the start
	mmFirst        = 2 * 3600.0 // priority of a load for which requests wait
	mmSecondMin    = 42         // a second copy needs an earlier use at least 42 rate checks (7 minutes) ago
	mmSecondMax    = 240        // a second copy needs an earlier use at most 240 rate checks (40 minutes) ago
)

// modelmesh follows the source of kserve/modelmesh, or its intention where the source has a defect.
// Each endpoint is an instance with a cache of entries in order of last use. Simplifications,
// mostly in favour of ModelMesh: decisions see the current state of all endpoints (real instances
// publish theirs every 2 s to 40 s), nothing fails, an unload waits only for requests, loads are
// never aborted, and all models have one type and all instances one program version.
type modelmesh struct {
	*Fleet
	churnAge float64 // seconds; a full endpoint rejects loads while its oldest entry is younger
	nodes    []mmNode
	entries  [][]*mmEntry // by model: its entries in all caches
	used     []float64    // by model: time of its last use
	unload   []float64    // by model: when it last lost a copy while more than two remained
	loads    mmTimes
	checks   int
}

// mmNode is the state of an instance.
type mmNode struct {
	entries []*mmEntry
	loading int
	// requests is the number of requests that the instance ever got. minutes has that number at the
	// end of each of the last seven minutes.
	requests int
	minutes  []int
}

// mmEntry is a model in the cache of an instance: queued, loading or loaded.
type mmEntry struct {
	model, endpoint int
	used            float64 // last use of this entry, not of its model
	began, ended    float64 // when the entry was inserted, and when its load ended
	priority        float64
	loading         bool
	copy            *Copy // nil until the load begins

	count  int     // requests since the last rate check
	rpm    float64 // requests per minute before that check
	heavy  float64 // when the rate last exceeded mmHeavy; 0 for never
	run    int     // number of the rate check that began the current use without pauses of mmSecondMin checks
	before int     // number of the last rate check of the use before the current one; 0 for none
	latest int     // number of the last rate check that saw a request; 0 for none
}

// queued reports whether the load has not begun. loaded reports whether it has ended.
func (e *mmEntry) queued() bool { return !e.loading && e.copy == nil }
func (e *mmEntry) loaded() bool { return e.copy != nil && e.copy.State == Loaded }

// ModelMesh is the policy of kserve/modelmesh.
func ModelMesh() Policy { return &modelmesh{churnAge: mmChurnAge} }

// ModelMeshNoLimit is ModelMesh with tas.min_churn_age_ms 0: full endpoints accept loads even if
// all their models were just used.
func ModelMeshNoLimit() Policy { return &modelmesh{} }

// Start fills the caches with the loaded models and schedules periodic tasks.
func (m *modelmesh) Start(f *Fleet) {
	m.Fleet, m.nodes = f, make([]mmNode, len(f.Nodes))
	m.entries, m.used, m.unload = make([][]*mmEntry, f.Models), make([]float64, f.Models), make([]float64, f.Models)
	m.loads.assume = mmAssumeLoaded
	for model := range m.used {
		m.used[model], m.unload[model] = -mmLastUsed, math.Inf(-1)
	}
	if f.Warm {
		for rank, model := range ranked(f.rate(0)) { // as if the most popular models had been used most recently
			for _, c := range f.Copies[model] {
				m.used[model] = -float64(rank+1) / 1000
				e := m.insert(model, c.Endpoint, m.used[model])
				e.began, e.ended, e.copy = -3600, -3600, c
			}
		}
	}
	f.Every(60, 60, m.minute)
	f.Every(mmRateCheck, mmRateCheck, m.check)
	f.Every(mmJanitor, mmJanitor, m.janitor)
	f.Every(mmReaperFirst, mmReaper, m.reap)
}

// room returns the bytes for models: the capacity minus a reserve, which lets loads start before
// unloads end. The reserve is half of the mean size of the models that load in parallel (a quarter
// if more than two do), but at least 1 % and at most 10 % of the capacity
// (ModelCacheUnloadBufManager.java).
func (m *modelmesh) room() int64 {
	reserve := int64(m.AtOnce) * meanSize / 2
	if m.AtOnce > 2 {
		reserve /= 2
	}
	return m.Capacity - min(max(reserve, m.Capacity/100), m.Capacity/10)
}

// remaining returns the bytes of an instance that no entry uses.
func (m *modelmesh) remaining(endpoint int) int64 {
	left := m.room()
	for _, e := range m.nodes[endpoint].entries {
		left -= m.Size[e.model]
	}
	return left
}

// full reports whether the remaining bytes are negligible.
func (m *modelmesh) full(remaining int64) bool {
	return remaining < max(meanSize, min(int64(m.AtOnce)*meanSize, m.Capacity/20))
}

// oldest returns when the least recently used entry of an instance was used; infinity if there is
// no entry.
func (n *mmNode) oldest() float64 {
	is := math.Inf(1)
	for _, e := range n.entries {
		is = min(is, e.used)
	}
	return is
}

// free returns the free share of the total capacity, in instances that are not full, and the age in
// seconds of the oldest entry of all instances.
func (m *modelmesh) free() (share, age float64) {
	var left, all int64
	oldest := m.Now()
	for e := range m.Nodes {
		if m.Nodes[e].Up {
			all += m.room()
			if r := m.remaining(e); !m.full(r) {
				left += r
			}
			oldest = min(oldest, m.nodes[e].oldest())
		}
	}
	return float64(left) / float64(max(all, 1)), m.Now() - oldest
}

// rpm returns the requests per minute of an instance, averaged over six to seven minutes
// (RateTracker.java).
func (n *mmNode) rpm(now float64) float64 {
	passed := min(now, float64(len(n.minutes))*60+math.Mod(now, 60))
	if passed <= 0 {
		return 0
	}
	before := 0
	if len(n.minutes) > 6 {
		before, passed = n.minutes[0], 360+math.Mod(now, 60)
	}
	return float64(n.requests-before) * 60 / passed
}

func (m *modelmesh) minute() {
	for e := range m.nodes {
		n := &m.nodes[e]
		if n.minutes = append(n.minutes, n.requests); len(n.minutes) > 7 {
			n.minutes = n.minutes[1:]
		}
	}
}

// Request marks the entry that serves the request as used. If no entry is loaded, it raises the
// priority of the oldest load. If there is no entry, it tries one endpoint after another, and fails
// the request if none accepts the model.
func (m *modelmesh) Request(model int, _ bool) {
	m.used[model] = m.Now()
	var first *mmEntry
	for _, e := range m.entries[model] {
		if m.Served != nil && e.copy == m.Served {
			m.touch(e)
			return
		}
		if first == nil || e.began < first.began {
			first = e
		}
	}
	if first == nil {
		if first = m.ensure(model, m.Now(), true); first == nil {
			m.Refuse(model)
			return
		}
	} else if first.queued() && first.priority < m.Now()+mmFirst/2 {
		first.priority = m.Now() + mmFirst
	}
	m.touch(first)
	m.begin(first.endpoint)
}

func (m *modelmesh) touch(e *mmEntry) {
	e.used = max(e.used, m.Now())
	e.count++
	m.nodes[e.endpoint].requests++
}

// ensure loads a model on another endpoint that is not excluded. used is the time that is entered
// as its last use. ensure returns nil if no endpoint accepts the model.
func (m *modelmesh) ensure(model int, used float64, waits bool, exclude ...int) *mmEntry {
	if m.Size[model] > m.room() {
		return nil
	}
	for range mmTries {
		endpoint := m.target(model, used, exclude)
		if endpoint < 0 {
			return nil
		}
		if m.takes(model, endpoint, used) {
			e := m.insert(model, endpoint, used)
			if e.priority = used; waits {
				e.priority = m.Now() + mmFirst
			}
			m.begin(endpoint)
			return e
		}
		exclude = append(exclude, endpoint)
	}
	return nil
}

// takes returns true if an endpoint accepts a model. A full endpoint rejects the model if the
// endpoint's oldest entry was just used, or if the model was used before every entry that would be
// evicted.
func (m *modelmesh) takes(model, endpoint int, used float64) bool {
	left, oldest := m.remaining(endpoint), m.nodes[endpoint].oldest()
	return !(m.full(left) && m.Now()-oldest < m.churnAge) && (left >= m.Size[model] || used >= oldest)
}

// has returns true if a model is in the cache of an endpoint.
func (m *modelmesh) has(model, endpoint int) bool {
	return slices.ContainsFunc(m.entries[model], func(is *mmEntry) bool { return is.endpoint == endpoint })
}

// insert adds an entry to a cache.
func (m *modelmesh) insert(model, endpoint int, used float64) *mmEntry {
	e := &mmEntry{model: model, endpoint: endpoint, used: used, began: m.Now(), ended: math.Inf(1)}
	m.entries[model] = append(m.entries[model], e)
	m.nodes[endpoint].entries = append(m.nodes[endpoint].entries, e)
	return e
}

// remove removes an entry and unloads the model.
func (m *modelmesh) remove(e *mmEntry) {
	n := &m.nodes[e.endpoint]
	same := func(other *mmEntry) bool { return other == e }
	n.entries = slices.DeleteFunc(n.entries, same)
	m.entries[e.model] = slices.DeleteFunc(m.entries[e.model], same)
	if e.copy != nil {
		m.Unload(e.copy)
	}
}

// begin starts queued loads by priority, up to the limit. It evicts models, least recently used
// first, only when a load starts. It drops a load if all models there were used after its model.
func (m *modelmesh) begin(endpoint int) {
	n := &m.nodes[endpoint]
	for n.loading < m.AtOnce {
		var next *mmEntry
		for _, e := range n.entries {
			if e.queued() && (next == nil || e.priority > next.priority) {
				next = e
			}
		}
		if next == nil {
			return
		}
		next.loading = true
		if !m.makeRoom(next) {
			next.loading = false
			if n.loading > 0 { // running loads occupy the room, and may be evicted when they have ended
				return
			}
			m.remove(next)
			m.loop.At(m.Now(), func() { m.again(next.model) })
			continue
		}
		n.loading++
		next.began = m.Now()
		next.copy = m.Load(next.model, endpoint)
	}
}

// makeRoom evicts the least recently used models until the next entry fits. It also evicts queued
// entries in that order, although they occupy no room yet; their waiting requests go to another
// endpoint.
func (m *modelmesh) makeRoom(next *mmEntry) bool {
	left := m.room()
	var old []*mmEntry
	for _, e := range m.nodes[next.endpoint].entries {
		if !e.queued() {
			left -= m.Size[e.model]
		}
		if e != next && e.used <= next.used && (e.queued() || e.loaded()) {
			old = append(old, e)
		}
	}
	slices.SortStableFunc(old, func(a, b *mmEntry) int { return cmp.Compare(a.used, b.used) })
	going := 0
	for ; left < 0 && going < len(old); going++ {
		if old[going].copy != nil {
			left += m.Size[old[going].model]
		}
	}
	if left < 0 {
		return false
	}
	m.nodes[next.endpoint].loading++ // so that no other load starts in this room
	defer func() { m.nodes[next.endpoint].loading-- }()
	for _, e := range old[:going] {
		m.remove(e)
		if e.copy == nil {
			m.loop.At(m.Now(), func() { m.again(e.model) })
		} else if free, _ := m.free(); m.Now()-e.ended > 2*mmLoadTimeout && free >= 0.05 {
			m.ensure(e.model, e.used, false, e.endpoint)
		}
	}
	return true
}

// again finds another endpoint for the waiting requests of a model whose entry was removed.
func (m *modelmesh) again(model int) {
	if len(m.waiting[model]) > 0 && len(m.entries[model]) == 0 && m.ensure(model, m.Now(), true) == nil {
		m.Refuse(model)
	}
}

// target returns the endpoint that should load a model (CacheMissForwardingLB); -1 if no endpoint
// can.
func (m *modelmesh) target(model int, used float64, exclude []int) int {
	var all []mmCandidate
	for e := range m.Nodes {
		if m.Nodes[e].Up && !slices.Contains(exclude, e) && !m.has(model, e) {
			all = append(all, m.candidate(e))
		}
	}
	if len(all) == 0 {
		return -1
	}
	slices.SortFunc(all, compareCandidates)
	best, short := all[0], 1
	for _, c := range all[1:] {
		if best.full {
			if apart := c.oldest - best.oldest; apart > 45 && apart > (m.Now()-best.oldest)/10 {
				break
			}
		} else if c.full || c.remaining < best.remaining/4 || c.count >= 10 && float64(c.count) > 1.25*float64(best.count) {
			break
		}
		short++
	}
	all = all[:short]
	least := math.Inf(1)
	for _, c := range all {
		least = min(least, c.rpm)
	}
	factor := 4.0
	switch ago := m.Now() - used; {
	case ago < -1: // last use in the future: a new copy of a busy model
		factor = 1.1
	case ago < 5:
		factor = 1.5
	case ago < 12*60:
		factor = 3
	}
	all = slices.DeleteFunc(all, func(c mmCandidate) bool { return c.rpm >= 100 && c.rpm > factor*max(100, least) })
	return all[m.Random.IntN(len(all))].endpoint
}

// mmCandidate has the properties of an endpoint that decide the placement order.
type mmCandidate struct {
	endpoint, count, loading int
	full                     bool
	remaining                int64
	oldest, rpm              float64
}

func (m *modelmesh) candidate(endpoint int) mmCandidate {
	n := &m.nodes[endpoint]
	c := mmCandidate{
		endpoint: endpoint, count: len(n.entries), loading: n.loading, remaining: m.remaining(endpoint), oldest: m.nodes[endpoint].oldest(),
		rpm: m.nodes[endpoint].rpm(m.Now()),
	}
	c.full = m.full(c.remaining)
	return c
}

// compareCandidates sorts endpoints in the order in which they are chosen for a load
// (PLACEMENT_ORDER).
func compareCandidates(a, b mmCandidate) int {
	if a.full != b.full {
		if a.full {
			return 1
		}
		return -1
	}
	byAge := cmp.Compare(a.oldest, b.oldest)
	if a.full && byAge != 0 {
		return byAge
	}
	return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(b.remaining, a.remaining), byAge,
		cmp.Compare(a.loading, b.loading), cmp.Compare(a.rpm, b.rpm), cmp.Compare(a.endpoint, b.endpoint))
}

// check runs on each instance every 10 s for recently used models. It adds a second copy if the
// model was also used 7 to 40 minutes ago, and if either a tenth of the fleet is free or nothing
// was evicted for 20 hours. (ModelMesh's own test excludes models in constant use, which is not
// intended.) It adds further copies if one copy gets too many requests.
func (m *modelmesh) check() {
	m.checks++
	free, age := m.free()
	up := 0
	for e := range m.Nodes {
		if m.Nodes[e].Up {
			up++
		}
	}
	if up < 2 {
		return
	}
	for endpoint := range m.nodes {
		for _, e := range slices.Clone(m.nodes[endpoint].entries) {
			e.rpm = float64(e.count) * 60 / mmRateCheck
			if e.count == 0 {
				continue
			}
			e.count = 0
			if e.rpm > mmHeavy {
				e.heavy = m.Now()
			}
			if e.latest == 0 || m.checks-e.latest >= mmSecondMin {
				e.run, e.before = m.checks, e.latest
			}
			e.latest = m.checks
			if !e.loaded() {
				continue
			}
			switch copies := len(m.entries[e.model]); {
			case e.rpm >= mmScaleUp:
				m.more(e, up)
			case copies == 1 && e.earlier(m.checks) && (free >= 0.1 || age > 20*3600):
				m.ensure(e.model, m.Now()-mmRateCheck, false)
			}
		}
	}
}

// earlier reports whether an entry that is in use was also used 7 to 40 minutes ago.
func (e *mmEntry) earlier(checks int) bool {
	return checks-e.run >= mmSecondMin || e.before > 0 && checks-e.before <= mmSecondMax
}

// more adds copies of a model that gets too many requests at one endpoint, unless a recent copy has
// not taken effect yet or the fleet is too busy. A new copy is entered as if it were used 20 s from
// now.
func (m *modelmesh) more(e *mmEntry, up int) {
	for _, other := range m.entries[e.model] {
		if other != e && m.Now()-other.began < 2*mmRateCheck+2*m.loads.assume {
			return
		}
	}
	exclude, candidates := []int{}, 0
	limit := max(4*mmScaleUp, m.nodes[e.endpoint].rpm(m.Now())-2*mmScaleUp)
	for endpoint := range m.Nodes {
		switch {
		case !m.Nodes[endpoint].Up || m.has(e.model, endpoint):
		case m.nodes[endpoint].rpm(m.Now()) > limit:
			exclude = append(exclude, endpoint)
		default:
			candidates++
		}
	}
	k := min(int(e.rpm/mmScaleUp), candidates)
	if k > 2 {
		k = min(k, up/3)
	}
	for range k {
		if m.ensure(e.model, m.Now()+20, false, exclude...) == nil {
			return
		}
	}
}

// janitor runs on each instance every 6 minutes. If the fleet is full, it removes superfluous
// copies, least recently used first, up to a twentieth of the capacity of the instance.
func (m *modelmesh) janitor() {
	for endpoint := range m.nodes {
		all := slices.Clone(m.nodes[endpoint].entries)
		slices.SortStableFunc(all, func(a, b *mmEntry) int { return cmp.Compare(a.used, b.used) })
		gone := int64(0)
		for _, e := range all {
			if gone > 0 && gone+m.Size[e.model] > m.room()/20 {
				break
			}
			if m.superfluous(e) {
				gone += m.Size[e.model]
				if len(m.entries[e.model]) > 3 {
					m.unload[e.model] = m.Now()
				}
				m.remove(e)
				m.begin(endpoint)
			}
		}
	}
}

// superfluous reports whether a copy may be removed while others stay. Of two copies, only the one
// on the worse endpoint may be removed, once it was unused for a tenth of the age of the oldest
// entry. Without recent heavy use 10 hours suffice.
func (m *modelmesh) superfluous(e *mmEntry) bool {
	other := func(is *mmEntry) bool { return is != e && is.loaded() }
	free, age := m.free()
	if copies := m.entries[e.model]; !e.loaded() || len(copies) < 2 || free > 0.05 || !slices.ContainsFunc(copies, other) {
		return false
	}
	if copies := m.entries[e.model]; len(copies) == 2 {
		other := copies[0]
		if other == e {
			other = copies[1]
		}
		wait := age / 10
		if e.heavy == 0 || m.Now()-e.heavy > age/5 {
			wait = min(wait, 10*3600)
		}
		return m.Now()-e.used > wait && compareCandidates(m.candidate(e.endpoint), m.candidate(other.endpoint)) > 0
	}
	for _, other := range m.entries[e.model] {
		if m.Now()-other.began < 30*60 {
			return false
		}
	}
	calm := min(max((3*age+10_400)/100, 10*60), 5*3600)
	return m.Now()-m.unload[e.model] > 80 && (e.heavy == 0 || m.Now()-e.heavy > calm) && e.rpm <= mmScaleUp*2/3
}

// reap runs on the leader every 7 minutes. It loads models without a copy, most recently used
// first. They fill half of the free capacity of each instance beyond an eighth. If there is no free
// capacity, models that were used well after the oldest entry replace a twentieth of the fleet.
func (m *modelmesh) reap() {
	var total, sum int64
	space, entries := 0.0, 0
	for e := range m.Nodes {
		if m.Nodes[e].Up {
			for _, is := range m.nodes[e].entries {
				sum += m.Size[is.model]
				entries++
			}
		}
	}
	mean := float64(meanSize)
	if entries > 0 {
		mean = float64(sum) / float64(entries)
	}
	for e := range m.Nodes {
		if m.Nodes[e].Up {
			total += m.room()
			loads := float64(m.AtOnce*50 - m.nodes[e].loading)
			space += max(0, min(float64(m.remaining(e)-m.room()/8), loads*mean)) / 2
		}
	}
	since := math.Inf(-1)
	fill := int(space / mean)
	if fill == 0 {
		_, age := m.free()
		since = m.Now() - age + max(age/3, 20*60)
	}
	count := max(fill, int(float64(total)/(20*mean)))
	for _, model := range ranked(m.used) {
		if count == 0 || m.used[model] <= since {
			return
		}
		if len(m.entries[model]) == 0 {
			m.ensure(model, m.used[model], false)
			count--
		}
	}
}

// Ready records the duration of the load and starts the next one.
func (m *modelmesh) Ready(c *Copy) {
	n := &m.nodes[c.Endpoint]
	n.loading--
	for _, e := range m.entries[c.Model] {
		if e.copy == c {
			e.loading, e.ended = false, m.Now()
			m.loads.add(m.Now() - e.began)
		}
	}
	m.begin(c.Endpoint)
}

// Gone implements [Policy]. The Fleet starts queued loads that now fit.
func (m *modelmesh) Gone(*Copy) {}

// Joined implements [Policy]. The next load goes to the new endpoint.
func (m *modelmesh) Joined(int) {}

// Left removes the entries of an endpoint. Requests that waited there go to another endpoint.
func (m *modelmesh) Left(endpoint int) {
	gone := m.nodes[endpoint].entries
	m.nodes[endpoint] = mmNode{}
	for _, e := range gone {
		m.entries[e.model] = slices.DeleteFunc(m.entries[e.model], func(is *mmEntry) bool { return is == e })
	}
	for _, e := range gone {
		m.again(e.model)
	}
}

// mmTimes estimates the duration of loads, after which a load is assumed to have ended
// (TimeStats.java): the mean plus five standard deviations, or three after 20 loads. Every fourth
// load updates it.
type mmTimes struct {
	n            int
	mean, square float64
	assume       float64
}

func (t *mmTimes) add(took float64) {
	t.n++
	off := took - t.mean
	t.mean += off / float64(t.n)
	t.square += off * (took - t.mean)
	switch {
	case t.n < 4:
		t.assume = (2*t.assume + t.mean) / 3
	case t.n%4 == 0:
		k := 5.0
		if t.n > 20 {
			k = 3
		}
		t.assume = t.mean + k*math.Sqrt(t.square/float64(t.n))
	}
}
