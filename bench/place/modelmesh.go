package place

import (
	"cmp"
	"math"
	"slices"
)

// ModelMesh's constants (ModelMesh.java, ModelMeshApi.java; times in seconds). The load timeout is that of its built-in adapters.
const (
	mmLoadTimeout  = 30.0
	mmAssumeLoaded = mmLoadTimeout / 3 // of a load that nothing is known of; at least 3
	mmChurnAge     = 10 * mmAssumeLoaded
	mmTries        = 8      // endpoints that a request is sent to
	mmScaleUp      = 2000.0 // requests a minute for each copy
	mmHeavy        = mmScaleUp * 3 / 4
	mmRateCheck    = 10.0
	mmJanitor      = 360.0
	mmReaper       = 420.0
	mmReaperFirst  = 120.0
	mmLastUsed     = 6 * 3600.0 // how long ago a model was used that was registered at the start
	mmFirst        = 2 * 3600.0 // how far a load comes first that requests wait for
	mmSecondMin    = 42         // rate checks since an earlier use after which a second copy comes: 7 minutes
	mmSecondMax    = 240        // and until which: 40 minutes
)

// modelmesh is ModelMesh's rules as its source has them (kserve/modelmesh), and what they intend where the source has a defect. Each
// endpoint is one of its instances, with a cache of entries in order of last use. What it leaves out, most of it to ModelMesh's advantage:
// every decision knows all endpoints as they are (instances publish every 2 s to 40 s), nothing fails, unloads take no time but that of
// requests, loads are never cut off, and there is one type of model and one version of the program.
type modelmesh struct {
	*Fleet
	churnAge float64 // no load at a full endpoint whose oldest entry is younger
	nodes    []mmNode
	entries  [][]*mmEntry // of each model
	used     []float64    // when a model was used last
	unload   []float64    // when a copy of a model went last while more than two stayed
	loads    mmTimes
	checks   int
}

// mmNode is what an instance knows of itself.
type mmNode struct {
	entries []*mmEntry
	loading int
	// requests are all that came, minutes what they were at the end of each of the last seven minutes.
	requests int
	minutes  []int
}

// mmEntry is a model in the cache of an instance: queued, loading or loaded.
type mmEntry struct {
	model, endpoint int
	used            float64 // last use, which is that of the entry and not that of the model
	began, ended    float64 // when it came into the cache, and when it was loaded
	priority        float64
	loading         bool
	copy            *Copy // from the beginning of the load

	count  int     // requests since the last rate check
	rpm    float64 // at that check
	heavy  float64 // when there were last more requests than mmHeavy; 0 for never
	run    int     // rate check since which it is in use, without a pause of mmSecondMin
	before int     // the last rate check with a use before that; 0 for none
	latest int     // the last rate check with a use; 0 for none
}

// queued says whether the load of an entry has not begun, and loaded whether it has ended.
func (e *mmEntry) queued() bool { return !e.loading && e.copy == nil }
func (e *mmEntry) loaded() bool { return e.copy != nil && e.copy.State == Loaded }

// ModelMesh is kserve/modelmesh's own rules.
func ModelMesh() Policy { return &modelmesh{churnAge: mmChurnAge} }

// ModelMeshNoLimit is the same where tas.min_churn_age_ms is 0, so that no request fails because all was used just now.
func ModelMeshNoLimit() Policy { return &modelmesh{} }

// Start has the caches know what is loaded, and begins what is done from time to time.
func (m *modelmesh) Start(f *Fleet) {
	m.Fleet, m.nodes = f, make([]mmNode, len(f.Nodes))
	m.entries, m.used, m.unload = make([][]*mmEntry, f.Models), make([]float64, f.Models), make([]float64, f.Models)
	m.loads.assume = mmAssumeLoaded
	for model := range m.used {
		m.used[model], m.unload[model] = -mmLastUsed, math.Inf(-1)
	}
	if f.Warm {
		for rank, model := range ranked(f.rate(0)) { // as if the hottest had been used last
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

// room is the capacity that models may take: all but what is kept free so that loads need not wait for unloads, which is the half (a
// quarter with more than two loads at once) of what loads at once, from a hundredth to a tenth of all (ModelCacheUnloadBufManager.java).
func (m *modelmesh) room() int64 {
	reserve := int64(m.AtOnce) * meanSize / 2
	if m.AtOnce > 2 {
		reserve /= 2
	}
	return m.Capacity - min(max(reserve, m.Capacity/100), m.Capacity/10)
}

// remaining is the bytes of an instance that no entry has.
func (m *modelmesh) remaining(endpoint int) int64 {
	left := m.room()
	for _, e := range m.nodes[endpoint].entries {
		left -= m.Size[e.model]
	}
	return left
}

// full says whether so many remaining bytes are too few to count.
func (m *modelmesh) full(remaining int64) bool {
	return remaining < max(meanSize, min(int64(m.AtOnce)*meanSize, m.Capacity/20))
}

// oldest is when the entry of an instance was used that was used least recently; infinite if there is none.
func (m *modelmesh) oldest(endpoint int) float64 {
	is := math.Inf(1)
	for _, e := range m.nodes[endpoint].entries {
		is = min(is, e.used)
	}
	return is
}

// free is the share of all capacity that instances have free that are not full, and age that of the oldest entry anywhere, in seconds.
func (m *modelmesh) free() (share, age float64) {
	var left, all int64
	oldest := m.Now()
	for e := range m.Nodes {
		if m.Nodes[e].Up {
			all += m.room()
			if r := m.remaining(e); !m.full(r) {
				left += r
			}
			oldest = min(oldest, m.oldest(e))
		}
	}
	return float64(left) / float64(max(all, 1)), m.Now() - oldest
}

// rpm is the requests a minute of an instance, of the last six to seven minutes (RateTracker.java).
func (m *modelmesh) rpm(endpoint int) float64 {
	n := &m.nodes[endpoint]
	passed := min(m.Now(), float64(len(n.minutes))*60+math.Mod(m.Now(), 60))
	if passed <= 0 {
		return 0
	}
	before := 0
	if len(n.minutes) > 6 {
		before, passed = n.minutes[0], 360+math.Mod(m.Now(), 60)
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

// Request touches the entry that serves, or that which began first where none is loaded; the load of that comes first then. Where there is
// none the request is sent to one endpoint after the other until one takes it, and then fails.
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

// ensure has a model loaded at one more endpoint than has it, but not at those that are excluded, as if used at a time. It returns nil where
// no endpoint takes it.
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

// takes says whether an endpoint loads a model. Where it is full it does not while it lets go of what was used only just now, nor what was
// used before all that would have to go.
func (m *modelmesh) takes(model, endpoint int, used float64) bool {
	left, oldest := m.remaining(endpoint), m.oldest(endpoint)
	return !(m.full(left) && m.Now()-oldest < m.churnAge) && (left >= m.Size[model] || used >= oldest)
}

// has says whether a model is in the cache of an endpoint.
func (m *modelmesh) has(model, endpoint int) bool {
	return slices.ContainsFunc(m.entries[model], func(is *mmEntry) bool { return is.endpoint == endpoint })
}

// insert has an entry in a cache.
func (m *modelmesh) insert(model, endpoint int, used float64) *mmEntry {
	e := &mmEntry{model: model, endpoint: endpoint, used: used, began: m.Now(), ended: math.Inf(1)}
	m.entries[model] = append(m.entries[model], e)
	m.nodes[endpoint].entries = append(m.nodes[endpoint].entries, e)
	return e
}

// remove takes one out, and has it unloaded if it was loaded.
func (m *modelmesh) remove(e *mmEntry) {
	n := &m.nodes[e.endpoint]
	same := func(other *mmEntry) bool { return other == e }
	n.entries = slices.DeleteFunc(n.entries, same)
	m.entries[e.model] = slices.DeleteFunc(m.entries[e.model], same)
	if e.copy != nil {
		m.Unload(e.copy)
	}
}

// begin has an endpoint load what is queued, that of the highest priority first: as many at once as it can. Only then do those leave that
// were used least recently. What was used before all of them falls out of the cache itself.
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
			if n.loading > 0 { // what loads has the room, and may leave when it is loaded
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

// makeRoom evicts what was used least recently until an entry fits whose turn it is. Entries that are queued have no room yet, but are
// evicted in the same order; requests that wait for them are sent elsewhere.
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
	m.nodes[next.endpoint].loading++ // so that nothing else begins for which room is made here
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

// again sends requests elsewhere whose entry is no more.
func (m *modelmesh) again(model int) {
	if len(m.waiting[model]) > 0 && len(m.entries[model]) == 0 && m.ensure(model, m.Now(), true) == nil {
		m.Refuse(model)
	}
}

// target returns the endpoint that is to load a model (CacheMissForwardingLB), -1 if there is none.
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
	case ago < -1: // a further copy of what is asked for much
		factor = 1.1
	case ago < 5:
		factor = 1.5
	case ago < 12*60:
		factor = 3
	}
	all = slices.DeleteFunc(all, func(c mmCandidate) bool { return c.rpm >= 100 && c.rpm > factor*max(100, least) })
	return all[m.Random.IntN(len(all))].endpoint
}

// mmCandidate is an endpoint as its order sees it.
type mmCandidate struct {
	endpoint, count, loading int
	full                     bool
	remaining                int64
	oldest, rpm              float64
}

func (m *modelmesh) candidate(endpoint int) mmCandidate {
	n := &m.nodes[endpoint]
	c := mmCandidate{
		endpoint: endpoint, count: len(n.entries), loading: n.loading, remaining: m.remaining(endpoint), oldest: m.oldest(endpoint), rpm: m.rpm(endpoint),
	}
	c.full = m.full(c.remaining)
	return c
}

// compareCandidates is the order in which endpoints are to get models (PLACEMENT_ORDER).
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

// check is what each instance does every 10 s for the models that were used since: a second copy of what was used 7 to 40 minutes ago too
// (ModelMesh's own test leaves out what is in use all the time, which it does not intend), where a tenth of the fleet is free or nothing
// has left for 20 hours; and more copies of what one alone has too many requests for.
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
			case copies == 1 && m.earlier(e) && (free >= 0.1 || age > 20*3600):
				m.ensure(e.model, m.Now()-mmRateCheck, false)
			}
		}
	}
}

// earlier says whether an entry that is used was so 7 to 40 minutes ago.
func (m *modelmesh) earlier(e *mmEntry) bool {
	return m.checks-e.run >= mmSecondMin || e.before > 0 && m.checks-e.before <= mmSecondMax
}

// more has copies made of what gets more requests at one endpoint than it should, of so many endpoints: not while what another copy will
// take over cannot be seen yet, and not where there is far more to do. They are as if used in 20 s.
func (m *modelmesh) more(e *mmEntry, up int) {
	for _, other := range m.entries[e.model] {
		if other != e && m.Now()-other.began < 2*mmRateCheck+2*m.loads.assume {
			return
		}
	}
	exclude, candidates := []int{}, 0
	limit := max(4*mmScaleUp, m.rpm(e.endpoint)-2*mmScaleUp)
	for endpoint := range m.Nodes {
		switch {
		case !m.Nodes[endpoint].Up || m.has(e.model, endpoint):
		case m.rpm(endpoint) > limit:
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

// janitor is what each instance does every 6 minutes: where the fleet is full copies go that are not needed, those used least recently
// first, up to a twentieth of the instance's bytes.
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

// superfluous says whether a copy may go while others stay. Of two copies that goes whose endpoint is the worse in order, a tenth of the age
// of the oldest entry after its last use, at most 10 hours unless it was in heavy use just now.
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

// reap is what the leader does every 7 minutes: it has models loaded that have no copy, those used last first. They fill half of what is
// free beyond an eighth of each instance; where nothing is, a twentieth of the fleet is made anew with what was used well after the oldest
// entry.
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

// Ready notes how long the load took, and has the next begin.
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

// Gone is nothing to it: the world begins what has room.
func (m *modelmesh) Gone(*Copy) {}

// Joined is nothing to it: the next load goes there.
func (m *modelmesh) Joined(int) {}

// Left forgets what was there, and sends requests elsewhere that wait.
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

// mmTimes is how long loads take, and after which time one is assumed to have ended (TimeStats.java): the mean and five deviations, three
// from the 21st load on, found anew at each fourth.
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
